// Runs by their staleness and the time of a step: below and to the left is better, and the line joins those that no other beats.

import { duration, el, figure, table } from "./dom.js";
import { go } from "./link.js";

const FRAME = { width: 560, height: 260, left: 56, below: 34, room: 14 };

// `known`: the runs that can be opened.
export function frontier(runs, known) {
  const { width, height, left, below, room } = FRAME;
  const high = (name) => Math.max(...runs.map((run) => run[name])) || 1;
  const x = (run) => left + (run.lag / high("lag")) * (width - left - room);
  const y = (run) => room + (1 - run.step_s / high("step_s")) * (height - below - room);
  const best = runs.filter((run) => run.best).sort((a, b) => a.lag - b.lag);
  const axis = (text, at) => svg("text", at, text);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "frontier", role: "img", "aria-label": "seconds of a step against staleness" },
    svg("path", { class: "axes", d: `M${left} ${room}V${height - below}H${width - room}` }),
    axis(duration(high("step_s")), { x: left - 6, y: room + 8, "text-anchor": "end" }),
    axis("0 s", { x: left - 6, y: height - below, "text-anchor": "end" }),
    axis("staleness, versions", { x: left, y: height - 8 }),
    axis(figure(high("lag")), { x: width - room, y: height - below + 14, "text-anchor": "end" }),
    svg("polyline", { points: best.map((run) => `${x(run)},${y(run)}`).join(" ") }),
    runs.map((run) => svg("circle", { cx: x(run), cy: y(run), r: 5, class: run.best ? "best" : "", onclick: () => known.has(run.name) && go({ run: run.name }, []) }, svg("title", {}, `${run.name}: ${duration(run.step_s)} a step, staleness ${figure(run.lag)}`))));
  const rows = best.map((run) => [el("bdi", {}, run.name), duration(run.step_s), figure(run.lag)]);
  return el("div", { id: "frontier" }, el("h3", {}, `Time against staleness, ${runs.length} runs`), picture, table(["no other is faster with less staleness", "step", "staleness"], rows));
}

function svg(tag, props, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) name.startsWith("on") ? node.addEventListener(name.slice(2), value) : node.setAttribute(name, value);
  node.append(...children.flat());
  return node;
}
