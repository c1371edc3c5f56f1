// The casts over time, on a canvas: a lane for each pair of dtypes, forward and backward; under it all of it, with what is shown.
const LANE = 34, GAP = 8, AXIS = 22, OVERVIEW = 18, NEAR = 4;

const timelineView = () => {
  const place = document.getElementById("timeline-view");
  const events = report.timeline.events
    .map(([start, duration, row, from, to, kind]) => ({ start, duration, row: report.rows[row], from, to, kind }))
    .sort((a, b) => a.start - b.start);
  const lanes = lanesOf(events);
  const last = events.reduce((end, event) => Math.max(end, event.start + event.duration), 0);
  const whole = [Math.min(0, events[0].start), Math.max(report.timeline.seconds ?? report.seconds, last) || 1];
  const shortest = (whole[1] - whole[0]) / 1e7;
  let [from, to] = whole, width = 0, over = null, drag = null;

  const labels = make("div.lanes", {}, ...lanes.map((lane) =>
    make("div", {}, path(lane.from, lane.to), " ", make("small", {}, lane.backward ? "backward" : ""))));
  const canvas = make("canvas", { tabindex: 0, role: "img", "aria-label":
    `${count(events.length)} casts over ${time(whole[1] - whole[0])}; arrow keys move, plus and minus zoom, 0 shows all` });
  const overview = make("canvas.overview", { "aria-hidden": true });
  const tip = make("div.tip", { role: "status", hidden: "" });
  const buttons = [["−", "zoom out", () => zoom(2)], ["+", "zoom in", () => zoom(0.5)], ["all", "show all", () => show(...whole)]]
    .map(([text, label, act]) => {
      const button = make("button", { type: "button", "aria-label": label }, text);
      button.addEventListener("click", act);
      return button;
    });
  const range = make("output");
  place.append(make("div.tools", {}, ...buttons, range), make("div.plot", {}, labels, make("div.canvases", {}, canvas, overview, tip)));

  const x = (at) => ((at - from) / (to - from)) * width;
  const at = (pixel) => from + (pixel / width) * (to - from);
  const height = lanes.length * (LANE + GAP) + AXIS;

  const show = (start, end) => {
    const length = Math.min(whole[1] - whole[0], Math.max(shortest, end - start));
    from = Math.min(Math.max(whole[0], start), whole[1] - length);
    to = from + length;
    tip.hidden = true;
    over = null;
    draw();
  };
  const zoom = (factor, centre = (from + to) / 2) => show(centre - (centre - from) * factor, centre + (to - centre) * factor);

  const prepared = (of, tall) => {
    const ratio = devicePixelRatio || 1;
    of.width = Math.round(width * ratio);
    of.height = Math.round(tall * ratio);
    of.style.height = `${tall}px`;
    const pen = of.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    return pen;
  };

  // A moment in the unit of the whole, with as many digits as the view can tell apart.
  const unit = TIMES.find(([each]) => whole[1] >= each) || TIMES[3];
  const moment = (seconds, step) =>
    `${(seconds / unit[0]).toFixed(Math.min(9, Math.max(0, Math.ceil(Math.log10(unit[0] / step) - 1e-9))))} ${unit[1]}`;

  const ticks = (pen, style, top) => {
    const rough = ((to - from) / width) * 90, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    pen.textAlign = "left";
    for (let n = Math.ceil(from / step); n * step <= to; n++) {
      const left = Math.round(x(n * step)) + 0.5;
      pen.fillStyle = style.getPropertyValue("--line");
      pen.fillRect(left, 0, 1, top + 4);
      pen.fillStyle = style.getPropertyValue("--faint");
      if (left < width - 45) pen.fillText(moment(n * step, step), left + 3, top + 15);
    }
  };

  const draw = () => {
    width = canvas.parentElement.clientWidth;
    if (!width) return;
    const style = getComputedStyle(document.documentElement);
    const pen = prepared(canvas, height);
    ticks(pen, style, height - AXIS);
    const all = lanes.map((lane) => measured(lane, [from, to], width, () => true));
    const most = highest(all);
    lanes.forEach((lane, i) => {
      const top = i * (LANE + GAP);
      pen.fillStyle = style.getPropertyValue("--line");
      pen.fillRect(0, top + LANE, width, 1);
      pen.fillStyle = style.getPropertyValue(`--${colour(lane.to)}`);
      pen.globalAlpha = words.length ? 0.2 : 1;
      drawLane(pen, all[i], most, top, LANE, 3);
      pen.globalAlpha = 1;
      if (words.length) drawLane(pen, measured(lane, [from, to], width, (event) => event.row.shown), most, top, LANE, 3);
    });
    if (over) {
      pen.strokeStyle = style.getPropertyValue("--text");
      pen.lineWidth = 1.5;
      pen.strokeRect(x(over.start) - 1.5, lanes.indexOf(over.lane) * (LANE + GAP) - 0.5, Math.max(3, (over.duration / (to - from)) * width + 3), LANE + 1);
    }
    if (drag) {
      pen.fillStyle = style.getPropertyValue("--select");
      pen.fillRect(Math.min(drag.start, drag.end), 0, Math.abs(drag.end - drag.start), height - AXIS);
    }
    const small = prepared(overview, OVERVIEW);
    const shown = lanes.map((lane) => measured(lane, whole, width, (event) => event.row.shown));
    lanes.forEach((lane, i) => {
      small.fillStyle = style.getPropertyValue(`--${colour(lane.to)}`);
      drawLane(small, shown[i], highest(shown), 0, OVERVIEW, 2);
    });
    const scale = width / (whole[1] - whole[0]);
    small.fillStyle = style.getPropertyValue("--veil");
    small.fillRect(0, 0, (from - whole[0]) * scale, OVERVIEW);
    small.fillRect((to - whole[0]) * scale, 0, width, OVERVIEW);
    range.textContent = `${moment(from, (to - from) / 100)} to ${moment(to, (to - from) / 100)}, ${time(to - from)}`
      + (most < 1 ? `; highest bar: ${share(Math.min(1, most * report.timeline.stride), 1)} of its time` : "");
  };

  const under = (pixel, line) => {
    const lane = lanes[Math.floor(line / (LANE + GAP))];
    if (!lane) return null;
    const margin = ((to - from) / width) * NEAR, centre = at(pixel);
    let best = null, near = 0, away = Infinity;
    for (let i = firstAt(lane, centre - margin); i < lane.events.length && lane.events[i].start <= centre + margin; i++) {
      const event = lane.events[i];
      const distance = Math.max(event.start - centre, centre - event.start - event.duration, 0);
      if (distance > margin || !event.row.shown) continue;
      near++;
      if (distance < away || (distance === away && event.duration > best.duration)) [best, away] = [event, distance];
    }
    return best && { ...best, lane, near };
  };

  const hover = (event) => {
    const box = canvas.getBoundingClientRect();
    const found = under(event.clientX - box.left, event.clientY - box.top);
    if (found?.start === over?.start && found?.row === over?.row) return;
    over = found;
    draw();
    tip.hidden = !found;
    if (!found) return;
    const of = found.row.casts.find((cast) => found.kind === "backward"
      ? cast.from === found.to && cast.to === found.from : cast.from === found.from && cast.to === found.to);
    const cost = found.kind === "backward" ? of?.backward : of && { bytes: of.bytes, count: of.count - of.cached };
    const facts = [
      `${found.from} → ${found.to}${found.kind === "cast" ? "" : found.kind === "cached" ? ", from the cache" : ", in backward"}`,
      `at ${moment(found.start, (to - from) / 1000)}, ${found.kind === "cached" ? "no copy" : `took ${time(found.duration)}`}`
        + (cost?.count && found.kind !== "cached" ? `, ${cost.count > 1 ? "on average " : ""}${size(cost.bytes / cost.count)}` : ""),
      ...(found.near > 1 ? [`${count(found.near - 1)} more here: zoom in`] : []),
    ];
    tip.replaceChildren(make("b", {}, found.row.op), " ", found.row.module || "outside of any module",
      ...facts.map((fact) => make("div", {}, fact)));
    const left = x(found.start);
    tip.style.left = `${Math.max(0, Math.min(left, width - tip.offsetWidth))}px`;
    tip.style.top = `${(lanes.indexOf(found.lane) + 1) * (LANE + GAP)}px`;
  };

  const left = (event, of) => event.clientX - of.getBoundingClientRect().left;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { start: left(event, canvas), end: left(event, canvas) };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    drag.end = left(event, canvas);
    tip.hidden = true;
    draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const done = drag;
    drag = null;
    if (done && Math.abs(done.end - done.start) > NEAR) {
      show(at(Math.max(0, Math.min(done.start, done.end))), at(Math.min(width, Math.max(done.start, done.end))));
    } else hover(event);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; draw(); });
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "touch") return; // the finger leaves, what it asked for stays
    over = null;
    tip.hidden = true;
    draw();
  });
  canvas.addEventListener("dblclick", () => show(...whole));
  canvas.addEventListener("keydown", (event) => {
    const step = (to - from) / 4;
    const acts = {
      ArrowLeft: () => show(from - step, to - step), ArrowRight: () => show(from + step, to + step),
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => show(...whole), Escape: () => show(...whole),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });
  // With ctrl, as elsewhere: a plain wheel scrolls the page.
  canvas.addEventListener("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !sideways) return;
    event.preventDefault();
    const moved = (event.deltaX / width) * (to - from);
    if (sideways) show(from + moved, to + moved);
    else zoom(event.deltaY < 0 ? 0.8 : 1.25, at(left(event, canvas)));
  }, { passive: false });
  const centre = (event) => {
    if (!(event.buttons & 1)) return;
    const middle = whole[0] + (left(event, overview) / width) * (whole[1] - whole[0]), half = (to - from) / 2;
    show(middle - half, middle + half);
  };
  overview.addEventListener("pointerdown", centre);
  overview.addEventListener("pointermove", centre);
  new ResizeObserver(draw).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  return () => {
    tip.hidden = true;
    over = null;
    draw();
    return events.reduce((shown, event) => shown + event.row.shown, 0);
  };
};
