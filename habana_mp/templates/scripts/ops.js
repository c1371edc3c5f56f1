// The table of ops: a line for each, its modules under it, sorted by any column.
const pairs = (line) =>
  [...line.pairs].sort((a, b) => b[1] - a[1]).flatMap(([pair, number]) => {
    const [from, to] = JSON.parse(pair);
    return [path(from, to), line.pairs.size > 1 ? ` ${count(number)} ` : ""];
  });

const bar = (part, whole) => {
  if (!(part > 0)) return "";
  const made = make("span.bar");
  made.style.setProperty("--part", whole > 0 ? Math.min(1, part / whole) : 0);
  return made;
};

const figure = (text, value) => make(value ? "span.figure" : "span.figure.zero", {}, text);
const zero = (text, value) => (value ? [text] : [make("span.zero", {}, text)]);

const errorOf = (line) =>
  line.lost ? [make("b.lost", {}, `${count(line.lost)} not finite`)] : zero(line.error ? line.error.toPrecision(2) : "0", line.error);
const heat = (part) => (part > 0 ? `.heat${Math.ceil(part * 5)}` : "");

const FORMATS = report.formats || [];
const TERMS = {
  ...Object.fromEntries(FORMATS.map((name) => [name, "the error that its calls would have in this list of ops in 8 bits"])),
  decision: "the decision of the policy, and the line of the list that it comes from",
  "runs in": "the dtypes that the op computed in",
  "op time": "without its casts and without ops inside it that have their own lines",
  error: "against the op in float32 on the same inputs, relative to the size of its results",
  "of all error": "its part of the error of the loss, or of the outputs, to first order",
  "cast time": "in the casts before the op and, in backward, of its gradients",
  share: "of the time of the block",
  casts: "tensors that were cast for the op",
  cached: "casts that the weight cache had already",
  backward: "casts of gradients",
};

// title, what it sorts by, what its cells hold
const COLUMNS = [
  ["decision", (line) => line.decisions.join(", "), (line) => [line.decisions.join(", "), ...(line.note ? [make("small.rule", {}, line.note)] : [])]],
  ["runs in", (line) => line.runs.join(), (line) => line.runs.map(chip)],
  ["calls", (line) => line.calls, (line) => [count(line.calls)]],
  ["op time", (line) => line.seconds, (line) => [time(line.seconds)]],
  ...(MEASURED ? [
    ["error", (line) => (line.lost ? Infinity : line.error), (line) => line.measured ? errorOf(line) : line.unmeasured ? [make("i", {}, "not measured")] : []],
    ...FORMATS.map((name) => [name, (line) => line.formats[name] ?? -1, (line) => name in line.formats ? zero(line.formats[name].toPrecision(2), line.formats[name]) : []]),
    ...(SHARES_KNOWN ? [["of all error", (line) => (line.lost ? Infinity : line.share), (line) => zero(line.measured ? share(line.share, 1) : "", line.share)]] : []),
  ] : []),
  ["cast time", (line) => line.castSeconds, (line) => zero(time(line.castSeconds), line.castSeconds)],
  ["share", (line) => line.castSeconds, (line) => [figure(share(line.castSeconds, report.seconds), line.castSeconds)]],
  ["casts", (line) => line.casts, (line) => zero(count(line.casts), line.casts)],
  ["from → to", (line) => [...line.pairs.keys()].join(), pairs],
  ["cached", (line) => line.cached, (line) => zero(count(line.cached), line.cached)],
  ["backward", (line) => line.backward, (line) => zero(count(line.backward), line.backward)],
  ["bytes", (line) => line.bytes, (line) => zero(size(line.bytes), line.bytes)],
].map(([title, key, cells]) => ({ title, key, cells }));
COLUMNS.unshift({ title: "op", key: (line) => line.name });
const MOST_OPS = 25;
const collator = new Intl.Collator("en", { numeric: true }); // blocks.2 before blocks.10
const ordered = (a, b) => (typeof a === "string" ? collator.compare(a, b) : a - b);
const NUMBERS = new Set([...FORMATS, "calls", "op time", "error", "of all error", "cast time", "share", "casts", "cached", "backward", "bytes"]);

