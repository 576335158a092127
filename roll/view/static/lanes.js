// Time: which stage, role and update did what when. The server sends what a picture of this width can show; a click says more.

import { colour, duration, el, figure, fill, share, style, table } from "./dom.js";
import { link, note } from "./link.js";
import { ask } from "./source.js";

const ROW = 20, LABELS = 156, AXIS = 18, MARK = 110;
const STATES = { busy: "--good", idle: "--rule", done: "--rule", "waiting for input": "--input", "waiting for output": "--output", "waiting for a device": "--bad" };

export class Lanes {
  constructor(run) {
    this.run = run;
    this.canvas = el("canvas", { tabindex: 0, "aria-label": "lanes of stages over time; arrow keys move, + and - zoom" });
    this.details = el("div", { class: "details" });
    this.idle = el("div", {});
    const button = (text, title, act) => el("button", { title, onclick: act }, text);
    this.node = el("section", { id: "time" }, el("h2", {}, "Time"), el("p", { class: "bar" },
      button("+", "zoom in", () => this.zoom(0.5)), button("−", "zoom out", () => this.zoom(2)), button("all", "the whole run", () => this.move(null, null)),
      el("span", { class: "soft" }, "wheel to zoom, drag to move, click a span to see what was waited for"), this.legend()), this.canvas, this.details, this.idle);
    this.listen();
  }

  begin() {
    new ResizeObserver(() => this.load()).observe(this.node);
  }

  legend() {
    return el("span", { class: "legend" }, Object.entries(STATES).map(([name, tone]) => {
      const mark = el("i");
      mark.style.background = `var(${tone})`;
      return el("span", {}, mark, name);
    }));
  }

  async load() {
    const width = Math.max(50, this.node.clientWidth - LABELS);
    const asked = [width, link().get("from"), link().get("to")].join();
    this.latest = asked;
    const picture = await ask("lanes", { run: this.run, from: link().get("from"), to: link().get("to"), width });
    if (this.latest !== asked) return;
    this.picture = picture;
    this.view = [picture.from, picture.to];
    fill(this.idle, picture.rows.length > 0 && this.shares(picture));
    this.draw();
  }

  shares({ rows }) {
    const busy = rows.filter((row) => "busy" in row.seconds);
    return el("details", {}, el("summary", {}, "Idle shares in what is shown"), table(["who", "idle", "busy", "waits for input", "for output", "for a device"], busy.map((row) => {
      const all = Object.values(row.seconds).reduce((a, b) => a + b, 0);
      const of = (state) => share((row.seconds[state] ?? 0) / all);
      return [row.name, share(1 - row.seconds.busy / all), of("busy"), of("waiting for input"), of("waiting for output"), of("waiting for a device")];
    })));
  }

  draw() {
    const { canvas, picture } = this;
    if (!picture) return;
    const width = this.node.clientWidth, height = AXIS + ROW * picture.rows.length, ratio = devicePixelRatio;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const at = canvas.getContext("2d");
    at.scale(ratio, ratio);
    at.font = "11px system-ui";
    at.textBaseline = "middle";
    const [from, to] = this.view, scale = (width - LABELS) / (to - from), tones = new Map();
    picture.rows.forEach((row, i) => {
      const y = AXIS + i * ROW;
      at.fillStyle = style("--ink");
      at.fillText(row.name.slice(0, 26), 0, y + ROW / 2);
      for (const [begin, end, what] of row.spans) {
        const left = Math.max(LABELS, LABELS + (begin - from) * scale), right = Math.min(width, LABELS + (end - from) * scale);
        if (right < LABELS || left > width) continue;
        if (!tones.has(what)) tones.set(what, tone(what));
        at.fillStyle = tones.get(what);
        at.fillRect(left, y + 2, Math.max(right - left, 0.7), ROW - 4);
        if (right - left > 60 && !(what in STATES)) {
          at.fillStyle = "#fff";
          at.fillText(what.slice(0, Math.floor((right - left) / 7)), left + 3, y + ROW / 2);
        }
      }
    });
    at.fillStyle = style("--soft");
    const parts = Math.max(1, Math.min(4, Math.floor((width - LABELS) / MARK)));
    for (let i = 0; i <= parts; i++) {
      at.textAlign = i === parts ? "right" : "left";
      at.fillText(duration(from + ((to - from) * i) / parts - picture.first), LABELS + ((width - LABELS) * i) / parts, AXIS / 2);
    }
  }

