// The chat page of create_app and of toolbus serve. It reads the UI message stream, and folds each request into one
// message, so that a stream that is read again from its beginning replaces the message. All text is set as text, never
// as HTML; that of the model is read as Markdown.
import { markdown } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const inHash = (name) => new URLSearchParams(location.hash.slice(1)).get(name);
// The token leaves the address at once, and stays with this tab.
const tokenFromAddress = () => { if (inHash("token")) sessionStorage.setItem("token", inHash("token")); };
const authorization = () => (sessionStorage.getItem("token") ? { Authorization: `Bearer ${sessionStorage.getItem("token")}` } : {});
tokenFromAddress();
// Browsers have randomUUID only for https and for this machine.
const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
let conversation = inHash("conversation") ?? newId();
let running = ""; // the request whose stream is read
let known = new Set(); // the requests of the conversation that the page has shown
let reading = null; // the controller of that stream
let doing = Promise.resolve(); // what the page does now
let answer = null; // the message that shows the running request
let sending = Promise.resolve(); // the messages that the user has sent, one after another
let begun = Promise.resolve(); // resolved when a request runs, or when there is nothing more to do
let setBegun = () => {};

async function call(path, body) {
  const headers = { ...authorization(), ...(body && { "Content-Type": "application/json" }) };
  const response = await fetch(path, { headers, signal: reading?.signal, ...(body && { method: "POST", body: JSON.stringify(body) }) });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  // The guard of toolbus serve answers in plain text, and an application of somebody's own as JSON.
  if (response.status === 401 && !error) throw new Error("Open this page with the address that toolbus serve has printed.");
  const problem = new Error(error ? `${error[0].toUpperCase()}${error.slice(1)}.` : "The server did not answer.");
  throw Object.assign(problem, { status: response.status });
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// ------------------------------------------------------------------------------------------------- one message

// Characters that nobody sees are shown as escapes, as in a terminal: they can make arguments look different, and hide text.
const UNSEEN = /(?!\n)\p{C}|\p{Zl}|\p{Zp}|(?! )\p{Zs}|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\u{e0100}-\u{e01ef}]/gu;
const json = (value, ...how) => JSON.stringify(value, ...how).replace(UNSEEN,
  (sign) => sign.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join(""));
// Numbers that a browser would round are kept as they were written.
const parse = (text) => JSON.parse(text, (_name, value, context) =>
  (typeof value === "number" && context && String(value) !== context.source ? JSON.rawJSON(context.source) : value));
const shown = (value) => (typeof value === "string" ? value : json(value, null, 2));

