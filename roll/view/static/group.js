// A group side by side: the prompt, and each response with its reward, how it ended, its turns and its tokens.

import { duration, el, figure, fill, table } from "./dom.js";
import { listed } from "./groups.js";
import { go, link, linked, note } from "./link.js";
import { ask } from "./source.js";
import { MODES, Tokens, largest, legend } from "./tokens.js";

const SHORT = 4000;

export class Group {
  constructor(run) {
    this.run = run;
    this.pointed = el("div", { class: "pointed", role: "status" });
    this.strips = [];
    this.mode = el("select", { "aria-label": "colour of tokens", onchange: () => { note({ colour: this.mode.value }); this.colour(); } }, Object.entries(MODES).map(([name, label]) => el("option", { value: name }, `colour: ${label}`)));
    this.legend = el("span", { class: "legend" });
    this.elsewhere = el("div", {});
    this.node = el("section", { id: "group" });
  }

  async load() {
    const key = link().get("group");
    const back = el("a", { href: linked({}, ["run"]) + "&section=groups" }, "‹ all groups");
    let group;
    try {
      group = await ask("group", { run: this.run, key });
    } catch (error) {
      return fill(this.node, back, el("p", { class: "bad" }, error.message));
    }
    this.mode.value = link().get("colour") ?? "version";
    const facts = [["step", group.step], ["group", group.group_id], ["status", group.status + (group.reason ? `: ${group.reason}` : "")], ["domain", group.domain], ["prompt", group.uid], ["rollouts", group.rollouts]];
    this.strips = [];
    this.images = group.images;
    this.last = null;
    this.scale = largest(group.samples);
    fill(this.node,
      el("p", { class: "bar" }, back, el("button", { title: "[", onclick: () => this.step(-1) }, "‹ group"), el("button", { title: "]", onclick: () => this.step(1) }, "group ›"), this.mode, this.legend),
      el("p", {}, facts.map(([label, value]) => el("span", { class: "tag" }, `${label} `, el("bdi", {}, figure(value))))),
      group.phases.length > 0 && el("p", { class: "soft" }, group.phases.map(([what, at], i) => `${what} ${duration((group.phases[i + 1]?.[1] ?? at) - at)}`).slice(0, -1).join(", ")),
      el("h3", {}, "Prompt"), long(group.prompt, group.images), group.ground_truth && [el("h3", {}, "Ground truth"), long(group.ground_truth)],
      group.samples.length < group.count && el("p", { class: "soft" }, `the first ${group.samples.length} of ${group.count}`),
      el("div", { class: "samples" }, group.samples.map((sample, i) => this.sample(sample, i))), this.pointed, el("h3", {}, "The same prompt elsewhere"), this.elsewhere);
    this.all = group.samples.map((sample) => sample.tokens);
    this.colour();
    this.node.querySelector(".marked")?.scrollIntoView({ block: "center" });
    this.findElsewhere(group);
  }

  sample(sample, i) {
    const marked = link().get("sample") === String(i) ? Number(link().get("token") ?? -1) : -1;
    const strip = new Tokens(sample, this.scale, (token) => this.point(i, token), marked >= 0 ? marked : null);
    this.strips.push(strip);
    const parts = Object.entries(sample.reward_parts).map(([name, value]) => el("span", { class: "tag" }, el("bdi", {}, name), ` ${figure(value)}`));
    return el("article", {},
      el("header", {}, el("b", {}, sample.turn === null ? `${sample.index ?? i}` : `${sample.index ?? i}, turn ${sample.turn + 1} of ${sample.num_turns}`), el("span", { class: "reward" }, `reward ${figure(sample.reward)}`), el("span", { class: "soft" }, el("bdi", {}, sample.finish_reason), `, ${figure(sample.tokens.ids.length)} tokens`, sample.advantage !== null && `, advantage ${figure(sample.advantage)}`)),
      parts.length > 0 && el("p", {}, parts),
      sample.prompt !== undefined && [el("h4", {}, "Prompt of this turn"), long(sample.prompt, this.images)],
      sample.turns.length > 0 && el("ol", { class: "turns" }, sample.turns.map((one) => turn(one, this.images))),
      el("h4", {}, "Tokens"), strip.holder,
      el("details", {}, el("summary", {}, "Response as text"), long(sample.response)));
  }

