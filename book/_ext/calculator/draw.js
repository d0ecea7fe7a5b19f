// Drawings of the page: svg of the width of its figure, so that text keeps its size on a phone.

const SVG = new Set("svg g path line circle rect text tspan clipPath defs".split(" "));

// An element with attributes, listeners (`on...`) and children; false and null leave one out.
const make = (tag, attributes = {}, ...children) => {
  const element = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
};

const text = (x, y, content, attributes = {}) => make("text", { x, y, ...attributes }, content);
const line = (name, x1, y1, x2, y2) => make("line", { class: name, x1, y1, x2, y2 });
const dot = (x, y, full, r = 6) => make("circle", { class: `dot ${full ? "yes" : "no"}`, cx: x, cy: y, r });
const between = (x, low, high) => Math.max(low, Math.min(high, x));

// From values to places. What is endless, or none on a logarithmic axis, lies far outside.
const FAR = 1e4;
const scale = (low, high, from, to, log = false) => {
  const share = (x) =>
    log ? Math.log(Math.max(0, x) / low) / Math.log(high / low) : (x - low) / (high - low);
  return Object.assign((x) => between(from + share(x) * (to - from), -FAR, FAR), { low, high });
};

// Powers of ten in a range, thinned to so many.
const decades = (low, high, most) => {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const count = Math.max(0, Math.floor((last - first) / step) + 1);
  return Array.from({ length: count }, (_, i) => 10 ** (first + i * step));
};

// Places of labels moved apart, in their order.
const apart = (places, distance, low, high) => {
  const order = places.map((place, i) => ({ place, i })).sort((a, b) => a.place - b.place);
  let edge = low - distance;
  for (const each of order) edge = each.place = Math.max(each.place, edge + distance);
  edge = high + distance;
  for (const each of order.reverse()) edge = each.place = Math.min(each.place, edge - distance);
  return order.sort((a, b) => a.i - b.i).map(({ place }) => place);
};

const pathOf = (points) =>
  points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

// An empty drawing; what goes into `inside` is cut at the edges of its area.
const drawing = (figure, height, words, { left, right, top, bottom }) => {
  const width = Math.max(260, figure.clientWidth);
  const area = { left, right: width - right, top, bottom: height - bottom };
  const clip = `${figure.id}-area`;
  const inside = make("g", { "clip-path": `url(#${clip})` });
  const frame = make("rect", {
    x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top,
  });
  const ticks = make("g");
  const svg = make("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words,
  }, make("defs", {}, make("clipPath", { id: clip }, frame)), ticks, inside);
  figure.replaceChildren(svg, figure.querySelector("figcaption"));
  return { svg, ticks, inside, area };
};

const axisX = ({ ticks, area }, x, values, label, name) => {
  ticks.append(line("axis", area.left, area.bottom, area.right, area.bottom));
  let last = -FAR;
  for (const value of values) {
    const at = x(value);
    ticks.append(line("tick", at, area.top, at, area.bottom));
    if (at - last < 46) continue;
    last = at;
    ticks.append(text(at, area.bottom + 16, label(value), { class: "label", "text-anchor": "middle" }));
  }
  const middle = (area.left + area.right) / 2;
  ticks.append(text(middle, area.bottom + 33, name, { class: "name", "text-anchor": "middle" }));
};

const axisY = ({ ticks, area }, y, values, label) => {
  for (const value of values) {
    const at = y(value);
    ticks.append(line("tick", area.left, at, area.right, at));
    ticks.append(text(area.left - 6, at + 4, label(value), { class: "label", "text-anchor": "end" }));
  }
};

// Names at the right ends of lines.
const nameEnds = ({ svg, area }, ends) => {
  const places = apart(
    ends.map(({ y }) => between(y, area.top, area.bottom)), 14, area.top + 6, area.bottom - 2);
  ends.forEach(({ name, group }, i) => {
    svg.append(make("g", { class: group }, text(area.right + 6, places[i] + 4, name, { class: "row" })));
  });
};

