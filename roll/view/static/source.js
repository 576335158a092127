// Where answers come from: the server, or the data inside a report. Both answer the same questions.

import { offline } from "./offline.js";

const embedded = document.getElementById("data");
export const report = embedded ? JSON.parse(embedded.textContent) : null;

// Parameters whose value is a list are given several times; those without a value are left out.
export async function ask(what, params = {}) {
  if (report) return offline(report, what, params);
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of [value].flat()) if (one !== undefined && one !== null && one !== "") query.append(name, one);
  }
  const answer = await fetch(`/api/${what}?${query}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// Calls `take` with the status of a run, now and whenever it has changed. Returns what ends it.
export function watch(run, take, lost) {
  if (report) {
    take(report.status[run]);
    return () => {};
  }
  const events = new EventSource(`/api/stream?run=${encodeURIComponent(run)}`);
  events.onmessage = (event) => take(JSON.parse(event.data));
  events.addEventListener("gone", (event) => lost(JSON.parse(event.data)));
  events.onerror = () => lost("The server does not answer; the page tries again.");
  return () => events.close();
}
