// How the run is doing: state, step, staleness, who waits for what, and what somebody should know.

import { duration, el, figure, fill, share, table } from "./dom.js";

const GRAVE = { failed: "bad", crashed: "bad", silent: "warn", interrupted: "warn", unknown: "warn" };

export class Status {
  constructor() {
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
      status.events.length > 0 && el("ul", { class: "events" }, status.events.map((event) => el("li", { class: event.level === "error" ? "bad" : "warn" }, el("bdi", {}, event.text)))),
      status.roles.length > 0 && table(["who", "does", "for", "waits for"], status.roles.map((role) => [role.name, role.state, duration(role.since_s), el("bdi", {}, role.reason ?? "")])));
  }
}
