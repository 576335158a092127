// One chart: lines over steps, seconds or tokens, with bands, and a click that says where.

import { colour, figure, style } from "./dom.js";

const HEIGHT = 190;

// `lines`: [{label, x, y, low, high, colour}] with columns `x` and `y` (and `low`, `high` over the same x). `onpick`: called with an x.
export function chart(holder, { title, lines, bound, xs, onpick }) {
  const tables = lines.map((line) => [line.x, line.y, ...(line.low ? [line.low, line.high] : [])]);
  const data = uPlot.join(tables);
  const series = [{ label: xs }];
  const bands = [];
  lines.forEach((line, i) => {
    const stroke = line.colour ?? colour(i);
    series.push({ label: line.label, stroke, width: 1.5, spanGaps: true, value: (_, v) => figure(v), points: { show: line.x.length < 40 } });
    if (line.low) {
      for (const end of ["low", "high"]) series.push({ label: end, stroke: "transparent", spanGaps: true, points: { show: false }, class: "hidden" });
      bands.push({ series: [series.length - 1, series.length - 2], fill: `${stroke}33` });
    }
  });
  if (bound !== null && bound !== undefined && data[0].length) {
    data.push(data[0].map(() => bound));
    series.push({ label: "bound", stroke: style("--bad"), dash: [5, 4], width: 1, points: { show: false } });
  }
  const axis = { stroke: style("--soft"), grid: { stroke: style("--rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui", values: (_, all) => all.map(figure) };
  const plot = new uPlot({
    title, width: Math.max(holder.clientWidth, 200), height: HEIGHT, series, bands,
    scales: { x: { time: false }, y: { range } },
    axes: [{ ...axis, size: 26 }, { ...axis, size: 52 }],
    cursor: { sync: { key: "curves" }, points: { size: 6 }, drag: { x: true, y: false } },
    legend: { live: true },
    hooks: { setLegend: [(shown) => shown.legend.idx ?? shown.setLegend({ idx: shown.data[0].length - 1 }, false)] },
  }, data, holder);
  plot.setLegend({ idx: plot.data[0].length - 1 });
  if (onpick) {
    let down = null;
    plot.over.addEventListener("mousedown", (event) => (down = event.clientX));
    plot.over.addEventListener("click", (event) => {
      const at = plot.cursor.idx;
      if (at !== null && at !== undefined && down !== null && Math.abs(event.clientX - down) < 4) onpick(plot.data[0][at]);
    });
  }
  return plot;
}

// A line that is flat lies in the middle, one of zeros at the bottom.
function range(plot, low, high) {
  if (low === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) / 10, low + Math.abs(low) / 10];
  return uPlot.rangeNum(low, high, 0.1, true);
}

// Charts in a grid that follow the width of their places.
export class Charts {
  constructor(grid) {
    this.grid = grid;
    this.plots = new Map();
    new ResizeObserver(() => this.plots.forEach((plot, place) => plot.setSize({ width: Math.max(place.clientWidth, 200), height: HEIGHT }))).observe(grid);
  }

  // What is zoomed stays zoomed when lines grow.
  show(place, options) {
    if (options.lines.length === 0) return;
    const before = this.plots.get(place);
    const zoom = before && (before.scales.x.min > before.data[0][0] || before.scales.x.max < before.data[0].at(-1)) ? before.scales.x : null;
    before?.destroy();
    const plot = chart(place, options);
    if (zoom) plot.setScale("x", { min: zoom.min, max: zoom.max });
    this.plots.set(place, plot);
  }
}
