// The tokens of a response, coloured by what is known of each; the pointer shows the figures.

import { colour, el, figure, fill } from "./dom.js";

const AT_ONCE = 2000;
export const MODES = { none: "plain text", version: "policy version", logprob: "log-prob of the engine", ratio: "trainer / engine", advantage: "advantage", mask: "loss mask" };

export class Tokens {
  // `show` is told about the token under the pointer, null where there is none. `scale`: the largest advantage of the group.
  constructor({ tokens, advantage }, scale, show, marked) {
    Object.assign(this, { tokens, advantage, scale, show, marked });
    this.versions = versionsOf(tokens);
    this.node = el("div", { class: "tokens", onpointerover: (event) => this.point(event), onclick: (event) => this.point(event), onpointerleave: () => show(null) });
    this.more = el("button", { onclick: () => this.grow() });
    this.holder = el("div", {}, this.node, this.more);
    this.count = 0;
    this.mode = "none";
    this.grow();
    while (marked !== null && this.count <= marked && this.count < tokens.ids.length) this.grow();
  }

  grow() {
    const stop = Math.min(this.count + AT_ONCE, this.tokens.ids.length);
    for (let i = this.count; i < stop; i++) {
      const piece = this.tokens.text[i] ?? "";
      const one = el("span", { data: { i }, class: i === this.marked ? "marked" : "" }, piece.includes("\n") ? piece.replaceAll("\n", "↵\n") : piece || "·");
      this.paint(one, i);
      this.node.append(one);
    }
    this.count = stop;
    const left = this.tokens.ids.length - stop;
    fill(this.more, `${figure(left)} more tokens`);
    this.more.hidden = left === 0;
  }

  colour(mode) {
    this.mode = mode;
    for (const one of this.node.children) this.paint(one, Number(one.dataset.i));
  }

  paint(node, i) {
    node.style.background = background(this.mode, this.figures(i), this.scale);
    node.classList.toggle("not", this.mode === "mask" && this.tokens.mask.length > 0 && !this.tokens.mask[i]);
  }

  point(event) {
    const i = event.target.dataset?.i;
    if (i !== undefined) this.show({ i: Number(i), text: this.tokens.text[i], id: this.tokens.ids[i], ...this.figures(Number(i)) });
  }

  figures(i) {
    const engine = this.tokens.logprobs[i] ?? null, trainer = this.tokens.trainer[i] ?? null;
    const own = this.tokens.mask.length ? this.tokens.mask[i] : true;
    const advantage = this.tokens.advantages.length ? this.tokens.advantages[i] : this.advantage;
    return { version: this.versions[i]?.[0] ?? null, engine: this.versions[i]?.[1] ?? null, logprob: own ? engine : null, trainer: own ? trainer : null, ratio: own && engine !== null && trainer !== null ? Math.exp(trainer - engine) : null, advantage: own ? advantage ?? null : null, own };
  }
}

// The versions that occur, and what stands for each kind of colour.
export function legend(mode, all, scale) {
  if (mode === "version") {
    const versions = [...new Set(all.flatMap((tokens) => tokens.versions.map((span) => span[2])))].sort((a, b) => a - b);
    return versions.map((version) => ["version " + version, `${colour(version)}66`]);
  }
  if (mode === "logprob") return [0, -1, -3, -6].map((logprob) => [`log-prob ${logprob}`, background(mode, { logprob })]);
  if (mode === "ratio") return [0.5, 0.8, 1, 1.25, 2].map((ratio) => [`ratio ${ratio}`, background(mode, { ratio })]);
  if (mode === "advantage") return scale ? [-1, -0.5, 0, 0.5, 1].map((part) => [`advantage ${figure(part * scale)}`, background(mode, { advantage: part * scale }, scale)]) : [["every advantage is 0, or none was written down", "transparent"]];
  if (mode === "mask") return [["trained", background(mode, { own: true })], ["not trained: an environment's, or masked", "transparent"]];
  return [];
}

// The largest advantage of some rollouts, of either sign; 0 if none is known.
export function largest(samples) {
  let most = 0;
  for (const { advantage, tokens } of samples) for (const one of [advantage, ...tokens.advantages]) most = Math.max(most, Math.abs(one ?? 0));
  return most;
}

// The sign is a hue, the size its strength; from 1 on it is full.
function signed(part, down, up) {
  return `rgba(${part < 0 ? down : up}, ${(Math.min(1, Math.abs(part)) * 0.8).toFixed(3)})`;
}

function background(mode, { version, logprob, ratio, advantage, own }, scale) {
  if (mode === "version" && version !== null && version !== undefined) return `${colour(version)}66`;
  if (mode === "logprob" && logprob !== null && logprob !== undefined) return `rgba(217, 116, 43, ${Math.min(0.85, -logprob / 7).toFixed(3)})`;
  if (mode === "ratio" && ratio !== null && ratio !== undefined) return signed(Math.log2(ratio), "47, 111, 208", "208, 58, 47");
  if (mode === "advantage" && scale && advantage !== null && advantage !== undefined) return signed(advantage / scale, "208, 58, 47", "46, 139, 87");
  return mode === "mask" && own ? "rgba(46, 139, 87, 0.25)" : "transparent";
}

function versionsOf({ ids, versions }) {
  const found = new Array(ids.length);
  for (const [start, stop, version, engine] of versions) for (let i = Math.max(0, start); i < Math.min(stop, ids.length); i++) found[i] = [version, engine ?? null];
  return found;
}
