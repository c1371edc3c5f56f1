// The search over all sections, and the lists that the page came with.
const LISTED = 12;

for (const each of document.querySelectorAll(".script")) each.hidden = false;

document.getElementById("keys")?.append(...PRECISIONS
  .filter((name) => report.rows.some((row) => name === "cast" ? row.castSeconds > 0 : row.precision === name))
  .map((name) => make("span.key", {}, make(`i.${name}`), NAMES[name] || name)));

// Lines and names that stand in the page: the search hides them, and long lists end in a button.
const listed = (section, entries, limit) => {
  const texts = entries.map((entry) =>
    [entry.textContent, ...[entry, ...entry.querySelectorAll("[title]")].map((each) => each.title)].join("\n").toLowerCase());
  let all = false;
  const button = make("button.more", { type: "button" });
  button.addEventListener("click", () => {
    all = true;
    draw();
  });
  section.append(button);
  const draw = () => {
    let found = 0;
    entries.forEach((entry, i) => {
      entry.hidden = !matches(texts[i]) || (++found > limit && !all);
    });
    button.hidden = all || found <= limit;
    button.textContent = `… and ${count(found - limit)} more`;
    return found;
  };
  return draw;
};

// A section that has nothing to show is not on the page. Each view draws what the search shows, and tells how much that is.
const DRAWN = { ops: opsTable, modules: moduleTree, timeline: timelineView };
const everything = search("");
const views = [...document.querySelectorAll("main section:not(#help):not(#errors)")].map((section) => {
  const entries = [...section.querySelectorAll("tbody > tr, .listed")];
  const draw = DRAWN[section.id]?.() || listed(section, entries, section.id === "never-seen" ? Infinity : LISTED);
  return { draw, shown: section.querySelector(".count"), all: draw(everything) };
});

const found = document.getElementById("found");
const folded = document.querySelector("#never-seen details");
const update = () => {
  const rows = search(input.value);
  if (folded && words.length) folded.open = true;
  found.textContent = words.length ? `${count(rows.length)} of ${count(report.rows.length)} rows` : "";
  for (const { draw, shown, all } of views) {
    const matching = draw(rows);
    shown.textContent = words.length ? `${count(matching)} of ${count(all)}` : count(all);
  }
};

const input = document.getElementById("search");
let waiting = 0;
input.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(update, report.rows.length > 2000 ? 150 : 0);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
  event.preventDefault();
  input.focus();
});
// In a notebook's frame a link to a section would lead to the section of the notebook.
if (location.protocol === "about:") {
  document.querySelector("nav").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    document.getElementById(link.hash.slice(1)).scrollIntoView();
  });
}

// A browser that goes back to the page fills the search in again.
if (input.value) update();
else for (const { shown, all } of views) shown.textContent = count(all);
