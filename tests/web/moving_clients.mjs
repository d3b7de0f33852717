// The real clients on two processes of one server: `node moving_clients.mjs MODULES ONE TWO KIND-SCENE ...`, all at once.
// They ask at ONE, which is killed, and come back at TWO. In the scene "stream" they are in the middle of its stream then; in
// "answer" they send their answers to TWO while ONE still runs. Prints one line of JSON, with an object for each.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { agentOf } from "./agui_page.mjs";
import { pageOf } from "./vercel_page.mjs";

const [modules, one, two, ...cases] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/x.js`));
// Besides its own, HttpAgent rejects a promise that nobody has when its connection is lost.
process.on("unhandledRejection", (error) => { if (error.message !== "terminated") throw error; });
const load = async (name) => import(pathToFileURL(require.resolve(name)));

async function vercel(version, scene, id, report) {
  const ai = await load(`ai-${version}`);
  const Page = pageOf(ai);
  let address = one;
  const transport = new ai.DefaultChatTransport({
    api: "/chat",
    fetch: async (url, options) => {
      const response = await fetch(`${address}${url}`, options);
      if (!response.ok) report.errors.push(`${response.status} ${await response.clone().text()}`);
      return response;
    },
  });
  const noted = (list) => (error) => list.push(`${error.name}: ${error.message}`);
  const page = new Page({ id, transport, onError: noted(scene === "stream" ? report.lost : report.errors) });
  await page.sendMessage({ text: "Where am I?" });
  const parts = page.messages.at(-1).parts;
  const asked = parts.find((part) => part.state === "approval-requested");
  const mine = parts.find((part) => part.type === "tool-locate");
  await page.addToolOutput({ tool: "locate", toolCallId: mine.toolCallId, output: { city: "Kyiv" } });
  await page.addToolApprovalResponse({ id: asked.approval.id, approved: true });
  if (scene === "answer") address = two;
  await page.sendMessage(); // the answers; in the scene "stream", this is cut off
  address = two;
  report.cut = page.messages.at(-1);
  let last = page;
  if (scene === "stream") {
    // The page is loaded again, at the other process.
    const { messages } = await (await fetch(`${two}/conversations/${id}`)).json();
    last = new Page({ id, transport, messages, onError: noted(report.errors) });
    await last.resumeStream();
  }
  report.messages = last.messages;
  report.status = last.status;
  await last.regenerate({ messageId: last.messages.at(-1).id });
  report.again = last.messages;
}

async function agui(scene, id, report) {
  const Agent = agentOf(await load("@ag-ui/client"));
  let address = one;
  const about = { url: "/agent", threadId: id, fetch: (path, options) => fetch(`${address}${path}`, options) };
  const agent = new Agent({ ...about, initialMessages: [{ id: "u1", role: "user", content: "Where am I?" }] });
  const noted = (errors, found = {}) => ({
    found,
    onRunFinishedEvent: ({ event }) => { found.outcome = event.outcome; },
    onRunErrorEvent: ({ event }) => { errors.push(event.message); },
    onRunFailed: ({ error }) => { errors.push(`failed: ${error.message}`); },
  });
  const run = async (runId, resume, errors = report.errors) => {
    const notes = noted(errors);
    await agent.runAgent({ runId, ...(resume && { resume }) }, notes);
    return notes.found.outcome;
  };
  const { interrupts } = await run("r1");
  const calls = agent.messages.flatMap((m) => m.toolCalls ?? []);
  const mine = calls.find((call) => call.function.name === "locate");
  agent.addMessage({ id: "t1", role: "tool", toolCallId: mine.id, content: '{"city":"Kyiv"}' });
  const resume = interrupts.map((each) => ({ interruptId: each.id, status: "resolved", payload: { approved: true } }));
  if (scene === "answer") {
    address = two;
    report.outcome = await run("r2", resume);
    report.messages = agent.messages;
    return;
  }
  await run("r2", resume, report.lost).catch(() => {}); // this is cut off
  report.cut = structuredClone(agent.messages);
  address = two;
  // The page connects again, and another one is loaded meanwhile.
  const page = new Agent(about);
  const again = noted(report.errors);
  agent.setMessages([]);
  agent.pendingInterrupts = [];
  await Promise.all([agent.connectAgent({}, again), page.connectAgent({}, noted(report.errors))]);
  report.outcome = again.found.outcome;
  report.messages = agent.messages;
  report.loaded = page.messages;
}

const reports = await Promise.all(cases.map(async (name) => {
  const [kind, scene] = name.split("-");
  const report = { errors: [], lost: [] };
  await (kind === "agui" ? agui(scene, `chat-${name}`, report) : vercel(kind, scene, `chat-${name}`, report));
  return [name, report];
}));
console.log(JSON.stringify(Object.fromEntries(reports)));
