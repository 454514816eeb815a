// Drives the pages of many runs: ADDRESS BINARY STORE SHOTS. The store has two studies and single runs; three have the tag
// `paper`, one of them the name `baseline`, a note and the command that made it; one is archived.
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { PATIENCE, browse, charts, check, usable } from "./browser.mjs";

const [address, binary, store, shots] = process.argv.slice(2);
const shot = (page, name, fullPage = false) => page.screenshot({ path: join(shots, name + ".png"), fullPage });
const count = (page) => page.locator("#count").getAttribute("data-count").then(Number);
const counted = (page, n) => page.waitForFunction((n) => document.getElementById("count")?.dataset.count === String(n), n, { timeout: PATIENCE });
const told = [];

// Pairs of texts whose boxes intersect, among those that are seen within each element of a selector.
function overlaps(page, within) {
  return page.evaluate(function (within) {
    const found = [];
    for (const root of document.querySelectorAll(within)) {
      const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), boxes = [];
      for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const text = node.textContent.trim(), style = node.parentElement.closest(".unseen, script, [hidden]");
        if (!text || style || !node.parentElement.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const box of range.getClientRects()) if (box.width > 1 && box.height > 1) boxes.push({ text, node, box });
      }
      for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
        const a = boxes[i].box, b = boxes[j].box;
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 2 && boxes[i].node !== boxes[j].node) found.push(boxes[i].text + " | " + boxes[j].text);
      }
    }
    return found.slice(0, 5);
  }, within);
}

// Nothing is wider than the page or its own box, and no texts lie upon each other.
async function fits(page, within) {
  const [wide, inner] = await page.evaluate((within) => [document.documentElement.scrollWidth,
    Array.from(document.querySelectorAll(within + " .wide"), (w) => w.scrollWidth - w.clientWidth)], within);
  const room = page.viewportSize().width;
  check(wide <= room, page.url() + " is " + wide + " px wide");
  check(inner.every((over) => over <= 0), page.url() + ": a table is wider than its room: " + inner);
  const found = await overlaps(page, within + " table");
  check(found.length === 0, page.url() + ": texts overlap: " + found.join("; "));
}

// The cells of a column of the table of runs.
const heads = (page) => page.locator("#runs thead th").evaluateAll((all) => all.map((h) => h.querySelector("a")?.textContent || ""));
const head = (page, name) => page.locator("#runs thead a").filter({ hasText: new RegExp("^" + name + "$") });
async function column(page, name) {
  const at = (await heads(page)).indexOf(name);
  check(at > 0, "there is no column " + name + " in " + await heads(page));
  return page.locator("#runs tbody tr").evaluateAll((rows, at) => rows.map((r) => r.children[at].innerText.trim()), at);
}
const ascending = (values) => values.every((v, i) => i === 0 || values[i - 1] <= v);

