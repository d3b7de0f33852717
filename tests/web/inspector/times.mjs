// Calls the functions of the page's time.js with the JSON on stdin: a list of [name, arguments].
import { readFileSync } from "node:fs";

const page = await import(process.argv[2]);
const asked = JSON.parse(readFileSync(0, "utf8"));
const value = ([name, args]) => {
  if (name === "scale") {
    const found = page.scale(...args.slice(0, 3));
    return { ticks: found.ticks, gaps: found.gaps, at: args[3].map(found.x) };
  }
  if (name === "parser") {
    const seen = [];
    const feed = page.parser((event, data) => seen.push([event, data]));
    args.forEach(feed);
    return seen;
  }
  return page[name](...args);
};
process.stdout.write(JSON.stringify(asked.map(value)));
