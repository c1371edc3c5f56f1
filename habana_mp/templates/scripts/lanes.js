// The lanes of the timeline: the casts of a pair of dtypes, forward or backward, and how much of each pixel they take.
const lanesOf = (events) =>
  [...grouped(events, (event) => JSON.stringify([event.kind === "backward", event.from, event.to]))]
    .map(([key, of]) => {
      const [backward, from, to] = JSON.parse(key);
      return { backward, from, to, events: of, longest: of.reduce((longest, event) => Math.max(longest, event.duration), 0) };
    })
    .sort((a, b) => a.backward - b.backward || b.events.length - a.events.length);

// The first event that may reach into a time: they are sorted by their starts.
const firstAt = (lane, moment) => {
  let low = 0, high = lane.events.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.events[middle].start < moment - lane.longest) low = middle + 1;
    else high = middle;
  }
  return low;
};

// Casts of some pixels as they are, and of the shorter ones how much of each pixel went into them.
const measured = (lane, [start, end], width, wanted) => {
  const pixels = Math.floor(width), busy = new Float64Array(pixels), wide = [], scale = pixels / (end - start);
  for (let i = firstAt(lane, start); i < lane.events.length && lane.events[i].start <= end; i++) {
    const event = lane.events[i];
    if (!wanted(event)) continue;
    const a = (event.start - start) * scale, b = a + event.duration * scale;
    if (b - a > 3) {
      wide.push([a, b - a - 0.5]);
      continue;
    }
    const first = Math.max(0, Math.floor(a)), final = Math.min(pixels - 1, Math.floor(b));
    // What took no time is seen too.
    for (let pixel = first; pixel <= final; pixel++) busy[pixel] += Math.max(Math.min(b, pixel + 1) - Math.max(a, pixel), 1e-12);
  }
  return { wide, busy, most: wide.length ? 1 : Math.min(1, busy.reduce((most, part) => Math.max(most, part), 0)) };
};

const highest = (lanes) => lanes.reduce((most, lane) => Math.max(most, lane.most), 1e-6);

// The fullest pixel of all lanes is as high as a lane.
const drawLane = (pen, { wide, busy }, most, top, tall, least) => {
  for (const [start, long] of wide) pen.fillRect(start, top, long, tall);
  busy.forEach((part, pixel) => {
    if (!part) return;
    const high = Math.max(least, Math.min(1, part / most) * tall);
    pen.fillRect(pixel, top + tall - high, 1, high);
  });
};
