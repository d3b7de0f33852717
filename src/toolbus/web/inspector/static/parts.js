// What the page draws. Every text is a text node, so nothing that a model or a tool has written becomes HTML.
import { h } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import htm from "htm";
import { address, count, duration, groupOf, money, scale, wanted } from "./time.js";

const html = htm.bind(h);
const GROUPS = [["all", "All"], ["running", "Running"], ["waiting", "Waiting"], ["completed", "Done"], ["failed", "Failed"]];
const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
// Characters that nobody sees are shown as escapes, as in a terminal: they can make arguments look different, and hide text.
const UNSEEN = /(?!\n)\p{C}|\p{Zl}|\p{Zp}|(?! )\p{Zs}|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\u{e0100}-\u{e01ef}]/gu;
const json = (value) => JSON.stringify(value, null, 2).replace(UNSEEN,
  (sign) => sign.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join(""));
const ago = (seconds) => duration(Math.max(1, Math.round(seconds))).replace(".00", "").replace(".0", "");
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

// Cards of the same tool need different names.
const place = (index, all) => (all.length > 1 ? `, ${index + 1} of ${all.length}` : "");

// Something that may disappear while it has the focus, which then goes to the request; otherwise it would be lost.
function Passing({ children }) {
  const around = useRef();
  useLayoutEffect(() => {
    const { current } = around;
    return () => { if (current.contains(document.activeElement)) document.getElementById("main").focus({ preventScroll: true }); };
  }, []);
  return html`<div class="passing" ref=${around}>${children}</div>`;
}

// The present time of the server, once a second while something goes on.
function useNow(offset, isOn) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!isOn) return undefined;
    const timer = setInterval(() => tick((n) => n + 1), 500);
    return () => clearInterval(timer);
  }, [isOn]);
  return Date.now() / 1000 + offset;
}

const Badge = ({ state }) => html`<span class=${`badge ${groupOf(state)} ${state}`}>${state}</span>`;

export function TokenForm({ wrong, onToken }) {
  const field = useRef();
  return html`<main class="token"><h1>toolbus inspector</h1>
    <form onSubmit=${(event) => { event.preventDefault(); if (field.current.value.trim()) onToken(field.current.value.trim()); }}>
      <p>${wrong ? "This token does not belong to this server. Perhaps the server was restarted." : "Open the address that the server has printed, or give its token."}</p>
      <label>Token <input ref=${field} type="password" autocomplete="off" required /></label>
      <button class="main">Open</button>
    </form></main>`;
}

export function Toast({ said, onClose }) {
  useEffect(() => {
    if (!said.text || said.bad) return undefined;
    const timer = setTimeout(onClose, 6000);
    return () => clearTimeout(timer);
  }, [said]);
  return html`<div class=${`toast ${said.bad ? "bad" : ""} ${said.text ? "" : "empty"}`}>
    <span role="status">${said.text}</span>
    ${said.text && html`<${Passing}><button class="quiet" onClick=${onClose}>Close</button><//>`}</div>`;
}

// ------------------------------------------------------------------------------------------------ the list

export function List({ overview, offset, problem, selected }) {
  const [group, setGroup] = useState("all");
  const [search, setSearch] = useState("");
  const requests = overview?.requests ?? [];
  const counts = { all: requests.length };
  for (const each of requests) counts[groupOf(each.state)] = (counts[groupOf(each.state)] ?? 0) + 1;
  const live = useNow(offset, requests.some((each) => !each.ended_at));
  const now = overview?.can_act === false ? overview.now : live; // A recording stands still.
  const shown = wanted(requests, group, search);
  return html`<nav class="list" aria-label="Requests">
    <header>
      <p class="title"><a href="#/">toolbus inspector</a></p>
      <p class=${problem ? "source bad" : "source"} role="status">${problem || (overview ? overview.source : "connecting …")}</p>
      <input type="search" aria-label="Search prompts, ids and models" placeholder="Search" value=${search} onInput=${(event) => setSearch(event.target.value)} />
      <div class="groups" role="group" aria-label="State">
        ${GROUPS.map(([name, text]) => html`<button aria-pressed=${String(group === name)} onClick=${() => setGroup(name)}>${text}${counts[name] ? html` <span class="number">${counts[name]}</span>` : ""}</button>`)}
      </div>
    </header>
    <ul>${shown.map((each) => html`<li key=${each.request_id}><${ListRow} each=${each} now=${each.ended_at ? 0 : now} isSelected=${each.request_id === selected} /></li>`)}</ul>
    ${overview && !shown.length && html`<p class="nothing">${requests.length ? "No request matches." : "No request yet. It appears here as soon as it begins."}</p>`}
  </nav>`;
}

