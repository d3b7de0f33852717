// The real clients on two processes of one server: `node moving_clients.mjs MODULES ONE TWO KIND-SCENE ...`, all at once.
// They ask at ONE, which is killed, and come back at TWO. In the scene "stream" they are in the middle of its stream then; in
// "answer" they send their answers to TWO while ONE still runs. Prints one line of JSON, with an object for each.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { pageOf } from "./vercel_page.mjs";

const [modules, one, two, ...cases] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/x.js`));
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

async function agui(id, report) {
  const { HttpAgent } = await load("@ag-ui/client");
  let address = one;
  const agent = new HttpAgent({
    url: "http://unused/agent", threadId: id,
    initialMessages: [{ id: "u1", role: "user", content: "Where am I?" }],
    fetch: (_url, options) => fetch(`${address}/agent`, options),
  });
  const run = async (runId, resume) => {
    let outcome;
    await agent.runAgent({ runId, ...(resume && { resume }) }, {
      onRunFinishedEvent: ({ event }) => { outcome = event.outcome; },
      onRunErrorEvent: ({ event }) => { report.errors.push(event.message); },
      onRunFailed: ({ error }) => { report.errors.push(`failed: ${error.message}`); },
    });
    return outcome;
  };
  const { interrupts } = await run("r1");
  const calls = agent.messages.flatMap((m) => m.toolCalls ?? []);
  const mine = calls.find((call) => call.function.name === "locate");
  agent.addMessage({ id: "t1", role: "tool", toolCallId: mine.id, content: '{"city":"Kyiv"}' });
  address = two;
  report.outcome = await run("r2", interrupts.map((each) => ({ interruptId: each.id, status: "resolved", payload: { approved: true } })));
  report.messages = agent.messages;
}

const reports = await Promise.all(cases.map(async (name) => {
  const [kind, scene] = name.split("-");
  const report = { errors: [], lost: [] };
  await (kind === "agui" ? agui(`chat-${name}`, report) : vercel(kind, scene, `chat-${name}`, report));
  return [name, report];
}));
console.log(JSON.stringify(Object.fromEntries(reports)));
