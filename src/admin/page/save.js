// "Save this fan-out": one file that shows it anywhere, without this page, a script or a network.

import { drawDetail } from "./detail.js";
import { h } from "./draw.js";
import { title } from "./fanout.js";
import { dateTime } from "./format.js";

const POLICY = "default-src 'none'; style-src 'unsafe-inline'";

/** The text of the file. It is put together as text: what this page may not have, styles in a document, the file may. */
async function file(fanOut, model) {
  const sheet = await fetch("/page/page.css");
  if (!sheet.ok) throw new Error(`the style sheet: ${sheet.status}`);
  const style = await sheet.text();
  const saved = h("p", { class: "muted small" }, `Saved from forkpoint ${model.settings.version} at ${dateTime(model.now())}.`);
  const section = h("section", { class: "detail" });
  drawDetail(section, fanOut, model);
  const main = h("main", { class: "saved-file" }, h("h1", null, title(fanOut)), section, saved);
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="${POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
${h("title", null, `forkpoint fan-out ${fanOut.id}`).outerHTML}
<style>${style}</style>
</head>
<body>${main.outerHTML}</body>
</html>
`;
}

/** Hands the file to the browser's downloads. */
export async function save(fanOut, model) {
  const url = URL.createObjectURL(new Blob([await file(fanOut, model)], { type: "text/html" }));
  const link = h("a", { href: url, download: `forkpoint-${fanOut.id}.html` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
