// Two to eight runs beside each other: curves by step, seconds or tokens, what they reached, and where they are configured differently.

import { Charts } from "./chart.js";
import { X, over, overTime } from "./curves.js";
import { breath, colour, duration, el, figure, fill, table } from "./dom.js";
import { frontier } from "./frontier.js";
import { go, link, note } from "./link.js";
import { ask } from "./source.js";

const MOST = 8;

export class Compare {
  constructor() {
    this.node = el("section", { id: "compare" });
    this.grid = el("div", { class: "charts" });
    this.charts = new Charts(this.grid);
    this.places = new Map();
    this.search = el("input", { type: "search", id: "metric", placeholder: "find a metric  ( / )", "aria-label": "find a metric", list: "metrics", onchange: () => this.add() });
  }

  get runs() {
    return link().getAll("compare").filter(Boolean).slice(0, MOST);
  }

  async load() {
    const mine = (this.latest = {});
    const known = await ask("runs");
    const chosen = this.runs;
    const boxes = known.map(({ name }) => {
      const box = el("input", { type: "checkbox", disabled: !chosen.includes(name) && chosen.length >= MOST, onchange: () => go({ compare: box.checked ? [...chosen, name] : ["", ...chosen.filter((one) => one !== name)] }) });
      box.checked = chosen.includes(name);
      const mark = el("i");
      if (box.checked) mark.style.background = colour(chosen.indexOf(name));
      return el("label", {}, box, mark, el("bdi", {}, name));
    });
    const weighed = await ask("weighed");
    const choice = [el("h2", {}, "Compare"), el("p", { class: "legend runs" }, boxes), weighed.length > 1 && frontier(weighed, new Set(known.map((run) => run.name)))];
    if (mine !== this.latest) return; // others were chosen meanwhile
    if (chosen.length < 2) return fill(this.node, choice, el("p", { class: "soft" }, `Choose two to ${MOST} runs.`));
    const [compared, ...rest] = await Promise.all([ask("compare", { run: chosen }), ...chosen.map((run) => ask("clock", { run }))]);
    if (mine !== this.latest) return;
    this.compared = compared;
    this.chosen = chosen;
    this.clocks = rest.map((clock) => new Map(clock.map(([step, ...at]) => [step, at])));
    const head = ["run", "steps", "time", "tokens", "validation first", "best", "best after", "last", "gained per minute", "reward"];
    fill(this.node, choice, el("p", { class: "bar" }, over(() => this.draw()), this.search, el("datalist", { id: "metrics" }, compared.names.map((name) => el("option", { value: name })))), this.grid,
      el("h3", {}, "What they reached"),
      table(head, compared.runs.map((run) => [el("bdi", {}, run.name), figure(run.steps), duration(run.seconds), figure(Math.round(run.tokens)), figure(run.first), figure(run.best), duration(run.best_s), figure(run.last), figure(run.gained_per_s === null ? null : run.gained_per_s * 60), figure(run.reward)])),
      el("h3", {}, "Where their configurations differ"),
      compared.differences.length ? table(["key", ...chosen], compared.differences.map((row) => row.map((cell) => el("bdi", {}, cell)))) : el("p", { class: "soft" }, "nowhere"));
    await this.draw();
  }

  async draw() {
    const x = link().get("x") ?? "step";
    const names = [...new Set([...Object.keys(this.compared.titles), ...link().getAll("metric")])];
    const { chosen, clocks } = this;
    const curves = await Promise.all(chosen.map((run) => ask("curves", { run, name: names })));
    fill(this.grid, names.map((name) => {
      if (!this.places.has(name)) this.places.set(name, el("figure", { class: "chart", data: { title: name } }));
      return this.places.get(name);
    }));
    const mine = (this.drawing = {});
    for (const name of names) {
      if (mine !== this.drawing) return; // it is drawn anew meanwhile
      const lines = chosen.map((run, i) => ({ label: run, x: overTime(curves[i][name].steps, clocks[i], x), y: curves[i][name].values, colour: colour(i) })).filter((line) => line.x.length);
      this.charts.show(this.places.get(name), { title: this.compared.titles[name] ?? name, lines, xs: X[x] });
      await breath();
    }
  }

  add() {
    const name = this.search.value.trim();
    if (!this.compared.names.includes(name)) return;
    this.search.value = "";
    note({ metric: [...new Set([...link().getAll("metric"), name])] });
    this.draw();
  }
}
