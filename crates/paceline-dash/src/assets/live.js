"use strict";
// Follows the store: when something is new, the page is asked for again and its changed parts are put in place, so that
// scrolling, focus and choices stay. Filters, order and pages change the address and those parts, without a reload.
(function () {
  const link = document.getElementById("link");
  const news = document.getElementById("news");
  // At least so long between two looks, in ms: a run under way tells something new all the time.
  const REST = 1000;
  // Parts as the server sent them last: what scripts made of them does not count as a change.
  const sent = new Map();
  for (const part of document.querySelectorAll("[data-live][id]")) sent.set(part.id, part.outerHTML);
  let wanted = 0, last = null, busy = false, again = false, timer = 0, source = null, told = null;

  function say(state, words) { if (link) { link.dataset.state = state; link.textContent = words; } }

  // What has the focus, to find it again in a part that was replaced.
  function place(node) {
    if (!node || node === document.body) return null;
    if (node.id) return "#" + CSS.escape(node.id);
    if (node.name) return node.tagName + "[name=\"" + CSS.escape(node.name) + "\"]" +
      (node.type === "checkbox" ? "[value=\"" + CSS.escape(node.value) + "\"]" : "");
    const href = node.getAttribute("href");
    return href ? "a[href=\"" + CSS.escape(href) + "\"]" : null;
  }

  function put(fresh, force) {
    for (const next of fresh.querySelectorAll("[data-live][id]")) {
      const now = document.getElementById(next.id);
      if (!now || sent.get(next.id) === next.outerHTML) continue;
      // Somebody is choosing there: what he chose must not be taken away.
      const choosing = now.matches("#filters") ? now.contains(document.activeElement) || now.querySelector("details[open]")
        : now.querySelector("details.filter[open]");
      if (!force && choosing) continue;
      const raw = next.outerHTML, focus = now.contains(document.activeElement) ? place(document.activeElement) : null;
      const open = Array.from(now.querySelectorAll("details"), (d) => d.open);
      const wide = Array.from(now.querySelectorAll(".wide"), (w) => [w.scrollLeft, w.scrollTop]);
      const part = document.importNode(next, true);
      // Studies that are ticked stand in no address.
      for (const box of now.querySelectorAll("input[name=study]:checked")) {
        const same = part.querySelector("input[name=study][value=\"" + CSS.escape(box.value) + "\"]");
        if (same && now.matches("#studies")) same.checked = true;
      }
      now.replaceWith(part);
      sent.set(next.id, raw);
      if (!force && now.matches("#told, #head")) part.querySelectorAll("details").forEach((d, i) => { d.open = Boolean(open[i]); });
      part.querySelectorAll(".wide").forEach((w, i) => { if (wide[i]) [w.scrollLeft, w.scrollTop] = force ? [wide[i][0], 0] : wide[i]; });
      const found = focus && part.querySelector(focus);
      if (found) found.focus({ preventScroll: true });
    }
    const head = document.getElementById("head");
    const words = head ? head.dataset.news : "";
    if (news && words && told !== null && words !== told) news.textContent = words;
    told = words || "";
    picks();
    copies();
    charts(fresh);
    lines(fresh);
    later();
  }

  // The page of an address; in the history if it is another one.
  async function load(url, push, force) {
    const mine = force ? ++wanted : wanted;
    const answer = await fetch(url, { headers: { accept: "text/html" }, cache: "no-store" });
    const text = await answer.text();
    // Meanwhile somebody went elsewhere: what was asked for before is not shown any more.
    if (mine !== wanted || (!push && url !== location.href)) { again = again || !force; return; }
    // Another page altogether (the run is gone, the token is asked for): the browser shows it.
    if (!answer.ok) { if (push || answer.status === 401) location.assign(url); throw new Error(String(answer.status)); }
    if (push) history.pushState(null, "", url);
    put(new DOMParser().parseFromString(text, "text/html"), force);
  }

  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      await load(location.href, false, false);
      say("on", "live");
    } catch (error) {
      say("off", "the server does not answer");
    } finally {
      setTimeout(function () { busy = false; if (again) { again = false; refresh(); } }, REST);
    }
  }

  function go(url) {
    load(url, true, true).catch(function () { location.assign(url); });
  }
  window.pacelineGo = go;

  // Charts are a part of their own: they are asked for only when there are new ones.
  let drawn = null, asking = false;
  async function charts(fresh) {
    const here = document.getElementById("charts");
    const next = fresh && fresh.getElementById("charts");
    if (!here) return;
    if (next) { here.dataset.src = next.dataset.src; here.dataset.made = next.dataset.made; }
    const wanted = here.dataset.src + " " + here.dataset.made;
    if (here.dataset.made === "0" || wanted === drawn || asking) return;
    asking = true;
    try {
      const answer = await fetch(here.dataset.src, { cache: "no-store" });
      if (!answer.ok) return;
      const part = new DOMParser().parseFromString(await answer.text(), "text/html");
      const ids = Array.from(part.querySelectorAll("figure.chart"), (f) => f.id).join(" ");
      if (ids === Array.from(here.querySelectorAll("figure.chart"), (f) => f.id).join(" ") && ids) {
        for (const figure of here.querySelectorAll("figure.chart")) change(figure, part.getElementById(figure.id));
      } else {
        here.replaceChildren(...Array.from(part.body.childNodes, (n) => document.importNode(n, true)));
        window.pacelineSee(here);
      }
      drawn = wanted;
    } catch (error) {
      // The next look tries again.
    } finally {
      asking = false;
      if (here.dataset.src + " " + here.dataset.made !== wanted) charts(null);
    }
  }

  // The same chart with other numbers.
  function change(figure, next) {
    const data = figure.querySelector('script[type="application/json"]');
    const came = next.querySelector('script[type="application/json"]');
    if (data.textContent === came.textContent) return;
    data.textContent = came.textContent;
    figure.querySelector("figcaption").replaceWith(document.importNode(next.querySelector("figcaption"), true));
    figure.querySelector(".plot").style.minHeight = next.querySelector(".plot").style.minHeight;
    // What was not seen yet is drawn when it is.
    if (figure.querySelector(".main-svg")) window.pacelineDraw(figure); else window.pacelineSee(figure.parentNode);
  }

  function lines(fresh) {
    const box = document.getElementById("lines"), next = fresh && fresh.getElementById("lines");
    if (box && next) box.dataset.stamp = next.dataset.stamp;
    if (box && window.pacelineLines) window.pacelineLines(box);
  }

  // Charts that are not of now: they are asked for again when they may be ready.
  function later() {
    clearTimeout(timer);
    const note = document.getElementById("charts-note");
    if (note && note.dataset.again) timer = setTimeout(refresh, Number(note.dataset.again) + 50);
  }

  // What is picked stands in the address; two or more can be compared.
  function picks() {
    const form = document.getElementById("picks"), button = document.getElementById("compare");
    if (!form || !button) return;
    const count = new FormData(form).getAll("pick").length;
    const most = Number(button.dataset.most);
    button.disabled = count < 2 || count > most;
    button.textContent = count > most ? "At most " + most + " runs can be compared (" + count + " picked)"
      : count < 2 ? "Pick runs to compare (" + count + " picked)" : "Compare the " + count + " picked runs";
  }

  // Buttons that copy a command: without scripts they are not there, and where a browser does not let pages copy, the
  // command is selected.
  function copies() {
    for (const button of document.querySelectorAll("button[data-copy]")) button.hidden = false;
  }
  document.addEventListener("click", async function (event) {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const command = document.getElementById(button.dataset.copy);
    getSelection().selectAllChildren(command);
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "copied";
    } catch (error) {
      button.textContent = document.execCommand("copy") ? "copied" : "press Ctrl+C";
    }
    setTimeout(function () { button.textContent = "copy"; }, 2000);
  });

  // An address with what is picked now.
  function picked(url) {
    url.searchParams.delete("pick");
    for (const pick of new URL(location.href).searchParams.getAll("pick")) url.searchParams.append("pick", pick);
    return url.href;
  }

  document.addEventListener("change", function (event) {
    const input = event.target;
    if (input.closest("#picks")) {
      const url = new URL(location.href);
      url.searchParams.delete("pick");
      for (const pick of new FormData(document.getElementById("picks")).getAll("pick")) url.searchParams.append("pick", pick);
      history.replaceState(null, "", url);
      picks();
    }
  });

  document.addEventListener("submit", function (event) {
    const form = event.target;
    if (!form.closest("#filters, #columns")) return;
    event.preventDefault();
    const url = new URL(form.action);
    for (const [name, value] of new FormData(form)) if (value !== "") url.searchParams.append(name, value);
    go(picked(url));
  });

  document.addEventListener("click", function (event) {
    const a = event.target.closest("a[data-go]");
    if (!a || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(document.getElementById("picks") ? picked(new URL(a.href)) : a.href);
  });

  // One filter is open at a time; Escape and a click elsewhere close it.
  document.addEventListener("toggle", function (event) {
    if (!event.target.matches || !event.target.matches("details.filter") || !event.target.open) return;
    for (const other of document.querySelectorAll("details.filter[open]")) if (other !== event.target) other.open = false;
  }, true);
  document.addEventListener("keydown", function (event) {
    const open = event.key === "Escape" && document.querySelector("details.filter[open]");
    if (open) { open.open = false; open.querySelector("summary").focus(); }
  });
  document.addEventListener("pointerdown", function (event) {
    for (const open of document.querySelectorAll("details.filter[open]")) if (!open.contains(event.target)) open.open = false;
  });

  window.addEventListener("popstate", function () {
    load(location.href, false, true).catch(function () { location.reload(); });
  });

  // A page that nobody sees does not listen: browsers allow few connections to one server.
  function listen() {
    if (source) { source.close(); source = null; }
    if (document.hidden) { say("off", "paused"); return; }
    source = new EventSource("/events");
    source.onopen = function () { say("on", "live"); };
    source.addEventListener("changed", function (event) {
      if (last !== event.data) { const first = last === null; last = event.data; if (!first) refresh(); }
    });
    source.onerror = function () { say("off", "connecting again"); };
  }
  document.addEventListener("visibilitychange", function () { listen(); if (!document.hidden) refresh(); });
  window.addEventListener("pagehide", function () { if (source) source.close(); });

  const head = document.getElementById("head");
  told = head ? head.dataset.news : "";
  picks();
  copies();
  charts(null);
  lines(null);
  later();
  listen();
})();
