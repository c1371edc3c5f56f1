// The tree of modules: a bar for each, coloured by the precisions that its time was spent in, and its ops under it.
const NAMES = { cast: "casts", mixed: "several dtypes", other: "other" };
const VISIBLE_AT_FIRST = 24;

const moduleTree = () => {
  const place = document.getElementById("tree");
  const whole = sum(report.rows, (row) => row.own + row.castSeconds);
  const toggled = new Map(); // what the reader opened and closed outside of a search, by path

  const node = (name, path) => ({ name, path, children: new Map(), rows: [], parts: new Map(), seconds: 0, castSeconds: 0, casts: 0, share: 0 });

  const add = (into, row) => {
    into.parts.set(row.precision, (into.parts.get(row.precision) || 0) + row.own);
    into.parts.set("cast", (into.parts.get("cast") || 0) + row.castSeconds);
    into.seconds += row.own + row.castSeconds;
    into.castSeconds += row.castSeconds;
    into.share += row.error_share;
    into.casts += sum(row.casts, (cast) => cast.count);
    return into;
  };

  const build = (rows) => {
    const root = node("", "");
    // What ran outside comes last: it is the optimizer and the like.
    for (const row of [...rows.filter((each) => each.module), ...rows.filter((each) => !each.module)]) {
      const [type, ...rest] = row.module.split(": ");
      const dotted = rest.join(": ");
      let at = add(root, row);
      for (const name of [type || "outside of any module", ...(dotted ? dotted.split(".") : [])]) {
        if (!at.children.has(name)) at.children.set(name, node(name, `${at.path}\n${name}`));
        at = add(at.children.get(name), row);
      }
      at.rows.push(row);
    }
    return root;
  };

  const stack = (line) => {
    const made = make("span.stack");
    const said = [];
    for (const name of PRECISIONS) {
      const part = line.parts.get(name) || 0;
      if (!(part > 0)) continue;
      const piece = make(`i.${name}`);
      piece.style.flexGrow = part / line.seconds;
      made.append(piece);
      said.push(`${NAMES[name] || name} ${share(part, line.seconds)}`);
    }
    made.title = said.join("\n");
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", said.join(", "));
    return made;
  };

  const columns = (line) => [
    stack(line),
    make("span.number", {}, time(line.seconds)),
    make("span.number.share", {}, bar(line.seconds, whole), figure(share(line.seconds, whole), line.seconds)),
    ...(SHARES_KNOWN ? [make(`span.number${heat(line.share)}`, {}, ...zero(share(line.share, 1), line.share))] : []),
    make("span.number", {}, ...zero(time(line.castSeconds), line.castSeconds)),
    make("span.number", {}, ...zero(count(line.casts), line.casts)),
  ];

  const drawOp = (row, depth, module) => {
    const line = add(node(row.op, ""), row);
    const made = make(module ? "div.line" : "div.line.leaf", {},
      make("span.label", { title: `${row.op}, ${row.decision}\n${row.rule}\n${row.source}` },
        ...(module ? [module, " "] : []), make("b", {}, row.op), " ", make("small", {}, row.decision)),
      ...columns(line));
    made.style.setProperty("--depth", depth);
    return made;
  };

  // A module of a single op takes one line for both.
  const single = (line) => !line.children.size && line.rows.length === 1;

  const drawNode = (line, depth, opened) => {
    if (single(line)) return drawOp(line.rows[0], depth, line.name);
    const made = make("details", {}, make("summary.line", {},
      make("span.label", { title: line.path.slice(1).replace("\n", ": ").replaceAll("\n", ".") }, line.name), ...columns(line)));
    made.firstChild.style.setProperty("--depth", depth);
    const fill = () => {
      if (made.childElementCount > 1) return;
      // Modules in the order in which they ran, then the ops of the module itself.
      const inside = [...line.children.values(), ...line.rows];
      paged(inside, 50,
        (each) => (each.children ? drawNode(each, depth + 1, opened) : drawOp(each, depth + 1)),
        (lines) => made.append(...lines),
        (more) => {
          const holder = make("div.line", {}, more);
          holder.style.setProperty("--depth", depth + 1);
          return holder;
        });
    };
    made.open = (words.length ? undefined : toggled.get(line.path)) ?? opened.has(line);
    if (made.open) fill();
    made.addEventListener("toggle", () => {
      if (made.open) fill();
    });
    made.firstChild.addEventListener("click", () => {
      if (!words.length) toggled.set(line.path, !made.open);
    });
    return made;
  };

  return (rows) => {
    const root = build(rows);
    // Level by level, while all that is open fits on a screen; a lone module is opened always.
    const opened = new Set();
    let level = [...root.children.values()].filter((each) => !single(each)), lines = level.length;
    while (level.length) {
      const next = level.flatMap((each) => [...each.children.values()]).filter((each) => !single(each));
      lines += sum(level, (each) => each.children.size + each.rows.length);
      if (lines > VISIBLE_AT_FIRST && level.length > 1) break;
      for (const each of level) opened.add(each);
      level = next;
    }
    const heading = make("div.line.heading", {}, ...["module", "precision", "time", "share of all ops", ...(SHARES_KNOWN ? ["of all error"] : []), "cast time", "casts"]
      .map((title, i) => make(i > 1 ? "span.number" : "span", {}, title)));
    place.classList.toggle("measured", SHARES_KNOWN);
    place.replaceChildren(...(rows.length ? [heading] : []));
    paged([...root.children.values()], 50, (each) => drawNode(each, 0, opened), (made) => place.append(...made));
    return grouped(rows, (row) => row.module).size;
  };
};
