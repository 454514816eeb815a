"use strict";
// Follows the store: when something is new, the page is asked for again and its changed parts are put in place, so that
// scrolling, focus and choices stay.
(function () {
  const news = document.getElementById("news");
  let last = null, busy = false, again = false;
  function replace(fresh, id) {
    const now = document.getElementById(id), next = fresh.getElementById(id);
    if (now && next && now.innerHTML !== next.innerHTML) now.replaceWith(document.importNode(next, true));
  }
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const chosen = Array.from(document.querySelectorAll("#runs input:checked"), (i) => [i.name, i.value]);
      replace(fresh, "runs");
      replace(fresh, "count");
      for (const [name, value] of chosen) {
        for (const input of document.querySelectorAll("#runs input")) {
          if (input.name === name && input.value === value) input.checked = true;
        }
      }
      for (const figure of document.querySelectorAll("figure.chart")) {
        const next = fresh.getElementById(figure.id);
        const data = figure.querySelector('script[type="application/json"]');
        const fetched = next && next.querySelector('script[type="application/json"]');
        if (data && fetched && data.textContent !== fetched.textContent) {
          data.textContent = fetched.textContent;
          if (window.pacelineDraw) window.pacelineDraw(figure);
        }
      }
      const count = document.getElementById("count");
      if (news) news.textContent = count ? "live: " + count.textContent + " runs" : "live";
    } catch (error) {
      if (news) news.textContent = "the server does not answer; trying again";
    } finally {
      busy = false;
      if (again) { again = false; refresh(); }
    }
  }
  const events = new EventSource("/events");
  events.addEventListener("changed", function (event) {
    if (last !== null && last !== event.data) refresh();
    last = event.data;
    if (news && !news.textContent) news.textContent = "live";
  });
  events.onerror = function () { if (news) news.textContent = "connecting again"; };
})();
