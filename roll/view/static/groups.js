// What became of the groups: statuses with reasons, rewards, and a table that the server filters, sorts and pages.

import { el, figure, fill, share, table } from "./dom.js";
import { go, link, linked, note } from "./link.js";
import { ask } from "./source.js";

const LIMIT = 50;
const FILTERS = ["step_from", "step_to", "domain", "status", "reason", "explorer", "prompt", "reward_from", "reward_to", "kept"];
const COLUMNS = [["step", "step"], ["group_id", "group"], ["reward", "reward"], ["uid", "prompt"], ["domain", "domain"], ["explorer", "explorer"], ["status", "status"], ["reason", "reason"], ["lag", "lag"], ["rollouts", "rollouts"], ["length", "length"], ["cut", "cut off"], ["kept", "text"]];
const NUMBERS = new Set(["step", "group_id", "lag", "reward", "rollouts", "length", "cut"]);

// The keys of the rows that were shown last: the group view goes on among them.
export const listed = { run: "", keys: [] };

export class Groups {
  constructor(run) {
    this.run = run;
    this.funnel = el("div", { class: "funnel" });
    this.bins = el("div", { class: "bins" });
    this.rows = el("div", {});
    this.chosen = 0;
    this.fields = Object.fromEntries(["step_from", "step_to", "prompt"].map((name) => [name, el("input", { type: name === "prompt" ? "search" : "number", placeholder: name.replace("_", " "), "aria-label": name.replace("_", " "), onchange: (event) => this.filter({ [name]: event.target.value }) })]));
    this.choices = Object.fromEntries(["domain", "explorer"].map((name) => [name, el("select", { "aria-label": name, onchange: (event) => this.filter({ [name]: event.target.value }) })]));
    this.kept = el("input", { type: "checkbox", onchange: () => this.filter({ kept: this.kept.checked ? "true" : null }) });
    this.node = el("section", { id: "groups" }, el("h2", {}, "Groups"), this.funnel, el("h3", {}, "Mean reward of a group"), this.bins,
      el("p", { class: "bar" }, Object.values(this.fields), Object.values(this.choices), el("label", {}, this.kept, " with text"), el("button", { onclick: () => this.filter(Object.fromEntries(FILTERS.map((name) => [name, null]))) }, "all")), this.rows);
  }

  filter(changes) {
    note({ ...changes, offset: null });
    return this.load();
  }

  async load() {
    const asked = Object.fromEntries([...FILTERS, "sort", "descending", "offset"].map((name) => [name, link().get(name)]).filter(([, value]) => value !== null));
    this.latest = JSON.stringify(asked);
    const mine = this.latest;
    const [page, funnel] = await Promise.all([ask("groups", { run: this.run, ...asked, limit: LIMIT }), ask("funnel", { run: this.run })]);
    if (mine !== this.latest) return;
    this.page = page;
    listed.run = this.run;
    listed.keys = page.rows.filter((row) => row.kept).map((row) => row.key);
    for (const [name, field] of Object.entries(this.fields)) if (field !== document.activeElement) field.value = asked[name] ?? "";
    this.kept.checked = asked.kept === "true";
    for (const [name, select] of Object.entries(this.choices)) {
      const known = page[`${name}s`];
      if (select.childElementCount !== known.length + 1) fill(select, el("option", { value: "" }, `all ${name}s`), known.map((one) => el("option", { value: one }, one)));
      select.value = asked[name] ?? "";
      select.hidden = known.length === 0;
    }
    this.drawFunnel(funnel, asked);
    this.drawBins(page.histogram, asked);
    this.drawRows(asked);
  }

  drawFunnel({ counts, statuses }, asked) {
    const most = Math.max(counts.admitted ?? 0, ...statuses.map(([, , count]) => count), 1);
    const bar = (label, count, change, on) => {
      const mark = el("i");
      mark.style.width = `${(100 * (count ?? 0)) / most}%`;
      return el("button", { class: on ? "on" : "", disabled: !change, onclick: () => change && this.filter(on ? { status: null, reason: null } : change) }, el("span", {}, label), el("b", {}, figure(count)), mark);
    };
    fill(this.funnel, bar("admitted", counts.admitted), bar("in flight", counts.in_flight), bar("buffered", counts.buffered),
      statuses.map(([status, reason, count]) => bar(reason ? `${status}: ${reason}` : status, count, { status, reason: reason || null }, asked.status === status && (asked.reason ?? "") === reason)));
  }

  drawBins(histogram, asked) {
    const most = Math.max(...histogram.map(([, , count]) => count), 1);
    fill(this.bins, histogram.map(([low, high, count]) => {
      const on = asked.reward_from === String(low) && asked.reward_to === String(high);
      const mark = el("i");
      mark.style.height = `${Math.max(2, (60 * count) / most)}px`;
      const name = low === high ? figure(low) : `${figure(low)} to ${figure(high)}`;
      return el("button", { class: on ? "on" : "", title: `${name}: ${figure(count)} groups`, onclick: () => this.filter(on ? { reward_from: null, reward_to: null } : { reward_from: low, reward_to: high }) }, mark, el("span", {}, figure(low)));
    }), histogram.length === 0 && el("p", { class: "soft" }, "no group here has a reward that was written down"));
  }

  drawRows(asked) {
    const { total, rows } = this.page, by = asked.sort ?? "step", down = asked.descending === "true", offset = Number(asked.offset ?? 0);
    const columns = COLUMNS.filter(([name]) => name !== "explorer" || this.page.explorers.length);
    const head = columns.map(([name, label]) => el("th", { "aria-sort": by === name ? (down ? "descending" : "ascending") : "none" }, el("button", { onclick: () => this.filter({ sort: name, descending: by === name && !down ? "true" : null }) }, label, by === name ? (down ? " ↓" : " ↑") : "")));
    const body = rows.map((row) => columns.map(([name]) => {
      if (name === "kept") return row.kept ? el("a", { href: linked({ group: row.key }, ["run"]) }, "open") : "";
      return el("td", { class: NUMBERS.has(name) ? "number" : "" }, name === "cut" ? share(row[name]) : el("bdi", {}, figure(row[name])));
    }));
    fill(this.rows, table(head, body, { class: "groups" }), el("p", { class: "bar" },
      el("button", { disabled: offset === 0, onclick: () => this.turn(offset - LIMIT) }, "‹ before"),
      el("span", {}, total ? `${figure(offset + 1)} to ${figure(Math.min(offset + LIMIT, total))} of ${figure(total)}` : "none"),
      el("button", { disabled: offset + LIMIT >= total, onclick: () => this.turn(offset + LIMIT) }, "next ›")));
    this.rows.querySelectorAll("tbody tr").forEach((line, i) => {
      if (rows[i].kept) line.addEventListener("click", () => this.open(i));
      line.classList.toggle("kept", rows[i].kept);
    });
    this.choose(0);
  }

  turn(offset) {
    note({ offset: offset > 0 ? offset : null });
    return this.load();
  }

  choose(by) {
    const lines = [...this.rows.querySelectorAll("tbody tr")];
    if (!lines.length) return;
    this.chosen = Math.max(0, Math.min(lines.length - 1, this.chosen + by));
    lines.forEach((line, i) => line.classList.toggle("chosen", i === this.chosen));
    if (by) lines[this.chosen].scrollIntoView({ block: "nearest" });
  }

  open(i = this.chosen) {
    const row = this.page?.rows[i];
    if (row?.kept) go({ group: row.key }, ["run"]);
  }
}
