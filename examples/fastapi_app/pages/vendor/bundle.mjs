// Writes bundled/*.js, which the pages load as they are, and bundled/LICENSES.txt: npm ci && node bundle.mjs
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const { metafile } = await build({
  entryPoints: ["use-chat.mjs", "ag-ui.mjs"],
  outdir: "bundled",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  metafile: true,
  define: { "process.env.NODE_ENV": '"production"' },
});
const folders = new Set(
  Object.keys(metafile.inputs).flatMap((file) => file.match(/^(?:.*node_modules\/)(?:@[^/]+\/)?[^/]+/) ?? []),
);
const licences = [...folders].sort().map((folder) => {
  const about = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const file = readdirSync(folder).find((name) => /^(licen[cs]e|copying)/i.test(name));
  const text = file ? readFileSync(`${folder}/${file}`, "utf8").trim() : `(${about.license}; the package has no text)`;
  return `${about.name} ${about.version} (${about.license})\n\n${text}\n`;
});
writeFileSync("bundled/LICENSES.txt", licences.join(`\n${"-".repeat(80)}\n\n`));
