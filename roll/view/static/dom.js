// Elements, and how values are written. Text is only ever set as text: no string becomes markup anywhere.

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function table(head, rows, props = {}) {
  const cells = (row, tag) => el("tr", {}, row.map((cell) => (cell instanceof Node && /^T[HD]$/.test(cell.nodeName) ? cell : el(tag, {}, cell ?? ""))));
  return el("div", { class: "scroll" }, el("table", props, el("thead", {}, cells(head, "th")), el("tbody", {}, rows.map((row) => cells(row, "td")))));
}

export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e6 || (size < 1e-3 && size > 0) ? value.toExponential(2) : Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });
}

export function share(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(0)} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

export function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The n-th colour of lines, runs and versions.
export function colour(n) {
  return style(`--line-${n % 8}`);
}

// The browser may show what there is, and hear the reader, before work goes on.
export function breath() {
  return new Promise((resume) => setTimeout(resume));
}