  listen() {
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); if (this.view) this.zoom(event.deltaY > 0 ? 1.3 : 1 / 1.3, this.timeAt(event)); }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { if (!this.view) return; held = { x: event.clientX, view: this.view, moved: false }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (!held || Math.abs(event.clientX - held.x) < 4 && !held.moved) return;
      held.moved = true;
      const shift = ((held.x - event.clientX) * (held.view[1] - held.view[0])) / (this.node.clientWidth - LABELS);
      this.move(held.view[0] + shift, held.view[1] + shift);
    });
    canvas.addEventListener("pointerup", (event) => { if (held && !held.moved) this.pick(event); held = null; });
    canvas.addEventListener("keydown", (event) => {
      const act = { "+": () => this.zoom(0.5), "-": () => this.zoom(2), ArrowLeft: () => this.shift(-0.25), ArrowRight: () => this.shift(0.25) }[event.key];
      if (act) { event.preventDefault(); event.stopPropagation(); act(); }
    });
  }

  timeAt(event) {
    const [from, to] = this.view;
    return from + ((event.offsetX - LABELS) / (this.node.clientWidth - LABELS)) * (to - from);
  }

  zoom(factor, around = this.view && (this.view[0] + this.view[1]) / 2) {
    if (!this.view) return; // nothing is drawn yet
    this.move(around + (this.view[0] - around) * factor, around + (this.view[1] - around) * factor);
  }

  shift(part) {
    if (!this.view) return;
    const by = part * (this.view[1] - this.view[0]);
    this.move(this.view[0] + by, this.view[1] + by);
  }

  // The old picture moves at once; the one of the new detail comes when the hand rests.
  move(from, to) {
    if (from !== null) {
      from = Math.max(from, this.picture.first);
      to = Math.min(to, this.picture.last);
      if (to - from < 1e-5) return;
      this.view = [from, to];
      requestAnimationFrame(() => this.draw());
    }
    note({ from: from?.toFixed(6) ?? null, to: to?.toFixed(6) ?? null });
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.load(), 120);
  }

  async pick(event) {
    const row = this.picture.rows[Math.floor((event.offsetY - AXIS) / ROW)], time = this.timeAt(event);
    const near = ((this.view[1] - this.view[0]) / this.node.clientWidth) * 2;
    const span = row?.spans.find(([begin, end]) => begin - near <= time && time <= end + near);
    if (!span) return fill(this.details);
    const [begin, end, what, count, known] = span;
    const then = await ask("lanes", { run: this.run, from: begin, to: Math.max(end, begin + 1e-5), width: 10 });
    const others = then.rows.filter((one) => one.name !== row.name).map((one) => [one.name, Object.entries(one.seconds).sort((a, b) => b[1] - a[1])]).filter(([, seconds]) => seconds.length);
    fill(this.details, el("p", {}, el("b", {}, row.name), ` ${what}${count > 1 ? ` (the most of ${figure(count)} short spans)` : ""}, ${duration(end - begin)}, from ${duration(begin - this.picture.first)} on`),
      known && el("p", {}, Object.entries(known).map(([name, value]) => el("span", { class: "tag" }, `${name}: `, el("bdi", {}, figure(value))))),
      el("p", { class: "soft" }, "What the others did meanwhile:"),
      table(["who", "mostly", "time", "besides"], others.map(([name, seconds]) => [name, seconds[0][0], duration(seconds[0][1]), seconds.slice(1, 4).map(([kind, took]) => `${kind} ${duration(took)}`).join(", ")])));
  }
}

function tone(what) {
  if (what in STATES) return style(STATES[what]);
  let sum = 0;
  for (const letter of what.replace(/\d+/g, "")) sum = (sum * 31 + letter.codePointAt(0)) % 997;
  return colour(sum);
}