function fold(message, chunk) {
  const { type, id, toolCallId } = chunk;
  const { parts } = message;
  const part = parts.findLast((each) => (toolCallId ? each.toolCallId === toolCallId : each.id === id && id !== undefined));
  if (type === "start") message.id = chunk.messageId;
  else if (type === "start-step") message.step = parts.length;
  else if (type === "reset-step" || type === "data-reset-step") parts.length = message.step; // by ai_sdk_version
  else if (type === "text-start" || type === "reasoning-start") parts.push({ type: type.slice(0, -6), id, text: "" });
  else if (type === "text-delta" || type === "reasoning-delta") part.text += chunk.delta;
  else if (type === "tool-input-start") parts.push({ type: "call", toolCallId, name: chunk.toolName, state: "arrives" });
  else if (type === "tool-input-delta") part.written = (part.written ?? "") + chunk.inputTextDelta;
  else if (type === "tool-input-error" && chunk.input === "") parts.splice(parts.indexOf(part), 1); // It was not finished.
  else if (type === "tool-input-available" || type === "tool-input-error") {
    const found = part ?? parts[parts.push({ type: "call", toolCallId, name: chunk.toolName }) - 1];
    Object.assign(found, { input: chunk.input, state: type === "tool-input-error" ? "failed" : "runs", error: chunk.errorText });
  } else if (type === "tool-approval-request") {
    // The arguments of a tool of another page have come only in pieces.
    Object.assign(part, { state: "asked", approval: chunk.approvalId, input: part.input ?? parse(part.written ?? "{}") });
  } else if (type === "tool-output-available") Object.assign(part, { output: chunk.output, state: chunk.preliminary ? "runs" : "done" });
  else if (type === "tool-output-error") Object.assign(part, { state: "failed", error: chunk.errorText, output: undefined });
  else if (type === "tool-output-denied") Object.assign(part, { state: "denied" });
  else if (type === "data-failure") fail(parts, chunk);
  else if (type === "data-steering") {
    drop(message.sent, chunk.data.text);
    message.waiting.push(chunk.data.text);
  } else if (type === "data-steered") {
    // The text may differ, because secrets are masked when the request takes the message.
    message.waiting.splice(Math.max(message.waiting.indexOf(chunk.data.text), 0), 1);
    parts.push({ type: "steered", text: chunk.data.text });
  } else if (type === "data-status") $("status").textContent = chunk.data.text;
  else if (type === "error" || type === "abort") message.problem = chunk.errorText ?? "It was stopped.";
  // An error without an ending says that the stream is over, and not the request.
  if (type === "finish" || type === "abort") message.ended = true;
  if (type === "abort" || (type === "finish" && chunk.messageMetadata)) message.isOver = true;
  if (type === "finish" && chunk.messageMetadata?.explanation) message.problem = chunk.messageMetadata.explanation;
}

function drop(texts, text) {
  if (texts.includes(text)) texts.splice(texts.indexOf(text), 1);
}

// The reason of a failure comes in a part of its own, while the call is shown and after a reload.
function fail(parts, { id, data }) {
  const state = data.reason === "denied" ? "denied" : "failed";
  Object.assign(parts.findLast((each) => each.toolCallId === id) ?? {}, { state, error: data.error });
}

const STATES = { arrives: "…", runs: "running", done: "", failed: "failed", denied: "denied" };
// Arguments that are not an object are shown as the model wrote them.
const named = (input) => Object.entries(input ?? {}).map(([name, value]) => `${name}=${json(value)}`).join(" ");
const inLine = (input) => (typeof input === "string" ? json(input) : named(input)).slice(0, 200);

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

// The output of a call. Only pictures inside of the result are loaded: another server would learn who reads.
function outputs({ name, output }) {
  if (output?.type !== "content" || !Array.isArray(output.value)) return [element("pre", {}, shown(output))];
  return output.value.map((each) => {
    if (each?.type === "image-data" && PICTURES.includes(each.mediaType)) {
      return element("img", { src: `data:${each.mediaType};base64,${each.data}`, alt: `Picture from ${name}` });
    }
    const words = each?.text ?? each?.url ?? each?.filename ?? (each?.type === "file-data" ? each.mediaType : each);
    return element("pre", {}, shown(words ?? null));
  });
}

// Parts that do not change are made once, because a message is drawn again for each piece of it.
function once(part, value, make) {
  if (part.madeOf !== value || !part.made) Object.assign(part, { madeOf: value, made: make() });
  return part.made;
}

function drawn(part, message) {
  if (part.type === "text" && message.role === "assistant") return once(part, part.text, () => markdown(part));
  if (part.type === "text" || part.type === "steered") return element("div", { dir: "auto" }, part.text);
  if (part.type === "reasoning") return element("div", { class: "reasoning", dir: "auto" }, part.text);
  if (part.type === "lost") return element("div", { class: "later" }, part.text);
  if (part.type === "file") return element("div", {}, part.filename ?? part.mediaType);
  if (part.type !== "call") return "";
  const input = element("pre", {}, shown(part.input ?? {}));
  if (part.state === "asked") {
    const button = (approved) => element("button", {
      type: "button", "data-key": `${part.toolCallId} ${approved}`,
      onclick: () => { decide(message, part, approved); $("prompt").focus(); },
    }, approved ? "Approve" : "Deny");
    const about = { class: "question", role: "group", "aria-label": `Decision on ${part.name}` };
    return element("div", about, "Approve this call of ", element("strong", {}, part.name), "?", input, button(true), " ", button(false));
  }
  const words = [element("b", {}, part.name), element("span", {}, inLine(part.input)), element("i", {}, STATES[part.state] ?? "")];
  const head = element("summary", { "data-key": part.toolCallId }, element("div", {}, ...words));
  const made = element("details", {}, head, input);
  if (part.output !== undefined) made.append(...once(part, part.output, () => outputs(part)));
  if (part.error) made.append(element("p", { class: "wrong" }, part.error));
  made.open = message.opened.has(part.toolCallId);
  made.addEventListener("toggle", () => message.opened[made.open ? "add" : "delete"](part.toolCallId));
  return made;
}

