// The search over all sections, and the lists that the page came with.
const LISTED = 12;

for (const each of document.querySelectorAll(".script")) each.hidden = false;

document.getElementById("keys").append(...PRECISIONS
  .filter((name) => report.rows.some((row) => name === "cast" ? row.castSeconds > 0 : row.precision === name))
  .map((name) => make("span.key", {}, make(`i.${name}`), NAMES[name] || name)));

// Lines and names that stand in the page: the search hides them, and long lists end in a button.
const listed = (section, entries, limit) => {
  const texts = entries.map((entry) => `${entry.textContent}\n${entry.title}\n${[...entry.querySelectorAll("[title]")].map((each) => each.title).join("\n")}`.toLowerCase());
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

const views = new Map([
  ["ops", [opsTable(), new Set(report.rows.map((row) => row.op)).size]],
  ["modules", [moduleTree(), new Set(report.rows.map((row) => row.module)).size]],
  ["timeline", [timelineView(), report.timeline.events.length]],
]);
for (const id of ["ping-pong", "recast", "missed", "unlisted", "never-seen"]) {
  const section = document.getElementById(id);
  const entries = [...section.querySelectorAll("tbody > tr, .name")];
  views.set(id, [listed(section, entries, id === "never-seen" ? Infinity : LISTED), entries.length]);
}

const found = document.getElementById("found");
const update = () => {
  const rows = search(input.value);
  found.textContent = words.length ? `${count(rows.length)} of ${count(report.rows.length)} rows` : "";
  for (const [id, [draw, of]] of views) {
    const shown = draw(rows);
    document.querySelector(`#${id} .count`).textContent = words.length ? `${count(shown)} of ${count(of)}` : count(of);
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
update();
