// Speedups with their intervals, the fastest first, one block per run and clock.
function chart() {
  const place = byId("speed");
  place.replaceChildren();
  const rows = data.chart.filter((row) => isShown(row.task, row.method));
  if (!rows.length) return;
  const names = Math.min(14 + 7.2 * Math.max(...rows.map((row) => row.method.length)), innerWidth / 3);
  const width = Math.max(place.clientWidth, 300), left = names, right = width - 150, line = 30;
  const most = Math.max(1.1, ...rows.map((row) => Math.max(row.high ?? row.value, row.corrected ?? 0)));
  const least = Math.min(0.9, ...rows.map((row) => Math.min(row.low ?? row.value, row.corrected ?? Infinity)));
  const x = (value) => left + ((value - least) / (most - least)) * (right - left);
  for (const heading of new Set(rows.map((row) => row.heading))) {
    const own = rows.filter((row) => row.heading === heading).sort((a, b) => b.value - a.value);
    place.append(made("h3", heading));
    if (own.some((row) => row.corrected !== null)) place.append(made("div", "dashed: theory at the measured costs", "meta"));
    const height = line * own.length + 30;
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": heading });
    axis(svg, x, least, most, height - 24);
    own.forEach((row, i) => mark(svg, row, x, line * i + line / 2, right));
    place.append(svg);
  }
}

function axis(svg, x, least, most, bottom) {
  const room = Math.min(7, (x(most) - x(least)) / 42);  // ticks whose labels do not overlap
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10].find((each) => (most - least) / each <= room) ?? 20;
  for (let tick = Math.ceil(least / step - 1e-9) * step; tick <= most + 1e-9; tick += step) {
    const at = x(tick), one = Math.abs(tick - 1) < 1e-9;
    if (!one) svg.append(drawn("line", { x1: at, x2: at, y1: 0, y2: bottom, stroke: "var(--line)" }));
    svg.append(drawn("text", { x: at, y: bottom + 17, "text-anchor": "middle", class: "soft" }, `${+tick.toFixed(2)}x`));
  }
  svg.append(drawn("line", { x1: x(1), x2: x(1), y1: 0, y2: bottom, stroke: "var(--muted)", "stroke-width": 1.5 }));
}

function mark(svg, row, x, y, right) {
  const group = drawn("g", { tabindex: 0, "aria-label": row.about });
  group.append(drawn("rect", { x: 0, y: y - 14, width: svg.viewBox.baseVal.width, height: 28, fill: "transparent" }));
  group.append(drawn("text", { x: 0, y: y + 4 }, row.method));
  if (row.low !== null)
    group.append(drawn("line", { x1: x(row.low), x2: x(row.high), y1: y, y2: y, stroke: row.color, "stroke-width": 3, "stroke-linecap": "round" }));
  if (row.corrected !== null)
    group.append(drawn("line", { x1: x(row.corrected), x2: x(row.corrected), y1: y - 9, y2: y + 9, stroke: "var(--ink)", "stroke-width": 2, "stroke-dasharray": "3 2" }));
  group.append(drawn("path", { d: SHAPES[row.marker], fill: row.color, class: "marker", transform: `translate(${x(row.value)} ${y})` }));
  group.append(drawn("text", { x: right + 14, y: y + 4 }, row.text));
  explain(group, row.about);
  svg.append(group);
}