// Time to have one prefix back, by tier: what ends in the shaded band is in time.
const drawPoint = (figure, words, { rows, recomputed, left, time }) => {
  const known = [...rows.map((row) => row.seconds), recomputed];
  const reach = [...known, left.split, left.one].filter((x) => x > 0);
  const height = 84 + 30 * (rows.length + 1);
  const plot = drawing(figure, height, words, { left: 104, right: 14, top: 30, bottom: 44 });
  const { svg, inside, area } = plot;
  const x = scale(Math.min(...reach) / 2.5, Math.max(...reach) * 4, area.left, area.right, true);
  const wide = area.right - area.left > 360;
  axisX(plot, x, decades(x.low, x.high, wide ? 8 : 3), time, "time to have the prefix back");
  const usable = Math.max(area.left, x(Math.min(left.split, recomputed)));
  inside.append(make("rect", {
    class: "usable", x: area.left, y: area.top, width: usable - area.left, height: area.bottom - area.top,
  }));
  for (const pool of ["one", "split"]) {
    if (left[pool] > 0) {
      inside.append(line(`limit ${pool}`, x(left[pool]), area.top, x(left[pool]), area.bottom));
    }
  }
  const at = between(left.split > 0 ? x(left.split) : area.left, area.left, area.right);
  const anchor = at > area.right - 90 ? "end" : at < area.left + 90 ? "start" : "middle";
  const head = left.split > 0 ? `left by the target: ${time(left.split)}` : "the target leaves nothing";
  svg.append(text(at, area.top - 10, head, { class: "strong", "text-anchor": anchor }));
  [...rows, { name: "recompute", group: "own", seconds: recomputed }].forEach((row, i) => {
    const y = area.top + 18 + 30 * i;
    const end = x(row.seconds);
    const told = time(row.seconds);
    const before = end + 11 + 6.6 * told.length > area.right;
    svg.append(
      text(area.left - 8, y + 4, row.name, { class: "row", "text-anchor": "end" }),
      make("g", { class: row.group },
        line("stem", area.left, y, end, y),
        row.group === "own"
          ? make("path", { class: "cross", d: `M${end - 5},${y - 5}l10,10m0,-10l-10,10` })
          : dot(end, y, row.fits),
        text(end + (before ? -11 : 11), y + 4, told, {
          class: "value", "text-anchor": before ? "end" : "start",
        })));
  });
};

// The same along the prefix length; lines are lists of [tokens, seconds].
const drawCurves = (figure, words, { lines, recomputed, left, target, mine, time }) => {
  const plot = drawing(figure, 330, words, { left: 52, right: 84, top: 10, bottom: 44 });
  const { svg, inside, area } = plot;
  const [first, last] = [recomputed[0][0], recomputed.at(-1)[0]];
  const fastest = Math.min(...lines.map(({ points }) => points[Math.floor(points.length / 3)][1]));
  const slowest = Math.max(target * 3, recomputed.at(-1)[1]);
  const x = scale(first, last, area.left, area.right, true);
  const y = scale(Math.max(1e-6, fastest) / 1.5, slowest, area.bottom, area.top, true);
  const powers = Array.from({ length: 12 }, (_, i) => 4 ** i).filter((n) => n >= first && n <= last);
  axisX(plot, x, powers, (n) => (n >= 1024 ? `${n / 1024}k` : n), "prefix [tokens]");
  axisY(plot, y, decades(y.low, y.high, 8), time);
  const placed = (points) => points.map(([tokens, seconds]) => [x(tokens), y(seconds)]);
  const path = (name, points) => make("path", { class: name, d: pathOf(placed(points)) });
  const usable = left.split.map(([tokens, seconds], i) => [tokens, Math.min(seconds, recomputed[i][1])]);
  inside.append(
    make("path", {
      class: "usable",
      d: `${pathOf(placed(usable))}L${area.right},${area.bottom}L${area.left},${area.bottom}Z`,
    }),
    path("limit one", left.one), path("limit split", left.split), path("again", recomputed),
    line("mine", x(mine), area.top, x(mine), area.bottom),
    ...lines.map(({ group, points }) => make("g", { class: group }, path("fetch", points))));
  nameEnds(plot, [...lines, { name: "recompute", group: "own", points: recomputed }].map(
    ({ name, group, points }) => ({ name, group, y: y(points.at(-1)[1]) })));
  const [, atFirst] = left.split[0];
  if (atFirst > 0) svg.append(text(area.left + 6, y(atFirst) - 6, "left by the target", { class: "strong" }));
};