function ListRow({ each, now, isSelected }) {
  const tokens = each.tokens.input + each.tokens.output;
  const facts = [plural(each.rounds, "round"), plural(each.tool_calls, "call"), tokens ? `${count(tokens)} tokens` : "", !each.cost ? "" : `cost ${money(each.cost)}`];
  return html`<a href=${address(each.request_id)} aria-current=${isSelected ? "true" : null}>
    <span class="prompt" dir="auto">${each.prompt || each.request_id}</span>
    <span class="line"><${Badge} state=${each.state} /><span class="facts">${facts.filter(Boolean).join(" · ")}</span>
      <time>${each.started_at == null ? "" : duration((each.ended_at ?? now) - each.started_at)}</time></span>
    ${each.state !== "completed" && each.doing && html`<span class="doing">${each.doing}</span>`}
  </a>`;
}

// -------------------------------------------------------------------------------------- without a selection

export function Overview({ overview }) {
  if (!overview) return html`<p class="nothing">Connecting …</p>`;
  const waiting = overview.requests.filter((each) => each.questions);
  return html`<section class="overview"><h1>${overview.source}</h1>
    ${waiting.length > 0 && html`<h2>Waits for a person</h2><ul class="cards">${waiting.map((each) => html`<li key=${each.request_id}>
      <a class="card ask" href=${address(each.request_id)}><strong dir="auto">${each.prompt}</strong><span>${each.doing}</span></a></li>`)}</ul>`}
    <h2>Statistics</h2><${Statistics} value=${overview.statistics} />
  </section>`;
}

function Statistics({ value }) {
  const plain = Object.entries(value).filter(([, each]) => each === null || typeof each !== "object");
  const nested = Object.entries(value).filter(([, each]) => each !== null && typeof each === "object" && Object.keys(each).length);
  return html`<div class="statistics">
    ${plain.length > 0 && html`<dl>${plain.map(([name, each]) => html`<div><dt>${name.replaceAll("_", " ")}</dt><dd>${typeof each === "number" ? each.toLocaleString("en") : String(each)}</dd></div>`)}</dl>`}
    ${nested.map(([name, each]) => html`<details open=${!Array.isArray(each)}><summary>${name.replaceAll("_", " ")}</summary>
      ${Array.isArray(each) ? html`<pre tabindex="0">${json(each)}</pre>` : html`<${Statistics} value=${each} />`}</details>`)}
  </div>`;
}

// ------------------------------------------------------------------------------------------------- a request

