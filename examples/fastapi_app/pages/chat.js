// A chat page on useChat of the AI SDK: text, reasoning, tools, approvals, a tool of the page, images, stopping,
// asking again, and continuing in the middle of an answer after the page was loaded again.
import {
  createRoot, DefaultChatTransport, getToolName, html, isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses, lastAssistantMessageIsCompleteWithToolCalls,
  useChat, useEffect, useRef, useState,
} from "./vendor/bundled/use-chat.js";

const id = location.hash.slice(1) || crypto.randomUUID();
history.replaceState(null, "", `chat.html#${id}`);
const conversation = `api/conversations/${encodeURIComponent(id)}`;

// The server has the history, so the page sends only its newest message.
const transport = new DefaultChatTransport({
  api: "api/chat",
  prepareSendMessagesRequest: ({ id, messages, trigger }) => ({ body: { id, trigger, message: messages.at(-1) } }),
});

// The page's own tool: its calls are answered here.
const tools = { local_time: () => ({ time: new Date().toString(), zone: Intl.DateTimeFormat().resolvedOptions().timeZone }) };

// The page sends by itself when it has answered everything in the newest step, each answer once.
const sent = new Set();
const isAnswered = ({ messages }) => {
  const parts = messages.at(-1).parts;
  const step = parts.slice(parts.findLastIndex((part) => part.type === "step-start") + 1).filter(isToolUIPart);
  const mine = step.filter((part) => part.state === "approval-responded" || (part.type !== "dynamic-tool" && part.state.startsWith("output-")));
  const key = (part) => `${part.toolCallId} ${part.state}`; // A tool of the page may need an approval, and then has a result.
  const isNew = mine.some((part) => !sent.has(key(part)));
  const isComplete = lastAssistantMessageIsCompleteWithApprovalResponses({ messages }) || lastAssistantMessageIsCompleteWithToolCalls({ messages });
  if (isNew && isComplete) for (const part of mine) sent.add(key(part));
  return isNew && isComplete;
};

function Call({ part, decide }) {
  const output = part.output === undefined ? "" : typeof part.output === "string" ? part.output : JSON.stringify(part.output);
  return html`<div class="call">
    <strong>${getToolName(part)}</strong> <code>${JSON.stringify(part.input ?? {})}</code>
    ${part.state === "approval-requested" && html`<p>
      May this run? ${" "}
      <button onClick=${() => decide(part, true)}>Approve</button> ${" "}
      <button onClick=${() => decide(part, false)}>Deny</button>
    </p>`}
    ${part.state === "output-denied" && html`<p>It was denied.</p>`}
    ${part.state === "output-error" && html`<p class="error">${part.errorText}</p>`}
    ${output && html`<p>${output}</p>`}
  </div>`;
}

function Part({ part, decide }) {
  if (isToolUIPart(part)) return html`<${Call} part=${part} decide=${decide} />`;
  if (part.type === "text") return html`<div>${part.text}</div>`;
  if (part.type === "reasoning") return html`<div class="reasoning">${part.text}</div>`;
  if (part.type === "file" && part.mediaType.startsWith("image/")) return html`<img src=${part.url} alt=${part.filename ?? "image"} />`;
  return null;
}

function Chat({ messages: earlier, isRunning, explanation }) {
  const [text, setText] = useState("");
  const [line, setLine] = useState("");
  const files = useRef();
  const end = useRef();
  const chat = useChat({
    id, transport, messages: earlier, resume: isRunning,
    sendAutomaticallyWhen: isAnswered,
    onData: (part) => part.type === "data-status" && setLine(part.data.text),
    onFinish: () => setLine(""),
    onToolCall: ({ toolCall }) => {
      const run = tools[toolCall.toolName];
      if (run) chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: run() });
    },
  });
  const isBusy = chat.status === "submitted" || chat.status === "streaming";
  // A new message would wait for the end of the request that asks, and useChat sends decisions only of the newest message.
  const isAsked = chat.messages.at(-1)?.parts.some((part) => part.state === "approval-requested");
  // Why the newest answer is not whole: from its stream, or from the server after the page was loaded again.
  const ending = chat.messages.length > earlier.length ? chat.messages.at(-1).metadata?.explanation : explanation;
  const problem = chat.error?.message || (!isBusy && ending);
  useEffect(() => { end.current.scrollIntoView({ block: "end" }); }, [chat.messages, line]);

  const send = async (event) => {
    event.preventDefault();
    if (!text.trim() || isBusy || isAsked) return;
    setText("");
    const { files: attached } = files.current;
    const sending = chat.sendMessage({ text, files: attached.length ? attached : undefined }); // it reads the files
    await sending;
    files.current.value = "";
  };
  // Leaving the page stops nothing. Stopping is a command to the request.
  const stop = async () => {
    const { requests } = await (await fetch(conversation)).json();
    const running = requests.find((each) => each.outcome === null);
    if (running) await fetch(`api/requests/${running.request_id}/cancel`, { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
  };
  const decide = (part, approved) => chat.addToolApprovalResponse({ id: part.approval.id, approved });

  return html`
    <header><h1>Chat with useChat</h1><a href="chat.html?new">New conversation</a></header>
    <div aria-live="polite">
      ${chat.messages.map((message) => html`<div key=${message.id} class=${`message ${message.role}`}>
        ${message.parts.map((part, index) => html`<${Part} key=${index} part=${part} decide=${decide} />`)}
      </div>`)}
    </div>
    <p class="status" role="status">${isBusy ? line || "…" : isAsked ? "Approve or deny the call before you write." : ""}</p>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <div ref=${end}></div>
    <form onSubmit=${send}><div>
      <input type="text" aria-label="Question" placeholder="Ask something" value=${text} onInput=${(event) => setText(event.target.value)} autofocus />
      <input type="file" aria-label="Images" accept="image/*" multiple ref=${files} />
      ${isBusy ? html`<button type="button" onClick=${stop}>Stop</button>` : html`<button disabled=${isAsked}>Send</button>`}
      <button type="button" disabled=${isBusy || isAsked || !chat.messages.length} onClick=${() => chat.regenerate()}>Ask again</button>
    </div></form>`;
}

const found = await fetch(conversation);
if (found.status === 401) location.replace("./"); // the first page gives this browser its name
const { messages = [], requests = [] } = found.ok ? await found.json() : {};
createRoot(document.getElementById("page")).render(
  html`<${Chat} messages=${messages} isRunning=${requests.some((each) => each.outcome === null)} explanation=${requests[0]?.explanation} />`,
);
