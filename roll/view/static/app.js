// The page: one run from top to bottom, one of its groups, or several runs beside each other, as the address says.

import { Compare } from "./compare.js";
import { Curves } from "./curves.js";
import { el, fill } from "./dom.js";
import { Group } from "./group.js";
import { Groups } from "./groups.js";
import { Lanes } from "./lanes.js";
import { go, link, linked } from "./link.js";
import { ask, report, watch } from "./source.js";
import { Status } from "./status.js";

const SECTIONS = ["status", "curves", "time", "groups"];
const KEYS = [["1 2 3 4", "status, curves, time, groups"], ["j k", "next, previous group of the table"], ["Enter", "open the group"], ["[ ]", "previous, next group while one is open"], ["Esc", "back to the run"], ["/", "find a metric"], ["c", "compare runs"], ["t", "light or dark"], ["?", "these keys"]];

class App {
  constructor() {
    this.main = el("main", {});
    this.note = el("p", { class: "note", role: "alert", hidden: true });
    this.picker = el("select", { "aria-label": "run", onchange: () => go({ run: this.picker.value }, []) });
    this.help = el("dialog", {}, el("h2", {}, "Keys"), el("dl", {}, KEYS.map(([key, what]) => [el("dt", {}, key), el("dd", {}, what)])), el("form", { method: "dialog" }, el("button", {}, "close")));
    document.body.append(el("header", { class: "top" }, el("h1", {}, "roll"), this.picker, el("nav", {}, SECTIONS.map((name) => el("a", { href: "#", onclick: (event) => { event.preventDefault(); this.section(name); } }, name))),
      el("button", { onclick: () => this.compare() }, "compare"), el("button", { title: "light or dark", onclick: () => this.theme() }, "◐"), el("button", { title: "keys", onclick: () => this.help.showModal() }, "?")), this.note, this.main, this.help);
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("unhandledrejection", (event) => { event.preventDefault(); this.say(event.reason?.message ?? String(event.reason)); });
  }

  async start() {
    let theme = null;
    try { theme = localStorage.getItem("theme"); } catch { /* a page from a file may have no storage */ }
    if (theme) document.documentElement.dataset.theme = theme;
    this.runs = await ask("runs");
    fill(this.picker, this.runs.map((run) => el("option", { value: run.name }, run.name)));
    addEventListener("hashchange", () => this.show());
    this.show();
  }

  say(text) {
    fill(this.note, text);
    this.note.hidden = !text;
  }

  show() {
    const compare = link().has("compare"), run = link().get("run") ?? this.runs[0]?.name;
    this.say(run === undefined ? "There is no run in these folders yet: a run is a folder with config.yaml and metrics.jsonl." : "");
    if (run === undefined) return;
    this.picker.value = run;
    document.title = compare ? "roll: compare" : `roll: ${run}`;
    const view = compare ? "compare" : link().has("group") ? "group" : "run";
    if (this.view !== view || this.run !== run) this.open(view, run);
    else if (view === "run") this.groups.load();
    else this.part.load();
    const section = link().get("section");
    if (view === "run" && section) this.section(section);
  }

  open(view, run) {
    this.stop?.();
    this.stop = null;
    Object.assign(this, { view, run });
    if (view === "run") return this.openRun(run);
    this.part = view === "compare" ? new Compare() : new Group(run);
    fill(this.main, this.part.node);
    scrollTo(0, 0);
    return this.part.load();
  }

  openRun(run) {
    const status = new Status(run, this.runs.map((one) => one.name)), curves = new Curves(run), lanes = new Lanes(run);
    this.groups = new Groups(run);
    fill(this.main, status.node, curves.node, lanes.node, this.groups.node);
    let step;
    this.stop = watch(run, async (news) => {
      this.say("");
      status.update(news);
      const [before, first] = [step, step === undefined];
      step = news.step;
      if (first || before !== news.step) await status.load(); // what is on the screen first is asked for first
      await curves.update(news);
      if (first || before !== news.step) await this.groups.load();
      if (first) lanes.begin();
      else if (before !== news.step && !link().has("from")) lanes.load();
    }, (text) => this.say(text));
  }

  section(name) {
    if (!SECTIONS.includes(name)) return;
    if (this.view !== "run") return go({ section: name }, ["run"]);
    document.getElementById(name)?.scrollIntoView({ behavior: "instant", block: "start" });
  }

  compare() {
    go({ compare: this.view === "compare" ? null : [...new Set([this.run, ...this.runs.map((run) => run.name)])].slice(0, 2) }, ["run"]);
  }

  theme() {
    const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark");
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* as above */ }
    this.view = null;
    this.show();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return event.key === "Escape" ? event.target.blur() : undefined;
    const group = this.view === "group" ? this.part : null, run = this.view === "run" ? this.groups : null;
    const act = {
      "/": () => document.getElementById("metric")?.focus(), c: () => this.compare(), t: () => this.theme(), "?": () => this.help.showModal(),
      j: () => run?.choose(1), k: () => run?.choose(-1), "[": () => group?.step(-1), "]": () => group?.step(1),
      Enter: () => (event.target === document.body ? run?.open() : undefined), Escape: () => this.view !== "run" && (location.hash = linked({}, ["run"])),
    }[event.key] ?? (SECTIONS[Number(event.key) - 1] && (() => this.section(SECTIONS[Number(event.key) - 1])));
    if (!act) return;
    if (event.key !== "Enter") event.preventDefault();
    act();
  }
}

if (report) document.documentElement.classList.add("report");
new App().start();
