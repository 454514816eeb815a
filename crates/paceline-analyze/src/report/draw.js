"use strict";
// Draws every chart of the page from the JSON beside it, in the colours of the page.
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  function colours(layout) {
    const ink = dark.matches ? "#e6edf3" : "#1b1b1b";
    const grid = dark.matches ? "#2a313a" : "#e2e2e2";
    const changed = Object.assign({}, layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12, family: "system-ui, sans-serif" },
    });
    for (const key of Object.keys(changed)) {
      if (/^[xy]axis/.test(key)) changed[key] = Object.assign({}, changed[key], { gridcolor: grid, linecolor: grid });
    }
    return changed;
  }
  function draw(figure) {
    const plot = figure.querySelector(".plot");
    const source = figure.querySelector('script[type="application/json"]');
    if (!plot || !source || !window.Plotly) return;
    const chart = JSON.parse(source.textContent);
    window.Plotly.react(plot, chart.data, colours(chart.layout), { responsive: true, displaylogo: false });
  }
  function all() { document.querySelectorAll("figure.chart").forEach(draw); }
  window.pacelineDraw = draw;
  dark.addEventListener("change", all);
  // Charts that are not yet seen wait until they are: a page of many opens at once.
  const seen = "IntersectionObserver" in window && new IntersectionObserver(function (entries) {
    for (const entry of entries) {
      if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
    }
  }, { rootMargin: "600px" });
  // Charts that came later are handed in.
  window.pacelineSee = function (root) {
    root.querySelectorAll("figure.chart").forEach(function (figure) { if (seen) seen.observe(figure); else draw(figure); });
  };
  window.pacelineSee(document);
  // Charts with a drawing for paper need no other there.
  window.addEventListener("beforeprint", function () { document.querySelectorAll("figure.chart:not(:has(.still))").forEach(draw); });
})();
