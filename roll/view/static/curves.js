// The dozen charts of one run, and any other metric by its name.

import { Charts } from "./chart.js";
import { breath, el, fill } from "./dom.js";
import { go, link, note } from "./link.js";
import { ask } from "./source.js";

const MOST_SHOWN = 12;
export const X = { step: "step", seconds: "seconds", tokens: "response tokens" };

export class Curves {
  constructor(run) {
    this.run = run;
    this.known = null;
    this.first = ask("curves", { run }); // those of the panels, at once
    this.places = new Map();
    this.grid = el("div", { class: "charts" });
    this.search = el("input", { type: "search", placeholder: "find a metric  ( / )", id: "metric", "aria-label": "find a metric", list: "metrics", onchange: () => this.add() });
    this.names = el("datalist", { id: "metrics" });
    this.node = el("section", { id: "curves" }, el("h2", {}, "Curves"), el("p", { class: "bar" }, over(() => this.draw()), this.search, this.names, el("span", { class: "soft" }, "a click goes to the groups of that step; drag to zoom, double-click to see all")), this.grid);
    this.charts = new Charts(this.grid);
  }

  async update(status) {
    const begun = this.known !== null;
    this.known ??= await this.first;
    this.status = status;
    if (this.names.childElementCount !== status.names.length) fill(this.names, status.names.map((name) => el("option", { value: name })));
    const extra = link().getAll("metric").slice(0, MOST_SHOWN).map((name) => ({ title: name, lines: [lineOf(name, status.names)], bound: false, extra: true }));
    const panels = [...status.panels, ...extra];
    const names = [...new Set(panels.flatMap((panel) => panel.lines.flatMap((line) => [line.name, line.low, line.high])))].filter(Boolean);
    const fresh = names.filter((name) => !(name in this.known));
    const old = begun ? names.filter((name) => name in this.known) : [];
    const since = Math.min(...old.map((name) => this.known[name].steps.at(-1) ?? -1));
    const [first, more, clock] = await Promise.all([
      fresh.length ? ask("curves", { run: this.run, name: fresh }) : {},
      old.length ? ask("curves", { run: this.run, name: old, since }) : {},
      (link().get("x") ?? "step") === "step" ? null : ask("clock", { run: this.run }),
    ]);
    if (clock) this.clock = new Map(clock.map(([step, ...at]) => [step, at]));
    Object.assign(this.known, first);
    for (const name of old) this.known[name] = grown(this.known[name], more[name]);
    this.panels = panels;
    this.draw();
  }

  async draw() {
    if (!this.panels) return;
    const x = link().get("x") ?? "step";
    if (x !== "step" && !this.clock) return this.update(this.status);
    fill(this.grid, this.panels.map((panel) => {
      if (!this.places.has(panel.title)) this.places.set(panel.title, el("figure", { class: "chart", data: { title: panel.title } }));
      return this.places.get(panel.title);
    }));
    const mine = (this.drawing = {});
    for (const panel of this.panels) {
      if (mine !== this.drawing) return; // it is drawn anew meanwhile
      this.drawPanel(panel, x);
      await breath();
    }
  }

  drawPanel(panel, x) {
    const place = this.places.get(panel.title);
    const lines = panel.lines.filter((line) => this.known[line.name]).map((line) => {
      const { steps, values } = this.known[line.name];
      const at = (name) => aligned(this.known[name], steps);
      return { label: line.label, x: this.over(steps, x), y: values, low: line.low && at(line.low), high: line.high && at(line.high) };
    });
    const pick = (at) => go({ step_from: this.stepAt(at, x), step_to: this.stepAt(at, x), offset: null, section: "groups" });
    this.charts.show(place, { title: panel.title, lines, bound: panel.bound ? this.status.bound : null, xs: X[x], onpick: pick });
    if (panel.good) place.append(place.querySelector("figcaption") ?? el("figcaption", { class: "soft" }, el("b", {}, `good: ${panel.good}.`), ` ${panel.meaning}`));
    if (panel.extra) place.append(place.querySelector(".close") ?? el("button", { class: "close", title: "take this chart away", onclick: () => this.remove(panel.title) }, "×"));
  }

  over(steps, x) {
    return overTime(steps, this.clock, x);
  }

  stepAt(at, x) {
    if (x === "step") return Math.round(at);
    const column = x === "seconds" ? 0 : 1;
    let best = 0, distance = Infinity;
    for (const [step, times] of this.clock) if (Math.abs(times[column] - at) < distance) [best, distance] = [step, Math.abs(times[column] - at)];
    return best;
  }

  add() {
    const name = this.search.value.trim();
    if (!this.status.names.includes(name)) return;
    this.search.value = "";
    note({ metric: [...new Set([...link().getAll("metric"), name])] });
    this.update(this.status);
  }

  remove(name) {
    note({ metric: link().getAll("metric").filter((one) => one !== name) });
    this.update(this.status);
  }
}

export function over(redraw) {
  const choice = el("select", { "aria-label": "horizontal axis", onchange: () => { note({ x: choice.value }); redraw(); } }, Object.entries(X).map(([name, label]) => el("option", { value: name }, `by ${label}`)));
  choice.value = link().get("x") ?? "step";
  return choice;
}

// Steps as seconds or tokens; a step that was not trained, as that of a first validation, is at the time of the one before.
export function overTime(steps, clock, x) {
  if (x === "step") return steps;
  const column = x === "seconds" ? 0 : 1;
  const known = [...clock.keys()];
  let at = 0, last = 0;
  return steps.map((step) => {
    while (at < known.length && known[at] <= step) last = clock.get(known[at++])[column];
    return last;
  });
}

function lineOf(name, names) {
  const has = names.includes(`${name}/low`) && names.includes(`${name}/high`);
  return has ? { name, label: name, low: `${name}/low`, high: `${name}/high` } : { name, label: name };
}

function grown(curve, more) {
  const last = curve.steps.at(-1) ?? -1;
  const from = more.steps.findIndex((step) => step > last);
  if (from < 0) return curve;
  return { steps: curve.steps.concat(more.steps.slice(from)), values: curve.values.concat(more.values.slice(from)) };
}

function aligned(curve, steps) {
  const known = new Map(curve.steps.map((step, i) => [step, curve.values[i]]));
  return steps.map((step) => known.get(step) ?? null);
}
