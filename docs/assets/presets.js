// The table of presets.html: search by name or "preset:fate", and sorting by a click on a head. Without this file the table is plain.
const table = document.getElementById("preset-table");
if (table) {
  const heads = [...table.tHead.rows[0].cells];
  const names = heads.map((head) => head.querySelector("button").textContent);
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const text = (row, column) => row.cells[column].textContent;
  const count = document.getElementById("presets-count");
  const input = document.getElementById("presets-search");

  const holds = (row, word) => {
    const [name, fate] = word.split(":");
    const column = names.indexOf(name);
    if (fate === undefined || column < 1) return text(row, 0).toLowerCase().includes(word);
    return row.cells[column].className.startsWith(fate);
  };
  const search = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row) => (row.hidden = !words.every((word) => holds(row, word))));
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} ops`;
  };
  input.addEventListener("input", search);
  search();

  const order = ["lower", "fp32", "promote", "error", "·"];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const turned = head.ariaSort === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", turned === 1 ? "ascending" : "descending");
      const key = (row) => (column ? order.indexOf(text(row, column)) : rows.indexOf(row));
      body.append(...[...rows].sort((a, b) => turned * (key(a) - key(b)) || rows.indexOf(a) - rows.indexOf(b)));
    });
  });
}
