// The Markdown of a model as nodes of the page. marked reads the text; the nodes are made here, one kind of token after
// the other, so that a text can become nothing but the elements below. HTML in it is shown as text.
import { lexer } from "./vendor/marked.mjs";

const MOST_CHARACTERS = 50_000; // a longer text is shown as it is
const MOST_MILLISECONDS = 100; // so is one that takes longer to read: some texts take the square of their length
const ADDRESS = /^(https?:\/\/|mailto:)/i;
const SIGNS = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };

let level = 1; // of the newest heading: those of a text follow that of the page, and none is left out

function tag(name, ...children) {
  const made = document.createElement(name);
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

function table(token) {
  const row = (name, cells) => tag("tr", ...cells.map((cell) => tag(name, ...inside(cell))));
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
  image: (token) => link(token, token.text || token.href), // not loaded, since that would tell its server who reads
  list,
  table,
};

const nodes = (tokens) => tokens.flatMap((token) => (MADE[token.type] ?? ((other) => other.raw))(token));

// Return the element that shows a part of a message. A part that takes long keeps to plain text from then on.
export function markdown(part) {
  if (part.isPlain || part.text.length > MOST_CHARACTERS) return tag("div", part.text);
  const began = performance.now();
  level = 1;
  let made;
  try {
    made = nodes(lexer(part.text));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // too deep
    part.isPlain = true;
    return tag("div", part.text);
  }
  part.isPlain = performance.now() - began > MOST_MILLISECONDS;
  const whole = tag("div", ...made);
  whole.setAttribute("class", "markdown");
  return whole;
}
