// Measures every text of every chart of reports, as plotly draws it and as a file: SHOTS FOLDER...
// No two boxes may share more than a pixel in both directions, and none may leave its drawing.
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";
import { browse, charts, check } from "./browser.mjs";

const [shots, ...folders] = process.argv.slice(2);
const TOLERANCE = 1;
let measured = 0;

// Runs in the page: what is wrong with the texts within `root`, whose frame is `box`.
function faults([root, tolerance]) {
  const drawing = typeof root === "string" ? document.querySelector(root) : root;
  const frame = drawing.getBoundingClientRect();
  const seen = function (text) {
    const style = getComputedStyle(text);
    const box = text.getBoundingClientRect();
    return text.textContent.trim() && style.visibility !== "hidden" && style.display !== "none"
      && style.opacity !== "0" && box.width > 0 && box.height > 0;
  };
  const texts = Array.from(drawing.querySelectorAll("text"), (text) => text).filter(seen)
    .map((text) => ({ words: text.textContent, box: text.getBoundingClientRect() }));
  const found = [];
  for (const [i, { words, box }] of texts.entries()) {
    const out = Math.max(frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom);
    if (out > tolerance) found.push(`"${words}" is cut off by ${out.toFixed(1)} px`);
    for (const other of texts.slice(i + 1)) {
      const wide = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
      const tall = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
      if (wide > tolerance && tall > tolerance) found.push(`"${words}" and "${other.words}" overlap by ${wide.toFixed(1)} × ${tall.toFixed(1)} px`);
    }
  }
  return { texts: texts.length, found };
}

function take(where, { texts, found }, wrong) {
  measured += texts;
  if (texts === 0) wrong.push(`${where}: no text was found`);
  wrong.push(...found.map((fault) => `${where}: ${fault}`));
}

const wrong = [];
await browse(shots, async function (open) {
  for (const width of [1400, 800]) {
    const page = await open({ viewport: { width, height: 900 } });
    for (const folder of folders) {
      const name = basename(folder);
      await page.goto(pathToFileURL(join(folder, "report.html")).href);
      for (const id of await charts(page, "main")) {
        take(`${name}/${id} at ${width} px`, await page.evaluate(faults, [`[id="${id}"] .plot`, TOLERANCE]), wrong);
      }
      await page.evaluate(() => scrollTo(0, 0));
      if (process.env.PACELINE_TEST_SHOTS) await page.screenshot({ path: join(shots, `${name}-${width}.png`), fullPage: true });
    }
  }
  const page = await open();
  for (const folder of folders) {
    for (const file of readdirSync(join(folder, "charts")).filter((file) => file.endsWith(".svg"))) {
      await page.setContent(readFileSync(join(folder, "charts", file), "utf8"));
      take(`${basename(folder)}/${file}`, await page.evaluate(faults, ["svg", TOLERANCE]), wrong);
    }
  }
});
check(wrong.length === 0, `${wrong.length} faults:\n${wrong.join("\n")}`);
console.log(JSON.stringify({ texts: measured }));