  point(i, token) {
    if (token === null) return;
    this.last = [i, token];
    const figures = [["rollout", i], ["token", token.i], ["id", token.id], ["version", token.version], ["engine", token.engine], ["log-prob", token.logprob], ["trainer", token.trainer], ["trainer / engine", token.ratio], ["advantage", token.advantage], ["trained", token.own ? "yes" : "no"]];
    fill(this.pointed, el("code", {}, el("bdi", {}, JSON.stringify(token.text))), figures.map(([label, value]) => el("span", {}, `${label} `, el("b", {}, figure(value)))), el("a", { href: linked({ sample: i, token: token.i }) }, "link"));
  }

  colour() {
    for (const strip of this.strips) strip.colour(this.mode.value);
    if (this.last) this.point(...this.last);
    fill(this.legend, legend(this.mode.value, this.all, this.scale).map(([label, tone]) => {
      const mark = el("i");
      mark.style.background = tone;
      return el("span", {}, mark, label);
    }));
  }

  async findElsewhere(group) {
    const runs = (await ask("runs")).slice(0, 8).map((run) => run.name);
    const { places, total } = await ask("prompt", { uid: group.uid, run: [...new Set([this.run, ...runs])].slice(0, 8) });
    const others = places.filter((place) => place.run !== this.run || place.key !== group.key);
    fill(this.elsewhere, others.length === 0 ? el("p", { class: "soft" }, "Its text was written down here alone.") : table(["run", "step", "status", "reward", "length", ""], others.map((place) => [el("bdi", {}, place.run), figure(place.step), place.status, figure(place.reward), figure(place.length), el("a", { href: linked({ run: place.run, group: place.key }, []) }, "open")])), total > places.length && el("p", { class: "soft" }, `${figure(total)} in all`));
  }

  // To the next or previous one of the table that was open last.
  step(by) {
    const at = listed.keys.indexOf(link().get("group"));
    const next = listed.run === this.run && at >= 0 ? listed.keys[at + by] : undefined;
    if (next !== undefined) go({ group: next, sample: null, token: null });
  }
}

function turn(one, images) {
  return el("li", {}, el("pre", { class: "soft" }, el("bdi", {}, seen(one.observation, images))), el("pre", {}, el("bdi", {}, one.action)), el("p", {}, el("span", { class: "tag" }, `reward ${figure(one.reward)}`), el("span", { class: "tag" }, `${figure(one.tokens)} tokens`), !one.valid && el("span", { class: "tag bad" }, "not valid"), one.valid && !one.effective && el("span", { class: "tag warn" }, "without effect")), one.exchange && exchange(one.exchange));
}

// What a program sent for the answer, and what it was sent.
function exchange({ path, repeats, request, answer }) {
  return el("details", { class: "exchange" }, el("summary", {}, "request ", el("code", {}, el("bdi", {}, path))), repeats && el("p", { class: "soft" }, el("bdi", {}, repeats)), el("h4", {}, "Sent"), long(request), el("h4", {}, "Answered"), long(answer));
}

// A text with thumbnails in the place of the images that it names; those that are not there stay names.
function seen(text, images = {}) {
  const show = (name) => (Object.hasOwn(images, name) ? el("img", { src: images[name], alt: name, title: name }) : `⟦image ${name}⟧`);
  return text.split(/⟦image ([0-9a-f]{64}\.(?:png|jpg|webp))⟧/).map((piece, i) => (i % 2 ? show(piece) : piece));
}

// A text that may be huge: its beginning, and the rest when it is asked for.
function long(text, images) {
  const body = el("bdi", {}, seen(text.slice(0, SHORT), images));
  const rest = text.length - SHORT;
  return el("div", {}, el("pre", {}, body), rest > 0 && el("button", { onclick: (event) => { fill(body, seen(text, images)); event.target.remove(); } }, `${figure(rest)} more characters`));
}
