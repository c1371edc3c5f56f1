// Times, sizes and shares as people read them, by the same rules as habana_mp/_show/units.py; and elements, whose text is always text.
const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const SIZES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
const SHORT = { bfloat16: "bf16", float16: "fp16", float32: "fp32", float64: "fp64" };
const NUMBER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

const figures = (value) => (value < 9.95 ? value.toFixed(1) : NUMBER.format(value));

const scaled = (value, steps) => {
  const found = steps.find(([step]) => value / step >= 0.9995);
  return found && `${figures(value / found[0])} ${found[1]}`;
};

const time = (seconds) => (seconds <= 0 ? "0" : scaled(seconds, TIMES) || "<1 ns");
const size = (bytes) => scaled(bytes, SIZES) || `${Math.round(bytes)} B`;
const count = (number) => NUMBER.format(number);
const short = (dtype) => (Object.hasOwn(SHORT, dtype) ? SHORT[dtype] : dtype);

const share = (part, whole) => {
  if (part <= 0 || whole <= 0) return "0 %";
  const percent = (100 * part) / whole;
  return percent < 0.05 ? "<0.1 %" : `${figures(percent)} %`;
};

// make("td.number", {title: "…"}, "text", element)
const make = (kind, attributes = {}, ...children) => {
  const [tag, ...classes] = kind.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

const colour = (dtype) => (["bfloat16", "float16", "float32"].includes(dtype) ? dtype : "other");
const path = (from, to) => make("span.pair", {}, chip(from), " → ", chip(to));
const chip = (dtype) => make("span.chip", { title: dtype }, make(`i.${colour(dtype)}`), short(dtype));

// The first of many, and a button for the rest: a page of 20,000 lines is of use to nobody.
const paged = (entries, first, draw, place, wrap = (button) => button, rest = "more") => {
  let shown = 0;
  const more = () => {
    const next = entries.slice(shown, shown ? shown + 200 : first);
    shown += next.length;
    const made = next.map(draw);
    if (shown < entries.length) {
      const button = make("button.more", { type: "button" }, `… and ${count(entries.length - shown)} ${rest}`);
      const holder = wrap(button);
      button.addEventListener("click", () => {
        more(); // after the button, which marks the place
        holder.remove();
      });
      made.push(holder);
    }
    place(made);
  };
  more();
};
