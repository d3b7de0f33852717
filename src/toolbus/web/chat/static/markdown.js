// The Markdown of a model as nodes of the page. marked reads the text; the nodes are made here, one for each kind of token,
// so that a text can become only the elements below. HTML in the text is shown as text.
import { Lexer } from "./vendor/marked.mjs";

// A text beyond these bounds is shown as it is. Reading some texts takes the square of their length.
const MAX_CHARACTERS = 50_000;
const MAX_MILLISECONDS = 100;
const MAX_SIGNS = 500; // of emphasis, in one paragraph
const ADDRESS = /^(https?:\/\/|mailto:)/i;
const SIGNS = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };

// Reading emphasis takes the square of the number of its signs, for minutes within the bound above. So a paragraph with
// too many is plain text.
class BoundedLexer extends Lexer {
  inlineTokens(text, tokens = []) {
    if ((text.match(/[*_]/g)?.length ?? 0) <= MAX_SIGNS) return super.inlineTokens(text, tokens);
    tokens.push({ type: "plain", raw: text });
    return tokens;
  }
}

// The level of the newest heading. The page's own heading has level 1, and screen readers expect that no level is skipped.
let level = 1;

// Each of these is written from right to left if its first letter is.
const BLOCKS = new Set(["div", "p", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "blockquote", "table"]);

function tag(name, ...children) {
  const made = document.createElement(name);
  if (BLOCKS.has(name)) made.setAttribute("dir", "auto");
  made.append(...children);
  return made;
}

const inside = (token) => nodes(token.tokens ?? []);
const plain = (text) => text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (_, name) => SIGNS[name]);

function link(token, ...children) {
  if (!ADDRESS.test(token.href)) return tag("span", ...children, token.href ? ` (${token.href})` : "");
  const made = tag("a", ...children);
  made.setAttribute("href", token.href);
  made.setAttribute("rel", "noopener noreferrer");
  made.setAttribute("target", "_blank");
  return made;
}

function list(token) {
  const items = token.items.map((item) => tag("li", item.task ? `${item.checked ? "☑" : "☐"} ` : "", ...inside(item)));
  const made = tag(token.ordered ? "ol" : "ul", ...items);
  if (token.ordered && token.start > 1) made.setAttribute("start", token.start);
  return made;
}

function aligned(cell, made) {
  if (cell.align === "right" || cell.align === "center") made.setAttribute("class", cell.align);
  return made;
}

function table(token) {
  const row = (name, cells) => tag("tr", ...cells.map((cell) => aligned(cell, tag(name, ...inside(cell)))));
  return tag("table", tag("thead", row("th", token.header)), tag("tbody", ...token.rows.map((cells) => row("td", cells))));
}

const MADE = {
  space: () => "",
  def: () => "",
  checkbox: () => "",
  text: (token) => (token.tokens ? inside(token) : plain(token.text)),
  escape: (token) => plain(token.text),
  codespan: (token) => tag("code", token.text),
  code: (token) => tag("pre", tag("code", token.text)),
  paragraph: (token) => tag("p", ...inside(token)),
  heading: (token) => tag(`h${(level = Math.min(token.depth + 1, level + 1, 6))}`, ...inside(token)),
  blockquote: (token) => tag("blockquote", ...inside(token)),
  strong: (token) => tag("strong", ...inside(token)),
  em: (token) => tag("em", ...inside(token)),
  del: (token) => tag("del", ...inside(token)),
  br: () => tag("br"),
  hr: () => tag("hr"),
  link: (token) => link(token, ...inside(token)),
  // A picture is not loaded, since its server would learn who reads.
  image: (token) => link(token, token.text || token.href),
  list,
  table,
};

const nodes = (tokens) => tokens.flatMap((token) => (MADE[token.type] ?? ((other) => other.raw))(token));

// Return the element that shows a part of a message. A part that takes long is plain text from then on.
export function markdown(part) {
  if (part.isPlain || part.text.length > MAX_CHARACTERS) return tag("div", part.text);
  const began = performance.now();
  level = 1;
  let made;
  try {
    made = nodes(new BoundedLexer().lex(part.text));
  } catch (error) {
    part.isPlain = error instanceof RangeError; // It is nested too deeply. Others are mistakes of marked, which more text may end.
  }
  part.isPlain ||= performance.now() - began > MAX_MILLISECONDS;
  if (!made) return tag("div", part.text);
  const whole = tag("div", ...made);
  whole.setAttribute("class", "markdown");
  return whole;
}