// Break-even capacity against the tail exponent; lines are lists of [exponent, bytes].
const drawCapacity = (figure, words, { lines, working, mine, size }) => {
  const plot = drawing(figure, 290, words, { left: 58, right: 84, top: 12, bottom: 44 });
  const { svg, inside, area } = plot;
  const exponents = lines[0].middle.map(([exponent]) => exponent);
  const x = scale(exponents[0], exponents.at(-1), area.left, area.right);
  const y = scale(working * 1e-5, working * 1e3, area.bottom, area.top, true);
  axisX(plot, x, [0.1, 0.3, 0.5, 0.7, 0.9], (exponent) => exponent, "tail exponent β");
  axisY(plot, y, decades(y.low, y.high, 6), size);
  const placed = (points) => points.map(([exponent, bytes]) => [x(exponent), y(bytes)]);
  inside.append(
    line("working", area.left, y(working), area.right, y(working)),
    line("mine", x(mine), area.top, x(mine), area.bottom),
    ...lines.map(({ group, low, middle, high, here }) => make("g", { class: group },
      make("path", { class: "band", d: `${pathOf(placed([...low, ...[...high].reverse()]))}Z` }),
      make("path", { class: "fetch", d: pathOf(placed(middle)) }),
      here === undefined ? null : dot(x(mine), y(here), true, 5))));
  nameEnds(plot, lines.map(({ name, group, middle }) => ({ name, group, y: y(middle.at(-1)[1]) })));
  svg.append(text(area.left + 6, y(working) - 6, "working set: no use beyond", { class: "name" }));
};

// Spans of time to the next use.
const drawInterval = (figure, words, { spans, time }) => {
  const plot = drawing(figure, 52 + 42 * spans.length, words, { left: 14, right: 14, top: 8, bottom: 44 });
  const { svg, area } = plot;
  const known = spans.flatMap(({ from, to }) => [from, to]).filter((x) => x > 0 && Number.isFinite(x));
  const x = scale(Math.min(1, ...known) / 1.5, Math.max(3e7, ...known) * 2, area.left, area.right, true);
  const marks = [1e-3, 1, 60, 3600, 86400, 31557600].filter((mark) => mark >= x.low && mark <= x.high);
  axisX(plot, x, marks, time, "time to the next use");
  spans.forEach(({ name, group, from, to }, i) => {
    const y = area.top + 28 + 42 * i;
    const [start, end] = [from, to].map((span) => between(x(span), area.left, area.right));
    const told = `\u2002${from > 0 ? time(from) : "none"} to ${time(to)}`;
    svg.append(
      make("text", { class: "row value", x: area.left, y: y - 12 },
        make("tspan", { class: "strong" }, name), told),
      make("g", { class: group },
        line("span", start, y, end, y), dot(start, y, false, 5), dot(end, y, true, 5)));
  });
};

// Cost of each cell with its band, or that it is not feasible.
const drawCells = (figure, words, { cells, usd }) => {
  const plot = drawing(figure, 52 + 34 * cells.length, words, { left: 128, right: 14, top: 8, bottom: 44 });
  const { svg, area } = plot;
  const known = cells.flatMap(({ low, middle, high, predicted }) => [low, middle, high, predicted])
    .filter((x) => x > 0);
  const most = Math.max(...known, 1e-9) * 1.25;
  const x = scale(0, most, area.left, area.right);
  const power = 10 ** Math.floor(Math.log10(most));
  const step = power * (most < 3 * power ? 0.5 : most < 6 * power ? 1 : 2);
  const ticks = Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
  axisX(plot, x, ticks, (tick) => Number(tick.toPrecision(2)), "USD per million output tokens");
  const least = Math.min(...cells.map((cell) => cell.middle ?? Infinity));
  cells.forEach((cell, i) => {
    const y = area.top + 18 + 34 * i;
    const [low, at, high] = [cell.low ?? cell.middle, cell.middle, cell.high ?? cell.middle].map(x);
    svg.append(text(area.left - 8, y + 4, cell.name, { class: "row", "text-anchor": "end" }));
    if (cell.binding) {
      svg.append(
        make("path", { class: "cross", d: `M${area.left + 7},${y - 5}l10,10m0,-10l-10,10` }),
        text(area.left + 26, y + 4, "cannot meet the target", { class: "value" }));
      return;
    }
    const told = usd(cell.middle);
    const marks = [low, high, ...(cell.predicted ? [x(cell.predicted)] : [])];
    const before = Math.max(...marks) + 11 + 6.6 * told.length > area.right;
    svg.append(make("g", { class: "cell" },
      cell.predicted ? line("predicted", x(cell.predicted), y - 9, x(cell.predicted), y + 9) : null,
      line("span", low, y, high, y), dot(at, y, cell.middle === least),
      text(before ? Math.min(...marks) - 11 : Math.max(...marks) + 11, y + 4, told, {
        class: "value", "text-anchor": before ? "end" : "start",
      })));
  });
};
