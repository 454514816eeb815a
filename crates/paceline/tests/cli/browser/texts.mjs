// Measures every text of every chart of reports, as plotly draws it, and as SVG files: SHOTS FOLDER...
// No two boxes of texts of a chart may share more than a pixel both ways, and none may leave its drawing.
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";
import { browse, check } from "./browser.mjs";

const [shots, ...folders] = process.argv.slice(2);
const TOLERANCE = 1;
// A window on a desk, and one that is narrower than what charts need.
const WIDTHS = [1400, 800];

// In the page: the number of texts in each drawing that a selector finds, and what is wrong with them.
function measure([selector, tolerance]) {
  const all = [];
  for (const drawing of document.querySelectorAll(selector)) {
    const frame = drawing.getBoundingClientRect();
    const seen = function (text) {
      const style = getComputedStyle(text);
      return text.textContent.trim() && style.visibility !== "hidden" && style.display !== "none" && style.opacity !== "0";
    };
    const texts = Array.from(drawing.querySelectorAll("text")).filter(seen)
      .map((text) => ({ words: text.textContent, box: text.getBoundingClientRect() }))
      .filter(({ box }) => box.width > 0 && box.height > 0);
    const faults = [];
    texts.forEach(function ({ words, box }, i) {
      const out = Math.max(frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom);
      if (out > tolerance) faults.push(`"${words}" is cut off by ${out.toFixed(1)} px`);
      for (const other of texts.slice(i + 1)) {
        const wide = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
        const tall = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
        if (wide > tolerance && tall > tolerance) {
          faults.push(`"${words}" and "${other.words}" share ${wide.toFixed(1)} × ${tall.toFixed(1)} px`);
        }
      }
    });
    const figure = drawing.closest("figure");
    all.push({ id: figure ? figure.id : "", texts: texts.length, faults });
  }
  return all;
}

let measured = 0, drawings = 0;
const wrong = [];
function take(where, found) {
  check(found.length > 0, where + " has no drawing");
  for (const { id, texts, faults } of found) {
    drawings += 1;
    measured += texts;
    if (texts === 0) faults.push("there is no text in it");
    wrong.push(...faults.map((fault) => `${where} ${id}: ${fault}`));
  }
}

await browse(shots, async function (open) {
  const page = await open({ viewport: { width: WIDTHS[0], height: 900 } });
  for (const folder of folders) {
    await page.goto(pathToFileURL(join(folder, "report.html")).href);
    await page.evaluate(() => document.querySelectorAll("figure.chart").forEach(window.pacelineDraw));
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: 900 });
      await page.evaluate(() => Promise.all(Array.from(document.querySelectorAll(".plot"), (plot) => window.Plotly.Plots.resize(plot))));
      take(`${basename(folder)} at ${width} px`, await page.evaluate(measure, [".plot", TOLERANCE]));
      if (process.env.PACELINE_TEST_SHOTS) await page.screenshot({ path: join(shots, `${basename(folder)}-${width}.png`), fullPage: true });
    }
    await page.setViewportSize({ width: WIDTHS[0], height: 900 });
    if (process.env.PACELINE_TEST_SHOTS) await page.pdf({ path: join(shots, `${basename(folder)}.pdf`), format: "A4", margin: { top: "15mm", bottom: "15mm", left: "15mm", right: "15mm" } });
  }
  const still = await open();
  for (const folder of folders) {
    for (const file of readdirSync(join(folder, "charts")).filter((file) => file.endsWith(".svg"))) {
      await still.setContent(readFileSync(join(folder, "charts", file), "utf8"));
      take(`${basename(folder)}/${file}`, await still.evaluate(measure, ["svg", TOLERANCE]));
    }
  }
});
check(wrong.length === 0, `${wrong.length} faults:\n${wrong.join("\n")}`);
console.log(JSON.stringify({ drawings, texts: measured }));
