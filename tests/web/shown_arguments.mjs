// How a page shows arguments: node shown_arguments.mjs SCRIPT END. The script's own `json`, whose definition ends before the text END,
// writes each value of the JSON on stdin.
import { readFileSync } from "node:fs";

const [, , path, end] = process.argv;
const code = readFileSync(path, "utf8");
const json = new Function(`${code.slice(code.indexOf("const UNSEEN ="), code.indexOf(end))} return json;`)();
process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map((value) => json(value))));
