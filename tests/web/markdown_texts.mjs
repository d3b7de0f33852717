// Reads random texts as Markdown, with `document` played: node markdown_texts.mjs MODULE SEED COUNT. Prints one line of JSON:
// the elements and attributes that were made, the addresses of links, and the texts that were lost.
class Element {
  constructor(name) { Object.assign(this, { name, children: [], attributes: {} }); }
  append(...children) {
    for (const child of children) {
      if (!(child instanceof Element || typeof child === "string")) throw new TypeError(`${typeof child} is no node`);
    }
    this.children.push(...children);
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  *all() { yield this; for (const each of this.children) if (each instanceof Element) yield* each.all(); }
  get text() { return this.children.map((each) => each.text ?? each).join(""); }
}
globalThis.document = { createElement: (name) => new Element(name) };

const PIECES = [
  "*", "**", "_", "~~", "`", "```", "\n", "\n\n", "  ", "    ", "\t", "  \n", "> ", "- ", "- [x] ", "1. ", "7) ", "# ", "###### ", "===", "---", "|",
  "|-|-|\n", "[", "](", "![", "]", "(", ")", "[a]", "[a]: javascript:x\n", "<", "</b>", "<script>alert(1)</script>", "<img src=x onerror=a>", "<!--",
  "-->", "<javascript:a>", "<https://x.y>", "http://a.b", "www.a.b", "a@b.c", "javascript:x", "JAVASCRIPT:x", "data:text/html,x", "vbscript:x", "//a.b",
  "&amp;", "&#x6a;", "&lt;", "\\", "\u0000", "\ud800", "😀", "a", "word",
];
const [module, seed, count] = process.argv.slice(2);
const { markdown } = await import(module);
let state = Number(seed);
const chance = (most) => { // mulberry32, whose products are of 32 bits: a product above 2 ** 53 is rounded, and repeats itself soon
  state = (state + 0x6d2b79f5) | 0;
  let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
  mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
  return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296) * most);
};
const found = { elements: new Set(), attributes: new Set(), addresses: new Set() };
for (let number = 0; number < Number(count); number++) {
  const text = Array.from({ length: 1 + chance(60) }, () => PIECES[chance(PIECES.length)]).join("");
  for (const each of markdown({ text }).all()) {
    found.elements.add(each.name);
    for (const name of Object.keys(each.attributes)) found.attributes.add(name);
    if (each.attributes.href) found.addresses.add(each.attributes.href.split(":")[0].toLowerCase());
  }
}
const long = { text: "a*".repeat(30_000) };
const whole = markdown(long).text === long.text;
performance.now = () => process.cpuUsage().user / 1_000; // while the machine stands still, no paragraph takes long
const began = performance.now();
const signs = ["_a_", "*a_", "**a ", "a* "].map((each) => ({ text: `*Once* _upon_\n\n${each.repeat(40_000 / each.length)}\n\n**a** time` }));
const bounded = signs.every((each) => ["em", "strong"].every((name) => [...markdown(each).all()].some((made) => made.name === name)));
const seconds = (performance.now() - began) / 1_000;
const deep = { text: `${">".repeat(20_000)} deep` };
const kept = markdown(deep).text === deep.text && markdown(deep).text === deep.text;
const odd = { text: "- [x]\n  > 7) \nb" }; // marked 18 throws a TypeError
const shown = markdown(odd).text === odd.text && !odd.isPlain;
let reads = 0;
performance.now = () => 101 * reads++; // each reading takes 101 ms
const gaveUp = markdown(odd).text === odd.text && odd.isPlain;
console.log(JSON.stringify({ ...Object.fromEntries(Object.entries(found).map(([name, set]) => [name, [...set].sort()])), whole, kept, shown, gaveUp, bounded, seconds }));
