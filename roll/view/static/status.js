// How the run is doing: state, step, staleness, who waits for what, and what somebody should know.

import { duration, el, figure, fill, share, table } from "./dom.js";
import { linked } from "./link.js";

const LEVELS = { error: "bad", warning: "warn", advice: "" };
const GRAVE = { failed: "bad", crashed: "bad", silent: "warn", interrupted: "warn", unknown: "warn" };

export class Status {
  // `runs`: the names of all that the page shows.
  constructor(run, runs) {
    Object.assign(this, { run, runs });
    this.node = el("section", { id: "status" });
  }

  update(status) {
    const left = status.left_s === null ? "" : `, ${duration(status.left_s)} left`;
    const of = status.max_steps === null ? "" : ` of ${figure(status.max_steps)}`;
    const facts = [
      ["step", `${figure(status.step)}${of}`, `${duration(status.elapsed_s)}${left}`],
      ["reward", figure(status.reward), "mean of the last step"],
      ["validation", figure(status.validation), "the last one"],
      ["staleness", `${figure(status.staleness)} / ${figure(status.bound)}`, "versions, now and bound"],
      ...Object.entries(status.idle).map(([role, idle]) => [`${role} idle`, share(idle), "of the run"]),
    ];
    fill(this.node,
      el("p", { class: "state" }, el("strong", { class: GRAVE[status.state] ?? "good" }, status.state), status.reason && el("bdi", {}, ` ${status.reason}`)),
      el("div", { class: "facts" }, facts.map(([label, value, note]) => el("div", {}, el("span", { class: "soft" }, label), el("b", {}, value), el("span", { class: "soft" }, note)))),
      status.events.length > 0 && el("ul", { class: "events" }, status.events.map((event) => el("li", { class: LEVELS[event.level] }, el("bdi", {}, event.text)))),
      status.roles.length > 0 && table(["who", "does", "for", "waits for"], status.roles.map((role) => [role.name, role.state, duration(role.since_s), el("bdi", {}, role.reason ?? "")])),
      status.members.length > 0 && this.members(status.members));
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