function draw(message) {
  const list = $("messages").parentElement;
  const focused = message.node?.contains(document.activeElement) && document.activeElement.dataset.key;
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
  const node = element("div", {});
  let last;
  // What the user has sent meanwhile stands between two parts of the answer.
  const show = (owner, made) => {
    const role = owner === message ? message.role : "user";
    if (owner !== last) node.append(element("article", { class: `message ${role}`, "aria-label": role === "user" ? "You" : "Assistant" }));
    node.lastElementChild.append(made);
    last = owner;
  };
  for (const part of message.parts) show(part.type === "steered" ? part : message, drawn(part, message));
  if (message.problem) show(message, element("p", { class: "wrong" }, message.problem));
  const note = message.ended ? "The model did not read this." : "The model reads this at its next step.";
  for (const text of [...message.waiting, ...message.sent]) {
    show({}, element("div", { dir: "auto" }, text, element("p", { class: "later", dir: "ltr" }, note)));
  }
  if (message.node) message.node.replaceWith(node);
  else $("messages").append(node);
  message.node = node;
  if (focused) [...node.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused)?.focus();
  if (isAtEnd) scrollToEnd();
}

function scrollToEnd() {
  const list = $("messages").parentElement;
  list.scrollTop = list.scrollHeight;
}

// Messages that the user has sent meanwhile: `sent` are those that the server has not confirmed yet, and `waiting` those
// that the model has not read yet.
const newMessage = (role, parts = []) => ({ role, parts, sent: [], waiting: [], opened: new Set() });

// A message of the history: see UIMessage of the AI SDK.
function stored(message) {
  const parts = message.parts.map((part) => {
    if (part.type === "text" || part.type === "reasoning" || part.type === "file") return part;
    if (!part.toolCallId) return { type: "" };
    const state = part.state === "output-error" ? "failed" : "done";
    return { ...part, type: "call", name: part.toolName ?? part.type.slice(5), state, error: part.errorText };
  });
  message.parts.filter((part) => part.type === "data-failure").forEach((part) => fail(parts, part));
  return newMessage(message.role, parts);
}

// ------------------------------------------------------------------------------------------------- streams

async function read(response, message) {
  answer = message;
  setRunning(response.headers.get("X-Request-Id"));
  known.add(running);
  $("messages").ariaBusy = "true"; // Screen readers read the message once it is whole.
  let isDue = false;
  const later = () => {
    if (!isDue) requestAnimationFrame(() => { isDue = false; draw(message); });
    isDue = true;
  };
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    const frames = (rest + piece.value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (!frame.startsWith("data: {")) continue;
      fold(message, parse(frame.slice(6)));
      later();
    }
  }
  draw(message);
  if (!message.ended) throw new TypeError("the stream was cut off");
}

