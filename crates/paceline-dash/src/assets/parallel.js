"use strict";
// Parallel coordinates: a line per run over all axes. Dragging along an axis keeps the runs that pass there: the filter
// goes into the address, and the server answers with the table. Drawn here, since plotly's need code made at run time,
// which the page's policy forbids.
(function () {
  const HEIGHT = 340, TOP = 34, BOTTOM = 30, NEAR = 22;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let box = null, canvas = null, chart = null, source = null, drag = null, asking = false, again = false;

  // From the best (0) to the worst (1).
  function colour(part, faint) {
    if (part === null) part = 1;
    const from = dark.matches ? [94, 201, 232] : [0, 104, 160], to = dark.matches ? [214, 128, 60] : [206, 110, 30];
    const mix = from.map((v, i) => Math.round(v + (to[i] - v) * part));
    return "rgba(" + mix.join(",") + "," + faint + ")";
  }

  function scale(axis, values) {
    if (axis.kind === "levels") {
      const n = axis.levels.length;
      return { at: (v) => (n < 2 ? 0.5 : v / (n - 1)), back: (p) => p * (n - 1) };
    }
    const finite = values.filter((v) => v !== null);
    let low = Math.min(...finite), high = Math.max(...finite);
    const f = axis.log ? Math.log : (v) => v, g = axis.log ? Math.exp : (v) => v;
    axis.low = low; axis.high = high;
    const a = f(low), b = f(high);
    return { at: (v) => (b > a ? (f(v) - a) / (b - a) : 0.5), back: (p) => g(a + p * (b - a)) };
  }

  function short(value) {
    const text = Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(1) : value.toPrecision(3);
    return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
  }

  // Where a filter of the address begins and ends on an axis, as parts of it.
  function brush(axis) {
    const params = new URL(location.href).searchParams;
    if (axis.kind === "levels") {
      const places = params.getAll("f." + axis.name).map((l) => axis.levels.indexOf(l)).filter((i) => i >= 0);
      if (!places.length) return null;
      const half = 0.4 / Math.max(axis.levels.length - 1, 1);
      return places.map((i) => [axis.scale.at(i) - half, axis.scale.at(i) + half]);
    }
    const least = params.get("min." + axis.name), most = params.get("max." + axis.name);
    if (!least && !most) return null;
    const at = (text, or) => (text ? Math.min(1, Math.max(0, axis.scale.at(Number(text)))) : or);
    return [[at(least, 0), at(most, 1)]];
  }

  function x(i) {
    const n = chart.axes.length, side = Math.min(90, canvas.clientWidth / 8);
    return n < 2 ? canvas.clientWidth / 2 : side + (canvas.clientWidth - 2 * side) * i / (n - 1);
  }
  function y(part) { return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part; }

  // Runs of the same level lie beside each other, so that one sees how many there are.
  function shift(axis, row) {
    return axis.kind === "levels" ? ((row * 0.618034) % 1 - 0.5) * Math.min(0.05, 0.3 / axis.levels.length) : 0;
  }

  function draw() {
    if (!canvas || !chart) return;
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = width * ratio; canvas.height = HEIGHT * ratio;
    const c = canvas.getContext("2d"), ink = dark.matches ? "#e6edf3" : "#1b1b1b", soft = dark.matches ? "#9da7b3" : "#595959";
    c.scale(ratio, ratio);
    c.lineWidth = 1;
    // Those that were filtered out below, the best on top.
    const order = chart.rows.slice().sort((a, b) => a[1] - b[1] || (b[2] === null ? 1 : b[2]) - (a[2] === null ? 1 : a[2]));
    const many = Math.max(0.06, Math.min(0.9, 60 / Math.max(chart.rows.length, 1)));
    order.forEach(function ([, fits, rank, at], row) {
      c.strokeStyle = fits ? colour(rank, Math.max(many, 0.12)) : (dark.matches ? "rgba(130,140,150,.08)" : "rgba(110,110,110,.08)");
      c.beginPath();
      let open = false;
      at.forEach(function (value, i) {
        if (value === null) { open = false; return; }
        const place = [x(i), y(chart.axes[i].scale.at(value) + shift(chart.axes[i], row))];
        if (open) c.lineTo(...place); else c.moveTo(...place);
        open = true;
      });
      c.stroke();
    });
    c.font = "12px system-ui, sans-serif";
    c.textAlign = "center";
    chart.axes.forEach(function (axis, i) {
      c.strokeStyle = soft; c.lineWidth = 1;
      c.beginPath(); c.moveTo(x(i), y(0)); c.lineTo(x(i), y(1)); c.stroke();
      const ground = dark.matches ? "rgba(13,17,23,.85)" : "rgba(255,255,255,.85)";
      const label = function (text, at, down) {
        const wide = c.measureText(text).width;
        c.fillStyle = ground; c.fillRect(x(i) - wide / 2 - 2, at - 11, wide + 4, 15);
        c.fillStyle = down ? soft : ink; c.fillText(text, x(i), at);
      };
      const room = Math.max(40, (canvas.clientWidth / chart.axes.length) - 10);
      let title = axis.title;
      while (title.length > 4 && c.measureText(title).width > room) title = title.slice(0, -2) + "…";
      c.font = "600 12px system-ui, sans-serif";
      label(title, 14 + (i % 2 && chart.axes.length > 9 ? 14 : 0), false);
      c.font = "12px system-ui, sans-serif";
      if (axis.kind === "levels") {
        const every = Math.ceil(axis.levels.length / 12);
        axis.levels.forEach(function (level, k) { if (k % every === 0) label(level.length > 8 && isFinite(level) ? short(Number(level)) : level, y(axis.scale.at(k)) + 4, true); });
      } else {
        for (const part of [0, 0.5, 1]) label(short(axis.scale.back(part)), y(part) + 4, true);
      }
      const now = drag && drag.axis === i ? [[Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)]] : brush(axis);
      for (const [low, high] of now || []) {
        c.fillStyle = dark.matches ? "rgba(94,201,232,.25)" : "rgba(0,104,160,.18)";
        c.strokeStyle = colour(0, 0.9);
        c.fillRect(x(i) - 9, y(high), 18, y(low) - y(high));
        c.strokeRect(x(i) - 9, y(high), 18, y(low) - y(high));
      }
    });
  }

  function near(event) {
    const at = event.clientX - canvas.getBoundingClientRect().left;
    let best = null;
    chart.axes.forEach((_, i) => { const far = Math.abs(x(i) - at); if (far < NEAR && (!best || far < best[1])) best = [i, far]; });
    return best && best[0];
  }
  function part(event) {
    const at = event.clientY - canvas.getBoundingClientRect().top;
    return Math.min(1.02, Math.max(-0.02, (HEIGHT - BOTTOM - at) / (HEIGHT - TOP - BOTTOM)));
  }

  function settle() {
    const axis = chart.axes[drag.axis], [low, high] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
    const url = new URL(location.href), drop = high - low < 0.015;
    for (const name of ["f.", "min.", "max."]) url.searchParams.delete(name + axis.name);
    url.searchParams.delete("page");
    if (!drop && axis.kind === "levels") {
      axis.levels.forEach(function (level, k) {
        const at = axis.scale.at(k);
        if (at >= low && at <= high) url.searchParams.append("f." + axis.name, level);
      });
    } else if (!drop) {
      // Rounded outwards: what was inside stays inside.
      const round = (v, up) => {
        const step = Math.pow(10, Math.floor(Math.log10(Math.max(Math.abs(v), 1e-12))) - 3);
        return Number(((up ? Math.ceil(v / step) : Math.floor(v / step)) * step).toPrecision(6));
      };
      if (low > 0) url.searchParams.set("min." + axis.name, round(axis.scale.back(low), false));
      if (high < 1) url.searchParams.set("max." + axis.name, round(axis.scale.back(high), true));
    }
    drag = null;
    if (url.href !== location.href) window.pacelineGo(url.href); else draw();
  }

  function set(into) {
    box = into;
    canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    box.replaceChildren(canvas);
    canvas.addEventListener("pointerdown", function (event) {
      const axis = chart && near(event);
      if (axis === null || axis === undefined || axis === false) return;
      drag = { axis: axis, from: part(event), to: part(event) };
      canvas.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    canvas.addEventListener("pointermove", function (event) {
      if (!chart) return;
      if (drag) { drag.to = part(event); draw(); }
      const axis = near(event);
      canvas.style.cursor = drag || (axis !== null && axis !== false) ? "crosshair" : "default";
    });
    canvas.addEventListener("pointerup", function () { if (drag) settle(); });
    canvas.addEventListener("pointercancel", function () { drag = null; draw(); });
    new ResizeObserver(draw).observe(box);
  }

  // Draws what the address asks for; asks the server if that may have changed.
  window.pacelineLines = async function (into) {
    if (box !== into) set(into);
    // One question at a time: with a new one before each answer, nothing would ever be drawn.
    if (asking) { again = true; return; }
    const search = location.search, wanted = into.dataset.stamp + search;
    if (wanted === source) return;
    asking = true;
    try {
      const answer = await fetch(into.dataset.src + search, { cache: "no-store" });
      const text = await answer.text();
      if (!answer.ok) return;
      source = wanted;
      const fresh = JSON.parse(text);
      fresh.axes.forEach((axis, i) => { axis.scale = scale(axis, fresh.rows.map((row) => row[3][i])); });
      chart = fresh;
      if (drag && drag.axis >= chart.axes.length) drag = null;
      into.dataset.rows = String(chart.rows.length);
      into.dataset.fit = String(chart.rows.filter((row) => row[1]).length);
      const of = chart.response || {};
      into.setAttribute("aria-label", "Parallel coordinates of " + chart.rows.length + " runs, " + into.dataset.fit +
        " of them chosen" + (of.best ? "; " + of.name + " from " + of.best + " (best) to " + of.worst + " (worst)" : ""));
      draw();
    } catch (error) {
      // The next look tries again.
    } finally {
      asking = false;
      if (again) { again = false; window.pacelineLines(into); }
    }
  };
  dark.addEventListener("change", draw);
})();
