// The state of the page: what the server has sent, what is selected, and the commands. Drawing is in parts.js.
import { h, render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import htm from "htm";
import { address, parser, route } from "./time.js";
import { List, Overview, Request, Toast, TokenForm } from "./parts.js";

const html = htm.bind(h);
const KEY = `toolbus-inspector ${location.pathname}`;
const AGAIN_MS = 1500;

// The token comes after the # of the address, which no server sees. It stays in this tab only.
function takeToken() {
  const given = /(?:^#|&)token=([^&]+)/.exec(location.hash);
  if (given) {
    sessionStorage.setItem(KEY, decodeURIComponent(given[1]));
    history.replaceState(null, "", `${location.pathname}#/`);
  }
  return sessionStorage.getItem(KEY) ?? "";
}

let token = takeToken();
const api = (path, options = {}) =>
  fetch(`api/${path}`, { ...options, headers: { ...options.headers, authorization: `Bearer ${token}` } });
const path = (id) => `requests/${encodeURIComponent(id)}`;

// Reads a stream of events, again and again, until `stop` is called. `take` gets the name and the value of each event.
function follow(where, take) {
  const control = new AbortController();
  const run = async () => {
    while (!control.signal.aborted) {
      let problem = "The connection was lost.";
      try {
        const answer = await api(where, { signal: control.signal });
        if (answer.ok) {
          const feed = parser((event, data) => take(event, JSON.parse(data)));
          const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
          for (let piece; !(piece = await reader.read()).done;) feed(piece.value);
        } else {
          problem = (await answer.text()).trim();
          take("refused", { status: answer.status, problem });
          if (answer.status === 401 || answer.status === 404) return;
        }
      } catch (error) {
        if (control.signal.aborted) return;
        problem = "The server cannot be reached.";
      }
      take("problem", { problem });
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  };
  run();
  return () => control.abort();
}

function useStream(where, key) {
  const [state, set] = useState({});
  useEffect(() => {
    set({});
    if (!where) return undefined;
    let next = {}, due = false;
    const draw = () => { due = false; set({ ...next }); };
    return follow(where, (event, data) => {
      if (event === "problem" || event === "refused") next = { ...next, problem: data.problem, status: data.status };
      else next = { ...next, [event]: data, problem: "", status: 200, offset: data.now - Date.now() / 1000 };
      if (!due) { due = true; requestAnimationFrame(draw); }
      else if (document.hidden) draw(); // No frame is drawn for a hidden page.
    });
  }, [where, key]);
  return state;
}

function useRoute() {
  const [where, set] = useState(route(location.hash));
  useEffect(() => {
    const on = () => {
      if (/token=/.test(location.hash)) { token = takeToken(); location.reload(); return; }
      set(route(location.hash));
    };
    addEventListener("hashchange", on);
    return () => removeEventListener("hashchange", on);
  }, []);
  return where;
}

// On a small screen, the list and the request replace each other: the focus goes along.
function useFocusMoved(id) {
  const before = useRef(id);
  useEffect(() => {
    const { activeElement } = document;
    if (before.current !== id && (activeElement === document.body || !activeElement.checkVisibility()))
      (id ? document.getElementById("main") : document.querySelector(`.list a[href="${address(before.current)}"]`))?.focus();
    before.current = id;
  }, [id]);
}

function App() {
  const where = useRoute();
  useFocusMoved(where.id);
  const [known, setKnown] = useState(token);
  const list = useStream(known ? "overview" : "", known);
  const one = useStream(known && where.id ? path(where.id) : "", known);
  const [said, say] = useState({ text: "", bad: false });
  if (!known || list.status === 401)
    return html`<${TokenForm} wrong=${Boolean(known)} onToken=${(given) => {
      token = given; sessionStorage.setItem(KEY, given); setKnown(""); setTimeout(() => setKnown(given));
    }} />`;

  async function act(name, body = {}) {
    try {
      const answer = await api(`${path(where.id)}/${name}`, { method: "POST", body: JSON.stringify(body) });
      const text = await answer.text();
      if (!answer.ok) { say({ text: text.trim() || `The server has answered ${answer.status}.`, bad: true }); return null; }
      const found = JSON.parse(text);
      say({ text: found.sentence ?? "", bad: found.status === "ended" || found.status === "unknown" });
      return found;
    } catch { say({ text: "The server cannot be reached.", bad: true }); return null; }
  }
  const events = async (query) => {
    const answer = await api(`${path(where.id)}/events?${new URLSearchParams(query)}`);
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return answer.json();
  };
  const overview = list.overview;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the request</a>
    <div class=${`page ${where.id ? "has-request" : ""}`}>
      <${List} overview=${overview} offset=${list.offset ?? 0} problem=${list.problem} selected=${where.id} />
      <main id="main" tabindex="-1">
        ${where.id
          ? html`<${Request} key=${where.id} id=${where.id} tab=${where.tab} view=${one.view} transcript=${one.transcript}
              offset=${one.offset ?? 0} problem=${one.problem} status=${one.status} canAct=${overview?.can_act ?? false}
              act=${act} events=${events} />`
          : html`<${Overview} overview=${overview} />`}
      </main>
    </div>
    <${Toast} said=${said} onClose=${() => say({ text: "", bad: false })} />`;
}

render(h(App), document.getElementById("app"));