const opsTable = () => {
  const table = document.getElementById("ops-table");
  const body = table.tBodies[0];
  const open = new Set();
  const first = COLUMNS.find(({ title }) => title === (SHARES_KNOWN ? "of all error" : MEASURED ? "error" : "cast time"));
  let by = first, down = true, rows = [];

  const sorted = (lines) => {
    const sign = down ? -1 : 1;
    return lines
      .map((line) => [by.key(line), line])
      .sort(([a, x], [b, y]) => sign * ordered(a, b) || y.seconds - x.seconds)
      .map(([, line]) => line);
  };

  const cells = (line) =>
    COLUMNS.slice(1).map(({ title, cells: fill }) =>
      make(`${NUMBERS.has(title) ? "td.number" : `td.${title.split(" ")[0]}`}${title === "of all error" ? heat(line.share) : ""}`,
        { "data-title": title }, ...fill(line)));

  const moduleLine = (row) => {
    const line = Object.assign(summed([row]), { name: row.module || "outside of any module" });
    line.note = row.source;
    return line;
  };

  const drawModule = (line) =>
    make("tr.module", {}, make("th.name", { scope: "row", title: line.name }, make("span", {}, line.name)), ...cells(line));

  const drawOp = (line) => {
    line.note = line.rules.join("; ");
    const button = make("button.open", { type: "button", "aria-expanded": open.has(line.name) }, line.name);
    const number = make("small", {}, ` ${count(line.rows.length)}`);
    const made = make("tr.op", {}, make("th.name", { scope: "row", title: line.name }, button, number), ...cells(line));
    let inside = [];
    const expand = () => {
      paged(sorted(line.rows.map(moduleLine)), 20, drawModule,
        (lines) => {
          (inside.at(-1) || made).after(...lines);
          inside.push(...lines);
        },
        (more) => make("tr.module", {}, make("td", { colspan: COLUMNS.length }, more)));
    };
    made.addEventListener("click", (event) => {
      if (String(getSelection()) && event.target !== button) return;
      if (!open.delete(line.name)) open.add(line.name);
      button.setAttribute("aria-expanded", open.has(line.name));
      if (open.has(line.name)) return expand();
      for (const each of inside) each.remove();
      inside = [];
    });
    made.expand = expand;
    return made;
  };

  const draw = (shown) => {
    rows = shown;
    const lines = [...grouped(rows, (row) => row.op)].map(([name, of]) => Object.assign(summed(of), { name }));
    body.replaceChildren();
    // Those that cast nothing, or make no error, are folded, unless the reader looks for something.
    const matter = sum(lines, (line) => (MEASURED ? first.key(line) > 0 : line.casts > 0));
    const folds = !words.length && by === first && down && matter >= 5 && matter < MOST_OPS;
    paged(sorted(lines), folds ? matter : MOST_OPS, drawOp,
      (made) => {
        body.append(...made);
        for (const line of made) if (line.expand && line.querySelector("[aria-expanded=true]")) line.expand();
      },
      (more) => make("tr", {}, make("td", { colspan: COLUMNS.length }, more)),
      folds ? (MEASURED ? "without errors" : "without casts") : "more");
    return lines.length;
  };

  const head = make("tr");
  for (const column of COLUMNS) {
    const button = make("button", { type: "button" }, column.title);
    const heading = make(NUMBERS.has(column.title) ? "th.number" : "th", { scope: "col", title: TERMS[column.title] || "" }, button);
    const say = () => {
      for (const each of head.cells) each.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    };
    button.addEventListener("click", () => {
      down = by === column ? !down : NUMBERS.has(column.title);
      by = column;
      say();
      draw(rows);
    });
    head.append(heading);
    if (by === column) say();
  }
  table.tHead.append(head);
  return draw;
};