// Read a request's stream from its beginning, again and again while the server is away.
async function follow(message) {
  for (let seconds = 1; ; seconds = Math.min(seconds * 2, 10)) {
    try {
      const response = await call(`chat/${encodeURIComponent(conversation)}/stream`);
      if (response.status === 204) return load();
      $("problem").textContent = "";
      Object.assign(message, { parts: [], waiting: [], problem: "", ended: false });
      return await read(response, message);
    } catch (error) {
      // A proxy may say that it cannot reach the server, or the server that it cannot reach its store.
      if (!(error instanceof TypeError || error.status > 501)) throw error;
      $("problem").textContent = "The server cannot be reached. Trying again …";
      $("status").textContent = "";
      await new Promise((done) => setTimeout(done, seconds * 1_000));
      if (reading?.signal.aborted) throw new DOMException("", "AbortError");
    }
  }
}

function setRunning(requestId) {
  running = requestId;
  $("stop").hidden = !requestId;
  $("prompt").placeholder = requestId ? "Add a message" : "Ask something";
  if (requestId) setBegun();
}

function report(error) {
  // An AbortError means that the page shows another conversation.
  if (error.name !== "AbortError") $("problem").textContent = error instanceof TypeError ? "The server cannot be reached." : error.message;
}

// Do one thing at a time.
async function act(what) {
  const mine = (reading = new AbortController());
  setBegun(); // What waits for the old promise looks again.
  begun = new Promise((resolve) => { setBegun = resolve; });
  $("problem").textContent = "";
  setRunning("");
  await what().catch(report);
  if (reading !== mine) return;
  reading = null;
  setBegun();
  setRunning("");
  $("messages").ariaBusy = "false";
  $("status").textContent = "";
  await list();
}

function giveBack(text) {
  $("prompt").value = [text, $("prompt").value].filter(Boolean).join("\n");
}

async function ask(text) {
  const mine = newMessage("user", [{ type: "text", text }]);
  draw(mine);
  scrollToEnd(); // also if something above was read
  void list();
  const message = newMessage("assistant");
  const body = { id: conversation, message: { role: "user", parts: mine.parts } };
  let response;
  try {
    response = await call("chat", body);
  } catch (error) {
    mine.node.remove();
    // Nothing was started, unless the page shows another conversation now.
    if (error.name !== "AbortError") giveBack(text);
    throw error;
  }
  await read(response, message).catch((error) => (error instanceof TypeError ? follow(message) : Promise.reject(error)));
}

// Send a message to the request that runs, or ask it if none runs.
function send(text) {
  const meant = conversation;
  let shown = null;
  const echo = () => {
    if (!running || shown) return;
    shown = answer;
    shown.sent.push(text);
    draw(shown);
    scrollToEnd();
  };
  const hide = () => {
    if (!shown) return;
    drop(shown.sent, text);
    draw(shown);
  };
  echo();
  sending = sending.then(async () => {
    while (reading && !running) await begun; // The conversation is loading, or a request begins.
    if (conversation !== meant) return giveBack(text);
    echo();
    if (running && (await steer(text, hide))) return;
    hide();
    if (conversation !== meant) giveBack(text);
    else doing = act(() => ask(text));
  });
}

// Return false if the request has just ended: then the text is the next question.
async function steer(text, hide) {
  try {
    await call(`requests/${running}/steer`, { text });
  } catch (error) {
    if (error.status === 409) return doing.then(() => false);
    hide();
    if (error.name !== "AbortError") giveBack(text);
    report(error);
  }
  return true;
}

// Send a decision. The stream that is read shows what follows, unless it has ended to wait for the decision.
function decide(message, part, approved) {
  const meant = conversation;
  decided(message, part, approved).then(async (isNews) => {
    while (reading) await doing;
    if (isNews && !message.isOver && conversation === meant) doing = act(() => follow(message));
  }, report);
}

// Return whether the stream has something new.
async function decided(message, part, approved) {
  const response = await call(`requests/${message.id}/decide`, { id: part.approval, approved }).catch((error) => {
    if (error.status !== 409) throw error; // Otherwise somebody else was faster, for example in another tab.
  });
  // The stream may have shown the result before the answer to the decision comes.
  if (part.state === "asked") part.state = approved ? "runs" : "denied";
  draw(message);
  // While the decision is queued, the stream would ask again, and ends as soon as it only waits for decisions.
  return response?.status !== 202 || !message.parts.some((each) => each.state === "asked");
}

