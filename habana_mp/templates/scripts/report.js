// The report, and which of its rows the search shows.
const report = JSON.parse(document.getElementById("report").textContent);
const PRECISIONS = report.precisions;
const MEASURED = Boolean(report.low_dtype);
const SHARES_KNOWN = MEASURED && report.rows.some((row) => row.error_share > 0); // as shares_known in habana_mp/_report/numbers.py

const sum = (values, of) => values.reduce((total, value) => total + of(value), 0);

for (const row of report.rows) {
  row.own = Math.max(0, row.seconds - sum(row.casts, (cast) => cast.seconds));
  row.castSeconds = sum(row.casts, (cast) => cast.seconds + cast.backward.seconds);
  const dtypes = new Set([...row.dtypes, ...row.runs_in, ...row.casts.flatMap((cast) => [cast.from, cast.to])]);
  row.text = [row.op, row.module, row.rule, row.decision, row.front_end, row.policy, row.source, ...dtypes, ...[...dtypes].map(short)]
    .join("\n")
    .toLowerCase();
  row.shown = true;
}

let words = [];
const matches = (text) => words.every((word) => text.includes(word));

const search = (text) => {
  words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of report.rows) row.shown = matches(row.text);
  return report.rows.filter((row) => row.shown);
};

// What a group of rows has in sum: the figures of a line, for an op, a module or a single row.
const summed = (rows) => {
  const made = { rows, calls: 0, seconds: 0, castSeconds: 0, casts: 0, cached: 0, backward: 0, bytes: 0, pairs: new Map(), measured: 0, unmeasured: 0, share: 0, lost: 0 };
  let squares = 0, whole = 0;
  const formats = {};
  const decisions = new Set(), rules = new Set(), runs = new Set();
  for (const row of rows) {
    made.calls += row.calls;
    made.seconds += row.own;
    made.castSeconds += row.castSeconds;
    if (row.values) {
      made.measured += row.values.calls;
      made.share += row.error_share;
      made.lost += row.values.ran.lost;
      squares += row.values.ran.squares;
      whole += row.values.ran.reference_squares;
      for (const { format, error } of row.values.formats) {
        const own = (formats[format] ||= { squares: 0, whole: 0 });
        own.squares += error.squares;
        own.whole += error.reference_squares;
      }
    }
    made.unmeasured += sum(Object.values(row.unmeasured || {}), (calls) => calls);
    for (const cast of row.casts) {
      made.casts += cast.count;
      made.cached += cast.cached;
      made.backward += cast.backward.count;
      made.bytes += cast.bytes + cast.backward.bytes;
      const pair = JSON.stringify([cast.from, cast.to]);
      made.pairs.set(pair, (made.pairs.get(pair) || 0) + cast.count);
    }
    decisions.add(row.decision);
    if (row.rule) rules.add(row.rule);
    for (const dtype of row.runs_in) runs.add(dtype);
  }
  const relative = (part, all) => (all > 0 ? Math.sqrt(part / all) : 0);
  made.error = relative(squares, whole);
  made.formats = Object.fromEntries(Object.entries(formats).map(([name, own]) => [name, relative(own.squares, own.whole)]));
  return Object.assign(made, { decisions: [...decisions], rules: [...rules], runs: [...runs] });
};

const grouped = (rows, by) => {
  const groups = new Map();
  for (const row of rows) {
    const key = by(row);
    if (groups.has(key)) groups.get(key).push(row);
    else groups.set(key, [row]);
  }
  return groups;
};
