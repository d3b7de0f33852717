// A chat page on AG-UI's HttpAgent, without a framework: text, reasoning, tools, approvals, a tool of the page, stopping, and
// continuing in the middle of an answer after a reload or a lost connection.
import { HttpAgent, runHttpRequest, transformHttpEventStream } from "./vendor/bundled/ag-ui.js";

const threadId = location.hash.slice(1) || crypto.randomUUID();
history.replaceState(null, "", `agent.html#${threadId}`);
const conversation = `api/conversations/${encodeURIComponent(threadId)}`;
const JSON_POST = { method: "POST", headers: { "Content-Type": "application/json" } };

const RETRY_MILLISECONDS = 2_000;

// The page's own tool: its calls are answered here.
const tools = { local_time: () => ({ time: new Date().toString(), zone: Intl.DateTimeFormat().resolvedOptions().timeZone }) };

const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
};

const messages = element("div", { "aria-live": "polite" });
const status = element("p", { class: "status", role: "status" });
const problem = element("p", { class: "error", role: "alert" });
const field = element("input", { type: "text", "aria-label": "Question", placeholder: "Ask something", autofocus: true });
const button = element("button", {}, "Send");
const form = element("form", { onsubmit: (event) => { event.preventDefault(); void (agent.isRunning ? stop() : ask()); } }, element("div", {}, field, button));
const title = element("header", {}, element("h1", {}, "Chat with AG-UI"), element("a", { href: "agent.html?new" }, "New conversation"));

// HttpAgent leaves it to the page how to connect. The server answers with the conversation so far, and with what runs in it.
class Agent extends HttpAgent {
  connect(input) {
    return transformHttpEventStream(runHttpRequest(() => this.fetch(`${this.url}/connect`, this.requestInit(input))));
  }
}

const agent = new Agent({ url: "api/agent", threadId });
document.getElementById("page").append(title, messages, status, problem, form);

let questions = []; // the approvals that the newest run has asked for
const decided = new Map();

function shown(message) {
  if (message.role === "reasoning") return element("div", { class: "message reasoning" }, message.content ?? "");
  if (message.role === "tool") return null; // its call shows it
  const content = typeof message.content === "string" ? message.content : "";
  const calls = (message.toolCalls ?? []).map((call) => {
    const result = agent.messages.find((each) => each.role === "tool" && each.toolCallId === call.id);
    const question = questions.find((each) => each.toolCallId === call.id && !decided.has(each.id));
    const decide = (approved) => () => { decided.set(question.id, approved); void goOn(); };
    const buttons = question ? [element("p", {}, "May this run? ", element("button", { onclick: decide(true) }, "Approve"), " ", element("button", { onclick: decide(false) }, "Deny"))] : [];
    const output = result ? [element("p", {}, typeof result.content === "string" ? result.content : JSON.stringify(result.content))] : [];
    return element("div", { class: "call" }, element("strong", {}, call.function.name), " ", element("code", {}, call.function.arguments), ...buttons, ...output);
  });
  return element("div", { class: `message ${message.role}` }, ...(content ? [element("div", {}, content)] : []), ...calls);
}

function draw() {
  messages.replaceChildren(...agent.messages.map(shown).filter(Boolean));
  button.textContent = agent.isRunning ? "Stop" : "Send";
  if (!agent.isRunning) status.textContent = "";
  form.scrollIntoView({ block: "end" });
  window.scrollTo(0, document.body.scrollHeight);
}

const run = (resume) => follow((notes) => agent.runAgent({ runId: crypto.randomUUID(), ...(resume && { resume }) }, notes));

function connect() {
  agent.setMessages([]); // all of them come
  agent.pendingInterrupts = [];
  return follow((notes) => agent.connectAgent({ runId: crypto.randomUUID() }, notes));
}

async function follow(begin) {
  questions = [];
  decided.clear();
  problem.textContent = "";
  let outcome;
  let isLost = false;
  const running = begin({
    onMessagesChanged: draw,
    onCustomEvent: ({ event }) => { if (event.name === "status") status.textContent = event.value.text; },
    onRunFinishedEvent: ({ event }) => {
      outcome = event.outcome;
      problem.textContent = event.result?.explanation ?? ""; // why the answer is not whole
    },
    onRunErrorEvent: ({ event }) => {
      problem.textContent = event.message;
      isLost = event.code === "stream_closed"; // otherwise the request has ended
      if (!isLost) agent.pendingInterrupts = [];
    },
    onRunFailed: ({ error }) => {
      if (error.status === 401) location.replace("./"); // the first page gives this browser its name
      problem.textContent = error.payload?.error ?? "The connection is lost.";
      isLost = !error.status;
    },
  });
  draw(); // its button stops from now on
  await running.catch((error) => { problem.textContent ||= error.message; });
  if (isLost) {
    draw();
    setTimeout(connect, RETRY_MILLISECONDS);
    return;
  }
  questions = outcome ? outcome.interrupts ?? [] : agent.pendingInterrupts; // without an outcome, they are asked again
  const isKnown = (call) => [...agent.messages, ...questions].some((each) => each.toolCallId === call.id);
  const open = (agent.messages.findLast((each) => each.role === "assistant")?.toolCalls ?? []).filter((call) => !isKnown(call));
  const own = open.filter((call) => Object.hasOwn(tools, call.function.name));
  for (const call of own) agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content: JSON.stringify(tools[call.function.name]()) });
  draw();
  if (own.length && !questions.length) await run();
}

async function ask() {
  const text = field.value.trim();
  if (!text) return;
  if (questions.some((each) => !decided.has(each.id))) {
    problem.textContent = "Approve or deny the call before you write."; // the request that asks keeps the conversation's turn
    return;
  }
  field.value = "";
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content: text });
  draw();
  await run();
}

// The run continues when all of its questions have been answered. HttpAgent lets nobody resolve one that has expired.
async function goOn() {
  draw();
  if (questions.some((each) => !decided.has(each.id))) return;
  await run(questions.map(({ id, expiresAt }) => (Date.parse(expiresAt) <= Date.now()
    ? { interruptId: id, status: "cancelled" }
    : { interruptId: id, status: "resolved", payload: { approved: decided.get(id) } })));
}

// Leaving the page stops nothing. Stopping is a command to the request.
async function stop() {
  const { requests } = await (await fetch(conversation)).json();
  const running = requests.find((each) => each.outcome === null);
  if (running) await fetch(`api/requests/${running.request_id}/cancel`, { ...JSON_POST, body: "{}" });
}

void connect();
