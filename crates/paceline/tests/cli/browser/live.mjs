// Drives `paceline serve` while a study and a run are under way: ADDRESS STUDY RUN SHOTS.
import { join } from "node:path";
import { PATIENCE, browse, charts, check, usable } from "./browser.mjs";

const [address, study, run, shots] = process.argv.slice(2);
const shot = (page, name, fullPage = true) => page.screenshot({ path: join(shots, name + ".png"), fullPage });
const count = (page) => page.locator("#count").getAttribute("data-count").then(Number);
// The lines of parallel coordinates are really drawn.
const inked = (page) => page.waitForFunction(function () {
  const canvas = document.querySelector("#lines canvas");
  if (!canvas || !(Number(document.getElementById("lines").dataset.rows) > 0)) return false;
  canvas.scrollIntoView({ block: "center", behavior: "instant" });
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let ink = 0;
  for (let i = 3; i < pixels.length; i += 4) if (pixels[i] > 0) ink += 1;
  return ink > pixels.length / 4 / 100;
}, null, { timeout: PATIENCE });
const told = [];

await browse(shots, async function (open) {
  const page = await open();
  // The overview.
  await page.goto(address);
  check((await page.title()).includes("paceline"), "the page has a title");
  await page.getByRole("link", { name: study, exact: true }).first().waitFor();
  await page.locator("#under-way").getByText("Run " + run).waitFor();
  await page.locator("#link[data-state=on]").waitFor();
  await usable(page);
  await shot(page, "overview-light");
  // By keyboard: the first stop leads to the content.
  await page.locator("body").press("Tab");
  check(await page.evaluate(() => document.activeElement.className) === "skip", "the first stop skips to the content");
  await page.keyboard.press("Enter");
  check(await page.evaluate(() => location.hash) === "#main", "it leads to the content");

  // The study: charts are drawn.
  await page.getByRole("link", { name: study, exact: true }).first().click();
  await page.locator("h1").getByText(study).waitFor();
  await page.locator("#told li").first().waitFor();
  const drawn = await charts(page, "#charts");
  check(drawn.length >= 6 && drawn.includes("history") && drawn.includes("main-effects"), "charts: " + drawn);
  told.push(drawn.length + " charts of the study");
  await inked(page);
  await usable(page);
  await page.evaluate(() => scrollTo(0, 0));
  await shot(page, "study-light");

  // Runs appear without a reload.
  await page.evaluate(() => { window.notReloaded = true; });
  const before = await count(page);
  await page.waitForFunction((n) => Number(document.getElementById("count").dataset.count) > n, before, { timeout: PATIENCE });
  check(await page.evaluate(() => window.notReloaded === true), "the page was not loaded again");
  told.push("runs went from " + before + " to " + await count(page) + " without a reload");

  // A filter stands in the address and survives a reload.
  const all = await count(page);
  await page.locator("summary", { hasText: "workers:" }).click();
  await page.locator("#filters").getByRole("checkbox", { name: "2", exact: true }).first().check();
  await page.getByRole("button", { name: "Apply" }).click();
  await page.waitForURL(/f\.workers=2/);
  await page.locator(".chips", { hasText: "workers = 2" }).waitFor();
  // What all of them have is told once, above the table.
  const same = () => page.locator("#runs .over").innerText();
  check((await same()).includes("workers 2") && await count(page) > 0, "only runs of two workers: " + await same());
  await page.reload();
  await page.locator(".chips", { hasText: "workers = 2" }).waitFor();
  check((await same()).includes("workers 2"), "after a reload too");
  check(await count(page) <= all + 200, "a part of the runs");
  // The charts are of the chosen runs.
  await page.locator("#charts figure.chart").first().waitFor();
  await shot(page, "study-filtered", false);
  await page.getByRole("link", { name: "Clear all" }).click();
  await page.waitForURL((url) => !url.search.includes("workers"));

  // Brushing an axis filters the table.
  await page.waitForFunction(() => Number(document.getElementById("lines").dataset.fit) > 0 && !location.search.includes("f."));
  const box = await page.locator("#lines canvas").evaluate(function (c) {
    c.scrollIntoView({ block: "center", behavior: "instant" });
    const box = c.getBoundingClientRect();
    return { x: box.x, y: box.y, width: box.width, height: box.height };
  });
  // The first axis lies an eighth from the side at most; from its middle to beyond its top.
  const axis = box.x + Math.min(90, box.width / 8);
  await page.mouse.move(axis, box.y + box.height * 0.45);
  await page.mouse.down();
  await page.mouse.move(axis, box.y + box.height * 0.2, { steps: 4 });
  await page.mouse.move(axis, box.y + 4, { steps: 4 });
  await page.mouse.up();
  await page.waitForURL(/[?&](f|min)\./);
  await page.locator(".chips").waitFor();
  const [fit, rows] = await page.waitForFunction(function () {
    const { fit, rows } = document.getElementById("lines").dataset;
    return Number(fit) < Number(rows) && [Number(fit), Number(rows)];
  }).then((h) => h.jsonValue());
  told.push("brushing chose " + fit + " of " + rows + " lines");
  check((await page.locator("#count").innerText()).includes(" of "), "the table is filtered too");
  await page.goBack();
  await page.waitForURL((url) => !url.search.includes("f."));

  // Order and picks stand in the address, too; two picked runs are compared.
  await page.locator("#runs thead").getByRole("link", { name: "run", exact: true }).click();
  await page.waitForURL(/sort=run/);
  const boxes = page.locator("#runs tbody input[type=checkbox]");
  for (const i of [0, 1]) await boxes.nth(i).check();
  check(new URL(page.url()).searchParams.getAll("pick").length === 2, "picks stand in the address: " + page.url());
  await page.reload();
  check(await page.locator("#runs tbody input:checked").count() === 2, "and survive a reload");
  await page.locator("#compare").click();
  await page.waitForURL(/\/compare\?/);
  const compared = await charts(page, "#charts");
  check(compared.some((id) => id.startsWith("phases-2")), "charts of both runs: " + compared);
  await usable(page);
  await page.evaluate(() => scrollTo(0, 0));
  await shot(page, "compare-light");
  // Nothing moves when charts come, as the browser itself measures it.
  await page.reload();
  await page.locator("#charts figure.chart").last().waitFor();
  const moved = await page.evaluate(() => new Promise(function (done) {
    let sum = 0;
    new PerformanceObserver(function (list) { for (const shift of list.getEntries()) sum += shift.value; })
      .observe({ type: "layout-shift", buffered: true });
    setTimeout(() => done(sum), 300);
  }));
  check(moved < 0.05, "parts of the page moved while it was loaded: " + moved);

  // A run under way goes on without a reload.
  await page.goto(address + "run/" + run);
  const ids = await charts(page, "#charts");
  for (const id of ["loss", "phases", "resources", "links"]) check(ids.includes(id), id + " is among " + ids);
  await page.evaluate(() => { window.notReloaded = true; scrollTo(0, 0); });
  const step = await page.locator("#head progress").getAttribute("value").then(Number);
  await page.waitForFunction((n) => Number(document.querySelector("#head progress").getAttribute("value")) > n, step);
  check(await page.evaluate(() => window.notReloaded === true), "the run's page was not loaded again");
  await usable(page);
  await shot(page, "run-light");

  // All runs, in the dark, on a small screen too.
  const dark = await open({ colorScheme: "dark" });
  await dark.goto(address + "runs");
  await charts(dark, "#charts");
  const ground = await dark.evaluate(() => getComputedStyle(document.body).backgroundColor);
  check(ground.match(/\d+/g).every((v) => Number(v) < 60), "the ground is dark: " + ground);
  await dark.evaluate(() => scrollTo(0, 0));
  await shot(dark, "runs-dark");
  for (const [path, name] of [["", "overview-dark"], ["study/" + study, "study-dark"], ["run/" + run, "run-dark"]]) {
    await dark.goto(address + path);
    await dark.locator(path ? "#charts figure.chart" : "#studies").first().waitFor();
    await shot(dark, name, false);
  }
  const small = await open({ viewport: { width: 390, height: 800 } });
  await small.goto(address + "study/" + study);
  await inked(small);
  const wide = await small.evaluate(() => document.documentElement.scrollWidth);
  check(wide <= 391, "nothing is wider than a small screen: " + wide + " px");
  await shot(small, "study-small", false);
});
console.log(JSON.stringify({ told }));
