/* What the page does beside being read: search, sorting, permalinks, and details of cases that are packed. */
const gpubench = (() => {
  "use strict";

  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };
  const once = (make) => { let made; return () => (made ??= make()); };
  const api = { unpack, once, showCounters: null }; // which zoom.js sets where there are counters

  /* A case opens: its details are unpacked, and its counters are offered. */
  const details = once(() => unpack("details"));
  const unfold = async (element) => {
    if (element.childElementCount > 1) return;
    const holder = document.createElement("div");
    element.append(holder);
    holder.innerHTML = (await details())[Number(element.dataset.more)]; // escaped where the page was made
  };
  const offer = (element) => {
    const more = element.querySelector(".more"), id = more?.querySelector("dl dd")?.textContent;
    if (!api.showCounters || !id || more.querySelector("button")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Counters during this case";
    button.addEventListener("click", () => api.showCounters(id));
    more.querySelector("dl").before(button);
  };
  document.addEventListener("toggle", async ({ target }) => {
    if (!target.open || !target.closest("th")) return;
    if (target.dataset.more) await unfold(target);
    offer(target);
  }, true);

  /* Search: the rows that hold every word, in groups that open; everything else steps aside. */
  const folds = [...document.querySelectorAll(".of-cases")];
  const rows = folds.flatMap((fold) => [...fold.querySelectorAll("tr[id]")].map((row) => ({
    row, fold, text: once(() => `${row.id} ${row.textContent}`.toLowerCase()),
  })));
  let before = null; // which groups were open before the search
  const search = (words) => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean), found = new Map(folds.map((fold) => [fold, 0]));
    for (const { row, fold, text } of rows) {
      row.hidden = !wanted.every((word) => text().includes(word));
      if (!row.hidden) found.set(fold, found.get(fold) + 1);
    }
    if (wanted.length && !before) before = new Map(folds.map((fold) => [fold, fold.open]));
    for (const [fold, count] of found) {
      fold.open = wanted.length ? count > 0 : before?.get(fold) ?? fold.open;
      fold.closest("section").classList.toggle("without", wanted.length > 0 && !count);
    }
    if (!wanted.length) before = null;
    if (wanted.length && !document.body.classList.contains("searching")) scrollTo(0, 0);
    document.body.classList.toggle("searching", wanted.length > 0);
    output.textContent = wanted.length ? `${[...found.values()].reduce((a, b) => a + b, 0)} of ${rows.length} cases` : "";
  };
  const form = document.createElement("form"), input = document.createElement("input");
  const output = document.createElement("output");
  if (rows.length) {
    input.type = "search";
    input.placeholder = "Filter cases";
    input.setAttribute("aria-label", "Filter cases by words: a name, an axis, a state, what bounds them");
    input.addEventListener("input", () => search(input.value));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.append(input, output);
    document.querySelector("nav").prepend(form);
  }

  /* Sorting by a click on a head: numbers by value, whatever their prefix; a third click restores the order measured. */
  const PREFIX = { T: 1e12, P: 1e15, G: 1e9, M: 1e6, k: 1e3, m: 1e-3, "µ": 1e-6, n: 1e-9, K: 1024 };
  const valueOf = (text) => {
    const [, number, prefix, unit] = text.match(/(-?[\d.]+)\s*(?:([TPGMkmµnK])(?=[a-zA-Z]))?(i?)/) ?? [];
    if (number === undefined) return text.toLowerCase();
    return Number(number) * (unit ? 1024 ** ("KMGT".indexOf(prefix) + 1) : PREFIX[prefix] ?? 1);
  };
  const compare = (a, b) => {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a < b ? -1 : a > b ? 1 : 0;
  };
  const sort = (table, head) => {
    const column = head.cellIndex, body = table.tBodies[0];
    table.measured ??= [...body.rows];
    const order = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort ?? "none"];
    for (const each of table.tHead.rows[0].cells) each.ariaSort = "none";
    head.ariaSort = order;
    const keyed = table.measured.map((row) => [row, column ? valueOf(row.cells[column].textContent) : row.id]);
    const sign = order === "descending" ? -1 : 1, missing = (value) => value === "–" || value === "";
    if (order !== "none") {
      keyed.sort(([, a], [, b]) => (missing(a) || missing(b) ? missing(a) - missing(b) : sign * compare(a, b)));
    }
    body.append(...keyed.map(([row]) => row));
  };
  for (const head of document.querySelectorAll(".of-cases .cases > table > thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head.closest("table"), head));
    head.append(button);
  }

  /* A permalink opens the groups that its case lies in, and the case. */
  const wanted = () => {
    try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; } // of a hash that nobody encoded
  };
  const reveal = () => {
    const target = document.getElementById(wanted());
    if (!target) return;
    if (target.hidden || document.body.classList.contains("searching")) { input.value = ""; search(""); }
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    const own = target.querySelector("th > details");
    if (own) own.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  document.addEventListener("click", ({ target }) => {
    const link = target.closest("a[href^='#']");
    if (link && link.hash === location.hash) reveal();
    else if (link && document.body.classList.contains("searching")) { input.value = ""; search(""); }
  });
  if (location.hash) reveal();

  /* On paper every group is open. */
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details.fold:not([open])")];
    for (const fold of closed) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of closed) fold.open = false; });

  /* The contents mark the section that is read. */
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [decodeURIComponent(link.hash.slice(1)), link]));
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) seen[isIntersecting ? "add" : "delete"](target.id);
    const current = [...links.keys()].find((id) => seen.has(id));
    for (const [id, link] of links) link.toggleAttribute("aria-current", id === current);
  }, { rootMargin: "-10% 0px -60% 0px" });
  for (const id of links.keys()) { const part = document.getElementById(id); if (part) watch.observe(part); }

  return api;
})();