export function Request({ id, tab, view, transcript, offset, problem, status, canAct, act, events }) {
  const live = useNow(offset, view && !view.ended_at);
  const now = canAct ? live : view?.now; // A recording stands still.
  useEffect(() => {
    if (view) document.title = `${(view.prompt || id).slice(0, 80)} · toolbus inspector`;
    return () => { document.title = "toolbus inspector"; };
  }, [id, view?.prompt]);
  if (!view)
    return html`<p class="nothing" role="status">${status === 404 ? "There is no such request." : problem || "Loading …"}</p>`;
  const tabs = [["timeline", "Timeline"], ["transcript", `Transcript (${count(view.message_count)})`], ["events", `Events (${count(view.event_count)})`]];
  const { tokens } = view;
  const facts = [
    ["Time", view.started_at == null ? "" : duration((view.ended_at ?? now) - view.started_at)],
    ["Rounds", view.rounds], ["Tool calls", count(view.tool_calls) + (view.failed_calls ? ` (${count(view.failed_calls)} failed)` : "")],
    ["Retries", view.retries || ""], ["Resumed", view.resumptions || ""], ["Sub-requests", view.sub_requests || ""],
    ["Tokens in", count(tokens.input) + (tokens.cached ? ` (${count(tokens.cached)} cached)` : "")],
    ["Tokens out", count(tokens.output) + (tokens.reasoning ? ` (${count(tokens.reasoning)} reasoning)` : "")],
    ["Cost", view.cost == null ? "no price" : money(view.cost)], ["Model", view.models.join(", ")],
  ].filter(([, value]) => value !== "");
  return html`<article>
    <a class="back" href="#/">All requests</a>
    <header class="request">
      <h1 dir="auto">${view.prompt || id}</h1>
      <p class="state" role="status"><${Badge} state=${view.state} /> <span>${view.doing}</span></p>
      ${problem && html`<p class="bad" role="status">${problem}</p>`}
      <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
      <p class="ids"><span>request <code>${view.request_id}</code></span> <span>conversation <code>${view.conversation_id}</code></span></p>
      ${view.error && html`<pre class="bad" tabindex="0" dir="auto">${view.error}</pre>`}
    </header>
    ${canAct && view.approvals.map((each, index, all) => html`<${Passing} key=${each.call_id}><${Question} each=${each} place=${place(index, all)} now=${now} act=${act} /><//>`)}
    ${canAct && view.open_calls.filter((each) => each.external).map((each, index, all) => html`<${Passing} key=${each.call_id}><${ExternalCall} each=${each} place=${place(index, all)} now=${now} act=${act} /><//>`)}
    <${Commands} view=${view} canAct=${canAct} act=${act} />
    <nav class="tabs" aria-label="Views">${tabs.map(([name, text]) => html`<a href=${address(id, name)} aria-current=${tab === name ? "page" : null}>${text}</a>`)}</nav>
    ${tab === "timeline" && html`<${Timeline} view=${view} now=${now} id=${id} />`}
    ${tab === "transcript" && html`<${Transcript} found=${transcript} view=${view} />`}
    ${tab === "events" && html`<${Events} id=${id} total=${view.event_count} events=${events} started=${view.started_at} />`}
  </article>`;
}

function Question({ each, place, now, act }) {
  const [edits, setEdits] = useState(null);
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const form = useRef();
  async function decide(name) {
    if (busy) return;
    const body = { request_id: each.request_id, call_id: each.call_id, definition: each.definition,
      reason: form.current.elements.reason.value, remember: form.current.elements.remember.checked };
    if (name === "approve" && edits !== null) {
      try { body.arguments = JSON.parse(edits); } catch (error) { setWrong(`This is not JSON: ${error.message}`); return; }
    }
    setWrong(""); setBusy(true);
    await act(name, body);
    setBusy(false);
  }
  const left = each.deadline - now;
  return html`<section class="card ask" aria-label=${`Decision on ${each.name}${place}`}>
    <h2>Approve this call of <code>${each.name}</code>?</h2>
    <p class="hint">Asked ${ago(now - each.at)} ago.${left > 0 && left < 86400 ? ` Without a decision, it is denied in ${ago(left)}.` : ""}</p>
    <form ref=${form} onSubmit=${(event) => event.preventDefault()}>
      ${edits === null
        ? html`<pre tabindex="0" aria-label="Arguments">${json(each.arguments)}</pre>`
        : html`<label>Arguments, as JSON <textarea rows=${Math.min(14, edits.split("\n").length + 1)} spellcheck="false" value=${edits}
            aria-invalid=${wrong ? "true" : null} onInput=${(event) => setEdits(event.target.value)}></textarea></label>`}
      ${wrong && html`<p class="bad" role="alert">${wrong}</p>`}
      <label>Reason <input name="reason" placeholder="The model reads it if you deny" maxlength="2000" /></label>
      <label class="check"><input type="checkbox" name="remember" /> Decide later calls of this tool in this conversation in the same way</label>
      <p class="buttons">
        <button class="main" aria-disabled=${String(busy)} onClick=${() => decide("approve")}>${edits === null ? "Approve" : "Approve with these arguments"}</button>
        <button class="danger" aria-disabled=${String(busy)} onClick=${() => decide("deny")}>Deny</button>
        ${each.editable
          ? html`<button type="button" onClick=${() => { setWrong(""); setEdits(edits === null ? json(each.arguments) : null); }}>${edits === null ? "Edit arguments" : "Do not edit"}</button>`
          : html`<span class="hint">These arguments are too long to be shown whole, or edited, here.</span>`}
      </p>
    </form></section>`;
}

function ExternalCall({ each, place, now, act }) {
  const form = useRef();
  const [busy, setBusy] = useState(false);
  async function answer(event) {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    await act("answer", { request_id: each.request_id, call_id: each.call_id, text: form.current.elements.text.value,
      is_error: form.current.elements.failed.checked });
    setBusy(false);
  }
  return html`<section class="card external" aria-label=${`Answer to ${each.name}${place}`}>
    <details><summary><code>${each.name}</code> has had no result for ${ago(now - each.at)}</summary>
    <pre tabindex="0" aria-label="Arguments">${json(each.arguments)}</pre>
    <form ref=${form} onSubmit=${answer}>
      <label>Answer <textarea name="text" rows="3" required></textarea></label>
      <label class="check"><input type="checkbox" name="failed" /> The call has failed, and this is the error</label>
      <p class="buttons"><button class="main" aria-disabled=${String(busy)}>Send the answer</button></p>
    </form></details></section>`;
}

function Commands({ view, canAct, act }) {
  const [open, setOpen] = useState("");
  const [recording, setRecording] = useState(null);
  const text = useRef();
  const isOver = Boolean(view.ended_at) || view.state === "abandoned";
  const toggle = (name) => setOpen(open === name ? "" : name);
  useEffect(() => { text.current?.focus(); }, [open]);
  async function send(event, name) {
    event.preventDefault();
    if (await act(name, { [name === "steer" ? "text" : "reason"]: text.current.value })) setOpen("");
  }
  async function record() {
    const found = await act("record");
    if (!found) return;
    setRecording(found);
    setOpen("record");
  }
  const button = (name, label) => html`<button aria-expanded=${String(open === name)} onClick=${() => toggle(name)}>${label}</button>`;
  return html`<section class="commands" aria-label="Commands">
    <p class="buttons">
      ${canAct && !isOver && html`<${Passing}>${button("steer", "Steer")} ${button("cancel", "Cancel")}<//>`}
      <button aria-expanded=${String(open === "record")} onClick=${() => (open === "record" ? setOpen("") : record())}>Record as a test</button>
    </p>
    ${open === "steer" && !isOver && html`<${Passing}><form onSubmit=${(event) => send(event, "steer")}>
      <label>Message, which the model reads before its next round <textarea ref=${text} rows="2" required maxlength="100000"></textarea></label>
      <button class="main">Send</button></form><//>`}
    ${open === "cancel" && !isOver && html`<${Passing}><form onSubmit=${(event) => send(event, "cancel")}>
      <label>Reason <input ref=${text} maxlength="2000" /></label>
      <button class="danger">Cancel the request</button></form><//>`}
    ${open === "record" && recording && html`<div class="card">
      <p>${recording.is_verified ? "A replay of this recording gives the same facts." : recording.note}</p>
      <pre tabindex="0" aria-label="Test">${recording.test}</pre>
      <p class="buttons"><button class="main" onClick=${() => download(recording.file_name, recording.recording)}>Download ${recording.file_name}</button>
      <span class="hint">Save it as tests/recordings/${recording.file_name}</span></p></div>`}
  </section>`;
}

function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// ------------------------------------------------------------------------------------------------ the timeline

const KINDS = { request: "request", model: "model", tool: "tool runs", queued: "waits for its turn", person: "waits for a person", retry: "waits to try again", external: "waits for an answer from outside" };

function Timeline({ view, now, id }) {
  const [whole, setWhole] = useState(false);
  const [open, setOpen] = useState("");
  const axis = scale(view.rows, now, whole);
  const used = [...new Set(view.rows.flatMap((row) => row.segments.map((each) => each[0])))].filter((each) => each !== "request");
  return html`<section class="timeline" aria-label="Timeline">
    <div class="legend"><ul>${used.map((kind) => html`<li><span class=${`swatch ${kind}`}></span>${KINDS[kind]}</li>`)}</ul>
      ${(axis.gaps.length > 0 || whole) && html`<label class="check"><input type="checkbox" checked=${whole} onChange=${(event) => setWhole(event.target.checked)} /> Show waits to scale</label>`}</div>
    ${view.rows_omitted > 0 && html`<p class="hint">${plural(view.rows_omitted, "older row")} left out.</p>`}
    <div class="axis" aria-hidden="true">${axis.ticks.map((tick) => html`<span style=${{ left: `${tick.at * 100}%` }}>${tick.text}</span>`)}</div>
    <ol>${view.rows.map((row) => html`<${Row} key=${row.key} row=${row} axis=${axis} now=${now} id=${id} isOpen=${open === row.key} onOpen=${() => setOpen(open === row.key ? "" : row.key)} />`)}</ol>
    ${view.plan.length > 0 && html`<h2>Plan</h2><ol class="plan">${view.plan.map((each) => html`<li class=${each.status}><span class="hint">${each.status}</span> ${each.text}</li>`)}</ol>`}
    ${view.output != null && html`<h2>Output</h2><pre tabindex="0">${json(view.output)}</pre>`}
  </section>`;
}

function Row({ row, axis, now, id, isOpen, onOpen }) {
  const first = row.segments[0], last = row.segments[row.segments.length - 1];
  const took = first ? duration((last[2] ?? now) - first[1]) : "";
  return html`<li class=${`row ${row.kind} ${row.state}`}>
    <button class="label" aria-expanded=${String(isOpen)} onClick=${onOpen} style=${{ paddingLeft: `${Math.min(row.depth, 6) * 14 + 6}px` }}>
      <bdi class="name">${row.label}</bdi>${row.pool && html`<span class="pool">${row.pool}</span>`}
      <span class="hidden">, ${row.state}${row.note ? `, ${row.note}` : ""}, ${took}${first ? `, begins after ${duration(first[1] - axis.from)}` : ""}</span>
    </button>
    <div class="lane" aria-hidden="true" onClick=${onOpen}>
      ${axis.gaps.map(([a, b]) => html`<span class="gap" style=${span(axis, a, b)}></span>`)}
      ${row.segments.map((each) => html`<span class=${`bar ${each[0]} ${row.state} ${each[2] === null ? "open" : ""}`} style=${span(axis, each[1], each[2] ?? now)}></span>`)}
    </div>
    <span class="took" aria-hidden="true">${took}</span>
    ${isOpen && html`<div class="detail">
      ${row.note && html`<p dir="auto">${row.note}</p>`}${row.detail && html`<pre tabindex="0" dir="auto">${row.detail}</pre>`}
      <ul>${row.segments.map((each) => html`<li>${KINDS[each[0]]}: ${duration((each[2] ?? now) - each[1])}${each[2] === null ? " so far" : ""}, from ${clock(each[1])}</li>`)}</ul>
      ${row.call_id && html`<p><a href=${`${address(id, "events")}`} onClick=${() => sessionStorage.setItem("toolbus-call", row.call_id)}>Events of this call</a></p>`}
    </div>`}
  </li>`;
}

function span(axis, from, to) {
  const left = axis.x(from);
  return { left: `${left * 100}%`, width: `${(axis.x(to) - left) * 100}%` };
}

// ---------------------------------------------------------------------------------------------- the transcript

function Transcript({ found, view }) {
  const [asSent, setAsSent] = useState(false);
  if (!found) return html`<p class="nothing">No message yet.</p>`;
  const { changes } = found;
  const newest = view.compressions[view.compressions.length - 1];
  const said = newest
    ? `The model gets about ${count(newest.after_tokens)} of ${count(newest.before_tokens)} tokens: ${plural(newest.results_shortened, "result")} shortened, ${plural(newest.turns_omitted, "turn")} left out.`
    : "The model gets all messages as they are stored.";
  const rows = asSent ? found.messages.filter((each) => each.fate !== "omitted") : found.messages.filter((each) => each.fate !== "added");
  return html`<section class="transcript" aria-label="Transcript">
    <p class="hint">${said}${newest && !found.is_known ? " Which ones, the journal does not say." : ""}</p>
    ${found.is_known && (changes.shortened || changes.omitted || changes.added)
      ? html`<div class="groups" role="group" aria-label="Form"><button aria-pressed=${String(!asSent)} onClick=${() => setAsSent(false)}>As stored</button>
          <button aria-pressed=${String(asSent)} onClick=${() => setAsSent(true)}>As sent</button></div>` : ""}
    ${newest?.summary && html`<div class="card"><h2>Summary of what is left out</h2><pre tabindex="0" dir="auto">${newest.summary}</pre></div>`}
    ${found.earlier > 0 && html`<p class="hint">${plural(found.earlier, "earlier message")} not shown.</p>`}
    <ol>${rows.map((each, index) => html`<${Message} key=${index} each=${each} asSent=${asSent} />`)}</ol>
  </section>`;
}

const FATES = { shortened: "sent shortened", omitted: "not sent", added: "only sent" };

function Message({ each, asSent }) {
  const text = asSent && each.sent != null ? each.sent : each.text;
  const rest = asSent && each.sent != null ? each.sent_omitted : each.omitted;
  return html`<li class=${`message ${each.role} ${each.is_error ? "failed" : ""} ${each.fate ?? ""}`}>
    <h2>${each.role}${each.name ? html` <code>${each.name}</code>` : ""}${each.is_error ? html` <span class="badge failed">error</span>` : ""}
      ${each.interrupted ? html` <span class="badge failed">interrupted</span>` : ""}${FATES[each.fate] ? html` <span class="badge waiting">${FATES[each.fate]}</span>` : ""}</h2>
    ${each.reasoning && html`<details><summary>Reasoning</summary><pre tabindex="0" dir="auto">${each.reasoning}</pre></details>`}
    ${text && html`<pre tabindex="0" dir="auto">${text}</pre>`}${rest > 0 && html`<p class="hint">${plural(rest, "more character")} not shown.</p>`}
    ${each.parts?.length > 0 && html`<p class="hint">with ${each.parts.join(", ")}</p>`}
    ${each.calls?.map((call) => html`<p class="call">calls <code>${call.name}</code> <bdi><code class="arguments">${call.arguments}</code></bdi></p>`)}
  </li>`;
}

// --------------------------------------------------------------------------------------------------- the events

function Events({ total, events, started }) {
  const [kind, setKind] = useState("all");
  const [search, setSearch] = useState("");
  const [call, setCall] = useState(() => { const id = sessionStorage.getItem("toolbus-call") ?? ""; sessionStorage.removeItem("toolbus-call"); return id; });
  const [found, setFound] = useState({ events: [], before: null, problem: "", isLoading: true });
  const latest = useRef(0);
  // The filter at the moment of the request, even if a timer of an earlier drawing asks.
  const wants = useRef({});
  wants.current = { kind, ...(search && { search }), ...(call && { call_id: call }) };
  async function load(before) {
    const mine = ++latest.current;
    try {
      const answer = await events({ ...wants.current, ...(before && { before }) });
      if (mine !== latest.current) return; // A newer question was asked meanwhile.
      setFound((old) => ({ ...answer, events: before ? [...old.events, ...answer.events] : answer.events, problem: "", isLoading: false }));
    } catch (error) { if (mine === latest.current) setFound((old) => ({ ...old, problem: error.message, isLoading: false })); }
  }
  useEffect(() => { const timer = setTimeout(() => load(), 150); return () => clearTimeout(timer); }, [kind, search, call]);
  useEffect(() => { const timer = setTimeout(() => { if (found.events.length <= 100) load(); }, 600); return () => clearTimeout(timer); }, [total]);
  return html`<section class="events" aria-label="Events">
    <div class="filters">
      <label>Show <select value=${kind} onChange=${(event) => setKind(event.target.value)}>
        <option value="all">all events</option><option value="facts">facts</option><option value="signals">signals</option><option value="problems">problems</option></select></label>
      <label>Search <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
      ${call && html`<button onClick=${() => setCall("")}>Only one call is shown: show all</button>`}
    </div>
    ${found.problem && html`<p class="bad" role="status">${found.problem}</p>`}
    <ol reversed>${found.events.map((each) => html`<li key=${each.number} class=${each.is_problem ? "problem" : ""}><details>
      <summary><time title=${clock(each.at)}>${started == null ? clock(each.at) : `+${duration(each.at - started)}`}</time> <code>${each.type}</code> <bdi>${each.line}</bdi></summary>
      <pre tabindex="0">${json(each.fields)}</pre></details></li>`)}</ol>
    ${!found.events.length && html`<p class="nothing">${found.isLoading ? "Loading …" : "No event matches."}</p>`}
    ${found.before != null && html`<button onClick=${() => load(found.before)}>Show older events</button>`}
  </section>`;
}
