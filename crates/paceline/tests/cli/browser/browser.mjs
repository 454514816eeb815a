// A browser for the tests: Debian's Chromium through playwright-core, which PACELINE_TEST_BROWSER names the folder of.
import { createRequire } from "node:module";
import { mkdirSync } from "node:fs";
import { join } from "node:path";

const require = createRequire(join(process.env.PACELINE_TEST_BROWSER, "x.js"));
const { chromium } = require("playwright-core");

// No single wait is longer, in ms.
export const PATIENCE = 30000;

export function check(holds, words) {
  if (!holds) throw new Error(words);
}

// Opens a browser with nothing of anybody in it. `use` gets a function that opens pages, and the list of what went wrong
// in any of them.
export async function browse(shots, use) {
  mkdirSync(shots, { recursive: true });
  const browser = await chromium.launch({
    executablePath: process.env.PACELINE_TEST_CHROMIUM || "/usr/bin/chromium",
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync"],
    timeout: 2 * PATIENCE,
  });
  const problems = [], asked = [];
  try {
    const open = async function (options) {
      const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
      const page = await context.newPage();
      page.setDefaultTimeout(PATIENCE);
      page.on("console", (m) => { if (m.type() === "error" || m.type() === "warning") problems.push(m.type() + ": " + m.text()); });
      page.on("pageerror", (e) => problems.push("exception: " + e.message));
      page.on("request", (r) => asked.push(r.url()));
      return page;
    };
    await use(open, asked);
    check(problems.length === 0, "the console has: " + problems.join(" | "));
  } catch (error) {
    throw new Error(error.message + (problems.length ? "\nthe console has: " + problems.join(" | ") : ""));
  } finally {
    await browser.close();
  }
}

// Scrolls to every chart, and looks whether it is drawn and not empty; their ids.
export async function charts(page, within) {
  const figures = page.locator(within + " figure.chart");
  await figures.first().waitFor();
  const ids = await figures.evaluateAll((all) => all.map((f) => f.id));
  for (const id of ids) {
    const figure = page.locator("[id=\"" + id + "\"]").first();
    // A chart may be exchanged for a newer one while it is looked at.
    await page.waitForFunction(function (id) {
      const figure = document.getElementById(id);
      if (!figure) return false;
      figure.scrollIntoView({ block: "center", behavior: "instant" });
      const svg = figure.querySelector(".main-svg");
      if (!svg) return false;
      const marks = svg.querySelectorAll(".trace path, .points path, .point path, .hm image, .errorbar path");
      const seen = Array.from(marks).filter(function (mark) {
        const box = mark.getBoundingClientRect();
        return box.width > 0 || box.height > 0;
      });
      return seen.length > 0 && svg.getBoundingClientRect().height > 100;
    }, id, { timeout: PATIENCE }).catch(function (error) { throw new Error("the chart " + id + " is empty: " + error.message); });
    check(await figure.locator("figcaption").innerText() !== "", id + " says how to read it");
  }
  return ids;
}

// What keyboards and screen readers need of a page.
export async function usable(page) {
  const faults = await page.evaluate(function () {
    const faults = [];
    const ids = Array.from(document.querySelectorAll("[id]"), (e) => e.id);
    for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) faults.push("twice the id " + id);
    for (const input of document.querySelectorAll("input:not([type=hidden]), select")) {
      if (!input.labels.length && !input.getAttribute("aria-label")) faults.push("no label: " + input.outerHTML);
    }
    for (const head of document.querySelectorAll("th")) if (!head.hasAttribute("scope")) faults.push("no scope: " + head.outerHTML);
    for (const link of document.querySelectorAll("a, button")) {
      if (!link.textContent.trim() && !link.getAttribute("aria-label") && !link.closest(".plot")) faults.push("no name: " + link.outerHTML);
    }
    for (const bar of document.querySelectorAll("progress, [role=img]")) if (!bar.getAttribute("aria-label")) faults.push("no name: " + bar.outerHTML.slice(0, 90));
    if (document.querySelectorAll("h1").length !== 1) faults.push("there is not one h1");
    if (document.querySelectorAll("main").length !== 1) faults.push("there is not one main");
    if (!document.documentElement.lang) faults.push("no language");
    if (!document.querySelector("[aria-live=polite]")) faults.push("news is not told");
    return faults;
  });
  check(faults.length === 0, page.url() + ": " + faults.join(" | "));
}
