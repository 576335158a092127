// How the run is doing: state, step, staleness, who waits for what, and what somebody should know.

import { duration, el, figure, fill, share, table } from "./dom.js";
import { linked } from "./link.js";
import { ask } from "./source.js";

const LEVELS = { error: "bad", warning: "warn", advice: "", good: "good" };
const GRAVE = { failed: "bad", crashed: "bad", silent: "warn", interrupted: "warn", unknown: "warn" };

export class Status {
  // `runs`: the names of all that the page shows.
  constructor(run, runs) {
    Object.assign(this, { run, runs });
    this.node = el("section", { id: "status" });
    this.newest = el("div", { class: "newest" });
  }

  // The rollout that was written down last, with what was asked.
  async load() {
    const found = await ask("newest", { run: this.run });
    if (!found) return;
    const { key, step, status, reason, prompt, ground_truth, sample } = found;
    const said = sample.turns.length ? sample.turns.flatMap((turn, i) => [i > 0 && ["saw", turn.observation], ["did", turn.action]]).filter(Boolean) : [["response", sample.response]];
    const texts = [["prompt", prompt], ground_truth && ["reference", ground_truth], ...said].filter(Boolean);
    fill(this.newest, el("h3", {}, "Newest rollout "), el("p", {}, el("span", { class: "tag" }, `step ${figure(step)}`), el("span", { class: "tag" }, el("bdi", {}, status + (reason ? `: ${reason}` : ""))), el("span", { class: "tag reward" }, `reward ${figure(sample.reward)}`), el("span", { class: "tag" }, "ended: ", el("bdi", {}, sample.finish_reason)), el("a", { href: linked({ group: key }, ["run"]) }, "its group")),
      el("dl", {}, texts.map(([label, text]) => [el("dt", {}, label), el("dd", {}, el("pre", {}, el("bdi", {}, text)))])));
  }

  update(status) {
    const left = status.left_s === null ? "" : `, ${duration(status.left_s)} left`;
    const of = status.max_steps === null ? "" : ` of ${figure(status.max_steps)}`;
    const facts = [
      ["step", `${figure(status.step)}${of}`, `${duration(status.elapsed_s)}${left}`],
      ["reward", figure(status.reward), "mean of the last step"],
      ["validation", figure(status.validation?.accuracy), told(status)],
      ["cut off by length", share(status.cut), "of the last step's responses"],
      ["staleness", `${figure(status.staleness)} / ${figure(status.bound)}`, "versions, now and bound"],
      ...Object.entries(status.idle).map(([role, idle]) => [`${role} idle`, share(idle), "of the run"]),
    ];
    fill(this.node,
      el("p", { class: "state" }, el("strong", { class: GRAVE[status.state] ?? LEVELS[status.verdict?.level] ?? "" }, status.state), status.reason && el("bdi", {}, ` ${status.reason}`)),
      status.verdict && el("p", { class: "verdict" }, el("b", { class: LEVELS[status.verdict.level] ?? "" }, status.verdict.kind), el("bdi", {}, `: ${status.verdict.text}`)),
      el("div", { class: "facts" }, facts.map(([label, value, note]) => el("div", {}, el("span", { class: "soft" }, label), el("b", {}, value), el("span", { class: "soft" }, note)))),
      this.newest,
      status.events.length > 0 && el("ul", { class: "events" }, status.events.map((event) => el("li", { class: LEVELS[event.level] }, el("bdi", {}, event.text)))),
      status.roles.length > 0 && table(["who", "does", "for", "waits for"], status.roles.map((role) => [role.name, role.state, duration(role.since_s), el("bdi", {}, role.reason ?? "")])),
      status.members.length > 0 && this.members(status.members),
      status.audits.length > 0 && audited(status.audits));
  }

  // Processes of their own: who explores how fast, with which version, and the way to what each does.
  members(all) {
    const page = (name) => [`${this.run}/explorers/${name}`, `explorers/${name}`].find((own) => this.runs.includes(own));
    return [el("h3", {}, "Who takes part"), table(["who", "is", "serves", "late", "devices", "groups", "groups/s", "tokens/s", "lag", "in flight", "buffered", "dropped", ""], all.map((one) => [
      el("bdi", {}, one.name), el("span", { class: one.state === "alive" ? "good" : one.state === "left" ? "" : "bad" }, one.state),
      ...(one.role === "trainer" ? ["", "", "", "trains"] : [figure(one.served), figure(one.late), figure(one.devices), el("a", { href: linked({ explorer: one.name, section: "groups" }, ["run"]) }, figure(one.groups)), figure(one.groups_per_s), figure(one.tokens_per_s), figure(one.lag), figure(one.in_flight), figure(one.buffered), figure(one.dropped),
        page(one.name) ? el("a", { href: linked({ run: page(one.name) }, []) }, "its page") : ""]),
    ])), el("p", { class: "soft" }, "rates are those of the last minute; late: versions behind the newest")];
  }
}

// What the environments or rewards paid before training (`roll env audit`).
function audited(all) {
  return [el("h3", {}, "Audited before"), table(["what", "tasks", "reference", "chance", "most without the task", "found"], all.map((one) => [
    el("bdi", {}, one.name), figure(one.tasks), figure(one.reference), figure(one.chance), el("bdi", {}, `${one.best} ${figure(one.pays)}`),
    el("bdi", { class: one.problems.length ? "bad" : one.changed.length || one.notes.length ? "warn" : "good" }, [...one.problems, ...one.changed.map((name) => `${name} has changed since`), ...one.notes].join("; ") || "nothing"),
  ]))];
}

// What stands beside an accuracy: the mean score, and what was not judged.
function told({ validation, left_s }) {
  if (!validation) return left_s === null ? "none" : "none yet";
  const { step, accuracy, score, errors, rollouts } = validation;
  return [`step ${figure(step)}`, score !== null && score !== accuracy && `score ${figure(score)}`, errors > 0 && `${figure(errors)}${rollouts ? ` of ${figure(rollouts)}` : ""} not judged`].filter(Boolean).join(", ");
}
