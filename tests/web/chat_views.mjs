// What the chat page shows of requests: node chat_views.mjs CHAT_JS. Reads from stdin one line of JSON for each request, with its
// streams (lists of chunks as text) and its stored page, and prints a line with the first difference for each view that differs.
import { readFileSync } from "node:fs";

const code = readFileSync(process.argv[2], "utf8");
const between = (begin, end) => code.slice(code.indexOf(begin), code.indexOf(end, code.indexOf(begin)));
const { fold, newMessage, stored, problemOf, parse } = new Function(`
  const $ = () => ({});
  ${between("const UNSEEN =", "const shown =")}
  ${between("const newMessage", "// A message of the history")}
  ${between("function fold", "const PICTURES")}
  ${between("function stored", "// ----")}
  ${between("function problemOf", "// `before`")}
  return { fold, newMessage, stored, problemOf, parse };
`)();
const VOID = ["This question is no longer open."]; // It is not part of the conversation.
const CONTROL = ["task_complete", "update_plan", "final_answer"];
// A result is shown as its data or, after a reload, as the text of it.
const plain = (value) => {
  if (typeof value !== "string") return JSON.stringify(value) ?? "";
  try { return value.match(/^[[{]/) ? JSON.stringify(JSON.parse(value)) : value; } catch { return value; }
};
const seen = ({ type, name, state, text, output, error, input }) => JSON.stringify(type !== "call" ? [type, text] : [
  name, ["failed", "denied"].includes(state) ? state : "done", CONTROL.includes(name) ? "" : plain(output), error, plain(input ?? {})]);
const view = (parts) => parts.filter((part) => part.type && !(part.text ?? "x").match(/^\s*$/) && !VOID.includes(part.output)).map(seen);
const live = (chunks) => {
  const message = newMessage("assistant");
  for (const chunk of chunks) fold(message, parse(chunk));
  if (!message.ended) throw new Error("the message has not ended");
  if (message.sent.length) throw new Error("a message of the user was not confirmed");
  return [...view(message.parts), message.problem ?? ""];
};
for (const line of readFileSync(0, "utf8").trim().split("\n")) {
  const { seed, streams, page, request, isCompared } = JSON.parse(line);
  const views = streams.map(live);
  const [, ...messages] = parse(page).map(stored);
  const asSteered = (message) => message.parts.map((part) => (message.role === "user" ? { ...part, type: "steered" } : part));
  if (isCompared) views.push([...view(messages.flatMap(asSteered)), problemOf(request)]);
  for (const [number, each] of views.entries()) {
    const at = each.findIndex((part, index) => part !== views[0][index]);
    if (at >= 0 || each.length !== views[0].length) console.log(JSON.stringify({ seed, number, of: views.length, shows: each[at], live: views[0][at] }));
  }
}