// ------------------------------------------------------------------------------------------------- conversations

// What the page says below an answer that is not whole, as when it arrived.
function problemOf(request) {
  if (!request?.outcome || request.outcome === "completed") return "";
  return request.outcome === "cancelled" ? "It was stopped." : request.explanation || "It was not finished.";
}

// `before` is the number of requests that had not ended when they were looked at last.
async function load(before = Infinity) {
  history.replaceState(null, "", `#${new URLSearchParams({ conversation })}`);
  const { messages, requests } = parse(await (await call(`conversations/${encodeURIComponent(conversation)}`)).text());
  known = new Set(requests.map((each) => each.request_id));
  $("messages").replaceChildren();
  const requestOf = (message) => message?.id.split("_")[0];
  const kept = new Set(messages.map(requestOf));
  const lost = requests.filter((each) => !kept.has(each.request_id) && problemOf(each)); // the newest first
  const drawLost = (before) => {
    while (lost.length && lost.at(-1).started_at < before) {
      draw(newMessage("user", [{ type: "lost", text: "This message was not kept." }]));
      draw(Object.assign(newMessage("assistant"), { problem: problemOf(lost.pop()) }));
    }
  };
  messages.forEach((each, position) => {
    const shown = [stored(each)];
    const request = requests.find((one) => one.request_id === requestOf(each));
    drawLost(request?.started_at ?? 0);
    if (requestOf(messages[position + 1]) !== requestOf(each)) {
      if (each.role === "user") shown.push(newMessage("assistant")); // nothing was answered, or this was not
      shown.at(-1).problem = problemOf(request);
    }
    shown.filter((one) => one.parts.length || one.problem).forEach((one) => draw(one));
  });
  drawLost(Infinity);
  await list();
  const open = requests.filter((each) => each.outcome === null).length;
  if (open) await follow(newMessage("assistant"));
  // Another tab has asked something, too, and that has its turn now.
  if (open > 1 && open < before && !document.querySelector(".question")) await load(open);
}

// Another tab may have asked something, or answered the question. A page with nothing new stays where it is.
async function refresh() {
  const { requests } = await (await call(`conversations/${encodeURIComponent(conversation)}`)).json();
  if (document.querySelector(".question") || requests.some((each) => !known.has(each.request_id))) await load();
}

async function list() {
  const response = await fetch("conversations?limit=50", { headers: authorization() }).catch(() => null);
  if (!response?.ok) return; // It is read again after the next answer.
  const { conversations } = await response.json();
  // The store has a conversation once its first turn has ended.
  const first = document.querySelector("#messages .user");
  if (first && !conversations.some((each) => each.conversation_id === conversation)) {
    conversations.unshift({ conversation_id: conversation, title: first.textContent });
  }
  const links = conversations.map((each) => {
    const link = element("a", { dir: "auto", href: `#${new URLSearchParams({ conversation: each.conversation_id })}` }, each.title || "…");
    if (each.conversation_id === conversation) link.setAttribute("aria-current", "page");
    return element("li", {}, link);
  });
  $("conversations").replaceChildren(...links);
}

function show(id) {
  reading?.abort(); // reading on is not needed; the request continues
  conversation = id;
  doing = act(load);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !reading) doing = act(refresh);
});
$("new").addEventListener("click", () => { show(newId()); $("prompt").focus(); });
window.addEventListener("hashchange", () => {
  const id = inHash("conversation") ?? conversation;
  if (inHash("token") || id !== conversation) { tokenFromAddress(); show(id); }
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => {
  call(`requests/${running}/cancel`, {}).catch((error) => error.status !== 409 && report(error)); // It may have ended meanwhile.
  $("prompt").focus();
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text) return;
  if (document.querySelector(".question")) $("problem").textContent = "Approve or deny the call first.";
  else {
    $("prompt").value = "";
    send(text);
  }
});
doing = act(load);
