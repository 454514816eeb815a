// Opens a report from disk without a network: FILE SHOTS.
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { browse, charts, check } from "./browser.mjs";

const [file, shots] = process.argv.slice(2);
let drawn = [];

await browse(shots, async function (open, asked) {
  const page = await open();
  await page.context().setOffline(true);
  await page.goto(pathToFileURL(file).href);
  drawn = await charts(page, "main");
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: join(shots, "report.png"), fullPage: true });
  const foreign = asked.filter((url) => !/^(file|data|blob):/.test(url));
  check(foreign.length === 0, "it asked for " + foreign);
});
console.log(JSON.stringify({ charts: drawn }));
