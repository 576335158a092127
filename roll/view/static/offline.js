// A report's answers: what the server would say, from the data that the report was written with.

export function offline(data, what, params) {
  const found = ANSWERS[what](data, params);
  if (found === undefined) throw new Error("The report does not hold this: roll ui shows it from the run's folder.");
  return found;
}

const ANSWERS = {
  runs: (data) => data.runs,
  status: (data, { run }) => data.status[run],
  newest: (data, { run }) => data.newest[run],
  clock: (data, { run }) => data.clock[run],
  funnel: (data, { run }) => data.funnel[run],
  compare: (data) => data.compare,
  weighed: (data) => data.weighed,
  group: (data, { run, key }) => data.group[run][key],
  curves: (data, { run, name = Object.keys(data.curves[run]), since = -1 }) =>
    Object.fromEntries([name].flat().map((one) => [one, after(data.curves[run][one] ?? { steps: [], values: [] }, since)])),
  prompt: (data, { uid, run }) => {
    const places = [run].flat().flatMap((name) =>
      Object.values(data.group[name]).filter((group) => promptOf(group.uid) === promptOf(uid))
        .map((group) => ({ run: name, key: group.key, step: group.step, status: group.status, ...means(group) })));
    return { prompt: promptOf(uid), total: places.length, places };
  },
  groups: (data, params) => selected(data.groups[params.run], params),
  lanes: (data, params) => part(data.lanes[params.run], params),
};

function after(curve, since) {
  const at = curve.steps.findIndex((step) => step > since);
  return at < 0 ? { steps: [], values: [] } : { steps: curve.steps.slice(at), values: curve.values.slice(at) };
}

function promptOf(uid) {
  const parts = uid.split("/");
  return parts.length > 2 && /^\d+$/.test(parts[1]) ? [parts[0], ...parts.slice(2)].join("/") : uid;
}

function means(group) {
  const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
  return { reward: mean(group.samples.filter((one) => !one.turn).map((one) => one.reward).filter((one) => one !== null)), length: mean(group.samples.map((one) => one.tokens.ids.length)) };
}

function selected({ rows, domains, explorers }, params) {
  const number = (name) => (params[name] === undefined || params[name] === "" ? null : Number(params[name]));
  const [from, to, low, high] = ["step_from", "step_to", "reward_from", "reward_to"].map(number);
  const same = (row, name) => !params[name] || row[name] === params[name];
  const wide = rows.filter((row) => (from === null || row.step >= from) && (to === null || row.step <= to) && ["domain", "status", "reason", "explorer"].every((name) => same(row, name))
    && (!params.prompt || row.uid.includes(params.prompt)) && (!params.kept || row.kept));
  const found = wide.filter((row) => (low === null || (row.reward !== null && row.reward >= low)) && (high === null || (row.reward !== null && row.reward <= high)));
  const by = params.sort || "step";
  const way = params.descending ? -1 : 1;
  const none = (row) => row[by] === null;
  found.sort((a, b) => none(a) - none(b) || way * ((a[by] > b[by]) - (a[by] < b[by])));
  const offset = Number(params.offset || 0);
  return { total: found.length, rows: found.slice(offset, offset + Number(params.limit || 50)), domains, explorers, histogram: histogram(wide.map((row) => row.reward).filter((one) => one !== null)) };
}

function histogram(rewards, bins = 20) {
  const counts = new Map();
  for (const one of rewards) counts.set(one, (counts.get(one) ?? 0) + 1);
  if (counts.size <= bins) return [...counts.entries()].sort((a, b) => a[0] - b[0]).map(([value, count]) => [value, value, count]);
  let low = Infinity, high = -Infinity;
  for (const one of rewards) [low, high] = [Math.min(low, one), Math.max(high, one)];
  const width = (high - low) / bins;
  const found = Array.from({ length: bins }, (_, i) => [low + i * width, low + (i + 1) * width, 0]);
  for (const one of rewards) found[Math.min(Math.floor((one - low) / width), bins - 1)][2] += 1;
  return found;
}

function part(picture, params) {
  const from = Math.max(picture.first, Number(params.from ?? picture.first));
  const to = Math.min(picture.last, Number(params.to ?? picture.last));
  const rows = picture.rows.map((row) => {
    const spans = row.spans.filter(([begin, end]) => begin < to && end >= from);
    const seconds = {};
    for (const [begin, end, what] of spans) {
      const kind = what.replace(/\d+/g, "#");
      seconds[kind] = (seconds[kind] ?? 0) + Math.min(end, to) - Math.max(begin, from);
    }
    return { name: row.name, spans, seconds };
  });
  return { ...picture, from, to, rows };
}