await browse(shots, async function (open) {
  const page = await open({ viewport: { width: 1400, height: 900 }, permissions: ["clipboard-read", "clipboard-write"] });
  await page.goto(address + "runs");
  await page.locator("#runs tbody tr").first().waitFor();
  await fits(page, "#runs");
  const all = await count(page), shown = await heads(page);
  for (const name of ["study", "model", "strategy", "workers", "samples_per_s", "final_accuracy"]) check(shown.includes(name), name + " is among " + shown);
  told.push(all + " runs, columns " + shown.filter(Boolean).join(", "));
  // What is the same everywhere is told once, and has no column.
  check((await page.locator("#runs .over").innerText()).includes("optimizer sgd"), "constants are told: " + await page.locator("#runs .over").innerText());
  check(!shown.includes("optimizer"), "constants have no columns");
  check((await page.locator("#runs thead small").allInnerTexts()).includes("samples/s"), "heads have units");
  // The head stays where it is while rows are scrolled.
  const gap = await page.evaluate(function () {
    const box = document.querySelector("#runs .wide");
    box.scrollTop = box.scrollHeight;
    const gap = document.querySelector("#runs thead th").getBoundingClientRect().top - box.getBoundingClientRect().top;
    box.scrollTop = 0;
    return gap;
  });
  check(Math.abs(gap) < 3, "the head of the table scrolls away: " + gap);
  await usable(page);
  await shot(page, "runs-1400");

  // Order by any column, in the address.
  for (const name of shown.filter((n) => n && n !== "run" && n !== "began")) {
    await head(page, name).click();
    await page.waitForURL((url) => url.searchParams.get("sort") === name);
    await page.locator("#runs thead th[aria-sort=ascending]", { hasText: name }).waitFor();
    const cells = (await column(page, name)).filter((v) => v !== "–" && v !== "none");
    const numbers = cells.map(Number);
    if (name !== "state") check(ascending(numbers.some(Number.isNaN) ? cells : numbers), "rows are not in the order of " + name + ": " + cells);
  }
  await head(page, "final_accuracy").click();
  await page.waitForURL(/sort=final_accuracy/);
  await head(page, "final_accuracy").click();
  await page.waitForURL(/sort=-final_accuracy/);
  await page.locator("th[aria-sort=descending]").waitFor();
  await page.reload();
  const best = (await column(page, "final_accuracy")).filter((v) => v !== "–").map(Number);
  check(ascending(best.reverse()), "the order survives a reload");

  // A limit, in the address.
  await page.getByRole("navigation", { name: "Rows of a page" }).getByRole("link", { name: "25" }).click();
  await page.waitForURL(/limit=25/);
  check(await page.locator("#runs tbody tr").count() === 25, "25 rows are shown");

  // Filters: a study, a tag, a condition, a name.
  await page.goto(address + "runs");
  await page.locator("#filters summary", { hasText: "study:" }).click();
  await page.locator("#filters").getByRole("checkbox", { name: "grid", exact: true }).check();
  await page.getByRole("button", { name: "Apply" }).click();
  await page.waitForURL(/study=grid/);
  await page.locator(".chips", { hasText: "study = grid" }).waitFor();
  const of_study = await count(page);
  check(of_study > 0 && of_study < all && !(await heads(page)).includes("study"), "runs of one study: " + of_study);
  check((await page.locator("#runs .over").innerText()).includes("study grid"), "the study is told once");
  await fits(page, "#runs");
  await page.goto(address + "runs");
  await page.locator("#runs a.tag", { hasText: "paper" }).first().click();
  await page.waitForURL(/tag=paper/);
  await counted(page, 3);
  check(await page.locator("#runs a.tag", { hasText: "paper" }).count() === 3, "every run shown has the tag");
  await page.locator("#runs a.tag", { hasText: "ablation" }).first().click();
  await counted(page, 1);
  await page.getByRole("link", { name: "remove filter tag = ablation" }).click();
  await counted(page, 3);
  await page.getByRole("link", { name: "Clear all" }).click();
  await counted(page, all);
  await page.getByLabel("condition on settings and figures").fill("workers >= 2 and lr <= 0.05");
  await page.getByLabel("condition on settings and figures").press("Enter");
  await page.waitForURL(/where=/);
  await page.locator(".chips", { hasText: "lr <= 0.05" }).waitFor();
  const few = await count(page);
  check(few > 0 && few < all, "a condition chooses " + few + " of " + all);
  check((await column(page, "lr")).every((lr) => Number(lr) <= 0.05), "only runs of which it holds");
  await page.goto(address + "runs?where=workers+%3E");
  await page.locator("#filters .error").waitFor();
  await page.goto(address + "runs?find=basel");
  await counted(page, 1);
  told.push("filters chose " + of_study + " of a study, 3 of a tag, " + few + " by a condition, 1 by name");

  // Archived runs are hidden until they are asked for.
  await page.goto(address + "runs");
  check(await page.locator("#runs tr.archived").count() === 0, "archived runs are hidden");
  await page.getByRole("link", { name: "show 1 archived" }).click();
  await page.waitForURL(/archived=yes/);
  await counted(page, all + 1);
  check(await page.locator("#runs tr.archived").count() === 1, "and shown when asked for");

  // Other columns.
  await page.goto(address + "runs");
  await page.locator("#columns summary").click();
  const box = page.locator("#columns input[value=transport]");
  const had = await box.isChecked();
  await box.setChecked(!had);
  await page.getByRole("button", { name: "Show these" }).click();
  await page.waitForURL(/col=/);
  await page.waitForFunction((had) => Array.from(document.querySelectorAll("#runs thead a"), (a) => a.textContent).includes("transport") !== had, had);

  // A tag that is set on the command line appears without a reload.
  await page.goto(address + "runs?sort=run&limit=25");
  await page.locator("#link[data-state=on]").waitFor();
  await page.evaluate(() => { window.notReloaded = true; });
  const first = await page.locator("#runs tbody input[type=checkbox]").first().getAttribute("value");
  execFileSync(binary, ["runs", "edit", first, "--tag", "late", "--store", store]);
  await page.locator("#runs a.tag", { hasText: "late" }).waitFor();
  check(await page.evaluate(() => window.notReloaded === true), "the page was not loaded again");

  // Five runs beside each other, picked on two pages of the table.
  const picks = () => page.locator("#runs tbody input[type=checkbox]");
  for (const i of [0, 8]) await picks().nth(i).check();
  await page.getByRole("navigation", { name: "Pages of runs" }).getByRole("link", { name: "last" }).click();
  await page.waitForURL(/page=/);
  const last = await picks().count();
  for (const i of [1, 2, 3]) await picks().nth(last - 1 - i).check();
  check(await page.locator("#compare").innerText() === "Compare the 5 picked runs", await page.locator("#compare").innerText());
  await page.locator("#compare").click();
  await page.waitForURL(/\/compare\?/);
  check(new URL(page.url()).searchParams.getAll("pick").length === 5, "the address names five runs: " + page.url());
  check(await page.locator(".keys > li").count() === 5, "five runs are named");
  const rows = await page.locator("#settings tbody tr").evaluateAll((rows) => rows.map((r) => Array.from(r.children, (c) => c.innerText.trim())));
  check(rows.length > 0 && rows.every((r) => r.length === 6 && new Set(r.slice(1)).size > 1), "settings that differ: " + JSON.stringify(rows));
  const equal = page.locator("#settings details.equal");
  check(!(await equal.evaluate((d) => d.open)) && (await equal.innerText()).includes("are the same"), "equal settings are folded");
  const marked = await page.locator("#figures tbody tr", { hasText: "samples_per_s" }).first().evaluate(function (row) {
    const cells = Array.from(row.querySelectorAll("td")), value = (c) => parseFloat(c.textContent);
    return [cells.findIndex((c) => c.classList.contains("best")), cells.map(value).indexOf(Math.max(...cells.map(value)))];
  });
  check(marked[0] === marked[1], "the best is marked: " + marked);
  const drawn = await charts(page, "#charts");
  check(drawn.includes("learning"), "curves are among " + drawn);
  const curves = () => page.evaluate(function () {
    const plot = document.querySelector("#learning .plot");
    return { lines: new Set(plot.data.map((t) => t.line.color + t.line.dash)).size, names: plot.data.filter((t) => t.showlegend).length,
      legends: plot.querySelectorAll(".legend").length, x: plot.layout.xaxis.title.text };
  });
  const look = await curves();
  check(look.lines === 5 && look.names === 5 && look.legends === 1, "one legend of five lines: " + JSON.stringify(look));
  check(look.x === "step", "against steps: " + look.x);
  for (const [word, x] of [["samples", "samples, by all workers"], ["time", "training clock, s"]]) {
    await page.getByRole("navigation", { name: "Curves against" }).getByRole("link", { name: word }).click();
    await page.waitForURL((url) => url.searchParams.get("by") === word);
    await page.waitForFunction((x) => document.querySelector("#learning .plot")?.layout?.xaxis.title.text === x, x, { timeout: PATIENCE });
    const found = await overlaps(page, "#learning");
    check(found.length === 0, "texts of the chart overlap: " + found.join("; "));
  }
  await page.reload();
  await charts(page, "#charts");
  check((await curves()).x === "training clock, s", "the switch survives a reload");
  await fits(page, "#head");
  await usable(page);
  await page.evaluate(() => scrollTo(0, 0));
  await shot(page, "compare-five", true);
  told.push("five runs: " + rows.length + " settings differ, charts " + drawn.join(", "));
  await page.getByRole("link", { name: /^leave out/ }).first().click();
  await page.waitForURL((url) => url.searchParams.getAll("pick").length === 4);
  await page.waitForFunction(() => document.querySelectorAll(".keys > li").length === 4);

  // As many as are possible: still told apart, and no texts upon each other.
  await page.goto(address + "runs?limit=25");
  const ids = await picks().evaluateAll((all) => all.slice(0, 20).map((b) => b.value));
  await page.goto(address + "compare?" + ids.map((id) => "pick=" + id).join("&"));
  await charts(page, "#charts");
  const many = await curves();
  check(many.lines === 20, "twenty lines differ: " + many.lines);
  const upon = await overlaps(page, "#learning");
  check(upon.length === 0, "texts of twenty runs overlap: " + upon.join("; "));
  await fits(page, "#head");
  const words = await page.locator("#settings tbody td, #figures tbody td").evaluateAll((cells) => cells.filter(function (cell) {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return new Set(Array.from(range.getClientRects(), (r) => Math.round(r.top / 8))).size > 2;
  }).length);
  check(words === 0, words + " cells of twenty runs are broken into lines");
  await shot(page, "compare-twenty", true);

  // Studies beside each other.
  await page.goto(address);
  for (const name of ["grid", "codecs"]) await page.locator("#studies").getByRole("checkbox", { name: "pick " + name }).check();
  await page.getByRole("button", { name: "Compare the picked studies" }).click();
  await page.waitForURL(/compare\?study=/);
  check(await page.locator("#found tbody tr", { hasText: "best samples_per_s" }).locator("td.best").count() === 1, "the better study is marked");
  const spread = await charts(page, "#charts");
  check(spread.includes("spread-samples_per_s"), "the objective's spread is drawn: " + spread);
  const texts = await overlaps(page, "#charts figure");
  check(texts.length === 0, "texts of the charts overlap: " + texts.join("; "));
  await fits(page, "#head");
  await usable(page);
  await shot(page, "compare-studies", true);

  // The page of a run that people have words for.
  await page.goto(address + "run/baseline");
  check((await page.locator("h1").innerText()).includes("baseline"), "the name is the title");
  check((await page.locator(".noted").innerText()) === "the first one", "its note");
  check((await page.locator("#head a.tag", { hasText: "paper" }).getAttribute("href")) === "/runs?tag=paper", "its tags lead to runs");
  await page.locator("#commands summary").click();
  for (const id of ["again", "edit"]) {
    const button = page.locator("button[data-copy=command-" + id + "]");
    await button.click();
    await button.getByText("copied").waitFor();
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    check(copied === await page.locator("#command-" + id).innerText(), "the command is copied: " + copied);
    if (id === "again") check(copied.startsWith("paceline train") && copied.includes("--seed"), "with its seed: " + copied);
  }
  await usable(page);
  await shot(page, "run-named");
  await page.locator("#head a.tag", { hasText: "paper" }).click();
  await counted(page, 3);
  // A run of a study leads to it.
  await page.goto(address + "runs?study=codecs&limit=25");
  await page.locator("#runs tbody th a").first().click();
  await page.locator("#head").getByRole("link", { name: "codecs" }).click();
  await page.locator("h1").getByText("codecs").waitFor();

  // Without scripts everything but charts is there.
  const plain = await open({ javaScriptEnabled: false, viewport: { width: 1400, height: 900 } });
  await plain.goto(address + "runs?tag=paper&sort=run");
  check(await plain.locator("#runs tbody tr").count() === 3, "filters work without scripts");
  await head(plain, "state").click();
  check(new URL(plain.url()).searchParams.get("tag") === "paper" && plain.url().includes("sort=state"), "order, too: " + plain.url());
  for (const box of await plain.locator("#runs tbody input[type=checkbox]").all()) await box.check();
  await plain.locator("#compare").click();
  check(await plain.locator(".keys > li").count() === 3, "and comparing");
  await plain.goto(address + "run/baseline");
  check(!(await plain.locator("button[data-copy]").first().isVisible()), "a button that could do nothing is not there");

  const dark = await open({ colorScheme: "dark", viewport: { width: 1400, height: 900 } });
  await dark.goto(address + "runs");
  await dark.locator("#runs tbody tr").first().waitFor();
  await shot(dark, "runs-1400-dark");
});
console.log(JSON.stringify({ told }));
