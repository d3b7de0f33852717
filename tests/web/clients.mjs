// A real client: `node clients.mjs MODULES ADDRESS KIND SCENE ...`, one scene after the other. Prints one line of JSON: what it ends with
// in each scene.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { agentOf } from "./agui_page.mjs";
import { pageOf } from "./vercel_page.mjs";

const [modules, address, kind, ...scenes] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/x.js`));
const load = async (name) => import(pathToFileURL(require.resolve(name)));
let report;
const warn = console.warn;
console.warn = (...args) => { report.errors.push(`warning: ${args.join(" ")}`); warn(...args); };
const OWN = ["locate", "watch"]; // the tools of the page
const cancel = () => fetch(`${address}/cancel`, { method: "POST" });

async function vercel(version, scene) {
  const ai = await load(`ai-${version}`);
  const Page = pageOf(ai);
  const again = (o) =>
    report.turns < 9 && (ai.lastAssistantMessageIsCompleteWithApprovalResponses(o) || ai.lastAssistantMessageIsCompleteWithToolCalls(o));
  const transport = new ai.DefaultChatTransport({
    api: `${address}/vercel/${scene}?v=${version}`,
    fetch: async (url, options) => {
      report.turns += 1;
      const response = await fetch(url, options);
      if (!response.ok) report.errors.push(`${response.status} ${await response.clone().text()}`);
      return response;
    },
    prepareReconnectToStreamRequest: ({ id }) => ({ api: `${address}/vercel/${scene}/${id}/stream` }),
  });
  const chat = new Page({
    id: `chat-${version}-${scene}`,
    transport,
    sendAutomaticallyWhen: again,
    onError: (e) => report.errors.push(`${e.name}: ${e.message}`),
    onToolCall: ({ toolCall }) => {
      if (toolCall.dynamic || !OWN.includes(toolCall.toolName)) return;
      report.ran.push(toolCall.input);
      void chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { city: "Kyiv", n: report.turns } });
    },
    onData: (part) => report.chunks.push(part.type),
  });
  const sending = scene === "image"
    ? chat.sendMessage({ text: "What is this?", files: [{ type: "file", mediaType: "image/png", filename: "a.png", url: "data:image/png;base64,iVBORw0KGgo=" }] })
    : chat.sendMessage({ text: "hi" });
  if (scene === "cancel") {
    while (!JSON.stringify(chat.messages).includes("I am begin")) await new Promise((r) => setTimeout(r, 10));
    await cancel();
  }
  if (scene === "rejoin") await rejoin(() => new Page({ id: chat.id, transport, onError: (e) => report.errors.push(`rejoined ${e.name}: ${e.message}`) }), chat);
  await sending;
  for (let turn = 0; turn < 5; turn++) {
    const asked = chat.messages.at(-1).parts.filter((p) => p.state === "approval-requested");
    if (!asked.length) break;
    for (const part of asked) {
      await chat.addToolApprovalResponse({ id: part.approval.id, approved: part.input.path !== "/b", reason: "because" });
    }
    while (chat.status !== "ready" && chat.status !== "error") await new Promise((r) => setTimeout(r, 10));
  }
  while (chat.status !== "ready" && chat.status !== "error") await new Promise((r) => setTimeout(r, 10));
  report.status = chat.status;
  report.messages = chat.messages;
  const late = new Page({ id: chat.id, transport, onError: (e) => report.errors.push(`late ${e.name}: ${e.message}`) });
  if (scene !== "error") {
    await late.resumeStream();
    report.late = late.messages;
  }
}

// Load the page 50 times while the answer arrives.
async function rejoin(newPage, chat) {
  const points = new Set();
  const rejoined = [];
  while (chat.messages.length < 2) await new Promise((r) => setTimeout(r, 1)); // Nothing has begun yet.
  while (rejoined.length < 50) {
    points.add(JSON.stringify(chat.messages).length);
    const page = newPage();
    const shown = JSON.stringify(chat.messages).length;
    rejoined.push(page.resumeStream().then(() => page.messages));
    do await new Promise((r) => setTimeout(r, 1)); // Each page that comes lets the answer grow.
    while (chat.status === "streaming" && JSON.stringify(chat.messages).length === shown);
  }
  report.points = points.size;
  report.rejoined = await Promise.all(rejoined);
}

async function agui(scene) {
  const Agent = agentOf(await load(kind === "agui" ? "@ag-ui/client" : "@ag-ui/client-0"));
  const about = { url: `${address}/agui/${scene}`, threadId: `thread-${scene}` };
  // A page that is loaded now.
  const loaded = async () => {
    const page = new Agent(about);
    await page.connectAgent({}, {
      onRunErrorEvent: ({ event }) => { report.errors.push(`loaded ${event.message}`); },
      onRunFailed: ({ error }) => { report.errors.push(`load failed: ${error.message}`); },
    });
    return { messages: page.messages, asks: page.pendingInterrupts };
  };
  const agent = new Agent({
    ...about,
    initialMessages: [{ id: "u1", role: "user", content: scene === "image" ? [{ type: "text", text: "What?" }, { type: "image", source: { type: "data", value: "iVBORw0KGgo=", mimeType: "image/png" } }] : "hi" }],
  });
  let resume;
  for (report.turns = 1; report.turns < 9; report.turns++) {
    let outcome, text = "";
    const running = agent.runAgent({ runId: `run-${report.turns}`, ...(resume && { resume }) }, {
      onEvent: ({ event }) => {
        report.chunks.push(event.type);
        text += event.delta ?? "";
        if (scene === "cancel" && text.includes("I am begin") && !report.cancelled) { report.cancelled = true; void cancel(); }
      },
      onRunFinishedEvent: ({ event }) => { outcome = event.outcome; },
      onRunErrorEvent: ({ event }) => { report.errors.push(event.message); },
      onRunFailed: ({ error }) => { report.errors.push(`failed: ${error.message}`); },
    });
    if (scene === "rejoin") await connectOften(loaded, agent);
    await running;
    report.outcome = outcome;
    report.loaded.push({ ...(await loaded()), as: structuredClone(agent.messages), asked: agent.pendingInterrupts });
    const open = agent.messages.flatMap((m) => m.toolCalls ?? []).filter((c) => !agent.messages.some((m) => m.toolCallId === c.id));
    const interrupts = outcome?.interrupts ?? [];
    resume = interrupts.map((i) => ({ interruptId: i.id, status: "resolved", payload: { approved: i.metadata.arguments.path !== "/b", reason: "because" } }));
    const own = open.filter((c) => OWN.includes(c.function.name) && !interrupts.some((i) => i.toolCallId === c.id));
    for (const call of own) agent.addMessage({ id: `t-${call.id}`, role: "tool", toolCallId: call.id, content: JSON.stringify({ city: "Kyiv" }) });
    if (!interrupts.length) resume = undefined;
    if (!interrupts.length && !own.length) break;
  }
  report.messages = agent.messages;
}

// Load the page 50 times while the answer arrives.
async function connectOften(loaded, agent) {
  const points = new Set();
  const rejoined = [];
  while (agent.messages.length < 2) await new Promise((r) => setTimeout(r, 1)); // Nothing has begun yet.
  while (rejoined.length < 50) {
    const shown = JSON.stringify(agent.messages).length;
    points.add(shown);
    rejoined.push(loaded());
    do await new Promise((r) => setTimeout(r, 1)); // Each page that comes lets the answer grow.
    while (agent.isRunning && JSON.stringify(agent.messages).length === shown);
  }
  report.points = points.size;
  report.rejoined = await Promise.all(rejoined);
}

const reports = {};
for (const scene of scenes) {
  report = { errors: [], chunks: [], ran: [], turns: 0, loaded: [] };
  await (kind.startsWith("agui") ? agui(scene) : vercel(kind, scene));
  reports[scene] = report;
}
console.log(JSON.stringify(reports));
