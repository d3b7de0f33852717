// Times, sizes and the scale of the timeline. Pure functions, without a page: tests run them in Node.js.

const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600,
  7200, 14400, 28800, 43200, 86400, 172800, 604800];
const WAITS = new Set(["person", "external", "request"]);
const LEAST_GAP_SHARE = 0.3; // of the time in which something happens: a longer pause is shortened
const GAP_SHARE = 0.08; // of that time: the width of a shortened pause

export function duration(seconds) {
  if (seconds == null || !isFinite(seconds)) return "";
  const s = Math.max(0, seconds);
  if (s < 0.0005) return "0 ms";
  if (s < 1) return `${s < 0.01 ? (s * 1000).toFixed(1) : Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(2)} s`;
  if (s < 60) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export function short(seconds) {
  // The label of a tick: an exact number, in the largest unit that it has.
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]])
    if (seconds >= size) return `${+(seconds / size).toFixed(3)} ${unit}`;
  return seconds === 0 ? "0" : `${+(seconds * 1000).toFixed(3)} ms`;
}

export function count(number) {
  if (number == null) return "";
  if (number < 10000) return number.toLocaleString("en");
  const [size, unit] = number < 1e6 ? [1e3, "k"] : number < 1e9 ? [1e6, "M"] : [1e9, "G"];
  return `${+(number / size).toPrecision(3)}${unit}`;
}

export function money(cost) {
  return cost == null ? "" : cost === 0 ? "0" : cost < 0.01 ? cost.toFixed(5) : cost.toFixed(3);
}

// The scale of a timeline: `x(time)` is between 0 and 1. Long pauses, in which somebody only waits, are shortened unless
// `whole` is true: they are the `gaps`.
export function scale(rows, now, whole = false) {
  const segments = rows.flatMap((row) => row.segments);
  if (!segments.length) return { x: () => 0, gaps: [], ticks: [], from: now, to: now };
  const from = Math.min(...segments.map((each) => each[1]));
  const to = Math.max(from + 0.001, ...segments.map((each) => each[2] ?? now));
  const busy = merged(segments.filter((each) => !WAITS.has(each[0])).map((each) => [each[1], each[2] ?? now]));
  const active = busy.reduce((sum, [a, b]) => sum + b - a, 0);
  const gaps = [];
  if (!whole && active > 0) {
    let end = from;
    for (const [a, b] of [...busy, [to, to]]) {
      if (a - end > LEAST_GAP_SHARE * active) gaps.push([end, a]);
      end = Math.max(end, b);
    }
  }
  const width = GAP_SHARE * active;
  const cut = (t) => gaps.reduce((sum, [a, b]) => {
    if (t <= a) return sum;
    const share = Math.min(1, (t - a) / (b - a));
    return sum + share * (b - a - width);
  }, 0);
  const span = to - from - cut(to);
  const x = (t) => Math.min(1, Math.max(0, (t - from - cut(t)) / span));
  return { x, gaps, from, to, ticks: ticks(from, to, span, x, gaps) };
}

function merged(intervals) {
  const found = [];
  for (const [a, b] of intervals.sort((one, other) => one[0] - other[0])) {
    const last = found[found.length - 1];
    if (last && a <= last[1]) last[1] = Math.max(last[1], b);
    else found.push([a, b]);
  }
  return found;
}

function ticks(from, to, span, x, gaps) {
  const step = STEPS.find((each) => span / each <= 7) ?? 2 * STEPS[STEPS.length - 1];
  const found = [];
  let last = -1;
  // At most a few thousand: what is outside of gaps is at most 7 steps.
  for (let n = 0; n * step <= to - from && found.length < 12; n++) {
    const t = from + n * step;
    const gap = gaps.find(([a, b]) => t > a && t < b);
    if (gap) { n = Math.ceil((gap[1] - from) / step) - 1; continue; }
    const at = x(t);
    if (at - last > 0.09 && at < 0.97) { found.push({ at, text: short(n * step) }); last = at; }
  }
  return found;
}

// Server-sent events: takes pieces of text, and calls `take(event, data)` for each whole event.
export function parser(take) {
  let rest = "";
  return (piece) => {
    rest += piece;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const block = rest.slice(0, end);
      rest = rest.slice(end + 2);
      let event = "message", data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) take(event, data);
    }
  };
}

// What the address says after its #: which request is shown, and how.
export function route(hash) {
  const [, page, id, tab] = hash.replace(/^#/, "").split("/");
  if (page !== "requests" || !id) return { id: "", tab: "" };
  let decoded = id;
  try { decoded = decodeURIComponent(id); } catch { /* The address was edited by hand. */ }
  return { id: decoded, tab: ["transcript", "events"].includes(tab) ? tab : "timeline" };
}

export const address = (id, tab = "timeline") => `#/requests/${encodeURIComponent(id)}/${tab}`;

// The rows of the list that are wanted: those in a state of the group, with the words in their prompt, ids or models.
export function wanted(requests, group, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return requests.filter((each) => {
    if (group !== "all" && groupOf(each.state) !== group) return false;
    const text = `${each.prompt} ${each.request_id} ${each.conversation_id} ${each.models.join(" ")} ${each.state}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

export function groupOf(state) {
  if (state === "running" || state === "elsewhere" || state === "released") return "running";
  if (state === "waiting") return "waiting";
  return state === "completed" ? "completed" : "failed";
}
