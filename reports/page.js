/* Search, sorting, permalinks, and the packed details of cases. */
const gpubench = (() => {
  "use strict";

  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };
  const once = (make) => { let made; return () => (made ??= make()); };
  const api = { unpack, once, showCounters: null }; // zoom.js sets it on a page with counters

  /* When a case is opened, unpack its details and offer its counters. */
  const details = once(() => unpack("details"));
  const unfold = async (element) => {
    if (element.childElementCount > 1) return;
    const holder = document.createElement("div");
    element.append(holder);
    holder.innerHTML = (await details())[Number(element.dataset.more)]; // the report has escaped it
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

  /* Search: show the rows that contain every word, open their groups, and hide the rest. */
  const folds = [...document.querySelectorAll(".of-cases")];
  const rows = folds.flatMap((fold) => [...fold.querySelectorAll("tr[id]")].map((row) => ({
    row, fold, text: once(() => `${row.id} ${row.textContent}`.toLowerCase()),
  })));
  let before = null; // whether each group was open before the search
  const search = (text) => {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean), counts = new Map(folds.map((fold) => [fold, 0]));
    for (const { row, fold, text: rowText } of rows) {
      row.hidden = !wanted.every((word) => rowText().includes(word));
      if (!row.hidden) counts.set(fold, counts.get(fold) + 1);
    }
    if (wanted.length && !before) before = new Map(folds.map((fold) => [fold, fold.open]));
    for (const [fold, count] of counts) {
      fold.open = wanted.length ? count > 0 : before?.get(fold) ?? fold.open;
      fold.closest("section").classList.toggle("without", wanted.length > 0 && !count);
    }
    if (!wanted.length) before = null;
    if (wanted.length && !document.body.classList.contains("searching")) scrollTo(0, 0);
    document.body.classList.toggle("searching", wanted.length > 0);
    output.textContent = wanted.length ? `${[...counts.values()].reduce((a, b) => a + b, 0)} of ${rows.length} cases` : "";
  };
  const form = document.createElement("form"), input = document.createElement("input");
  const output = document.createElement("output");
  if (rows.length) {
    input.type = "search";
    input.placeholder = matchMedia("(hover: hover)").matches ? "Filter cases ( / )" : "Filter cases";
    input.setAttribute("aria-label", "Filter the cases by name, axis, state or bound");
    input.addEventListener("input", () => search(input.value));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.append(input, output);
    document.querySelector("nav").prepend(form);
  }

  /* A slash begins a search, and Escape ends it. */
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && rows.length && !isTyping && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      input.select();
      input.focus();
    } else if (event.key === "Escape" && event.target === input) {
      input.value = "";
      search("");
      input.blur();
    }
  });

  /* A click on a column head sorts the rows: numbers by their value in the base unit. A third click restores the order of measurement. */
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
    const column = head.cellIndex, body = table.tBodies[0], isState = column === table.tHead.rows[0].cells.length - 1;
    const cellOf = ({ cells }) => cells[cells[1].colSpan === 1 ? column : isState ? 2 : 1]; // one cell for no figures
    table.measured ??= [...body.rows];
    const order = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort ?? "none"];
    for (const cell of table.tHead.rows[0].cells) cell.ariaSort = "none";
    head.ariaSort = order;
    const keyed = table.measured.map((row) => [row, column ? valueOf(cellOf(row).textContent) : row.id]);
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

  /* A permalink opens its case and the groups around it. */
  const wanted = () => {
    try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; } // the hash is not URL-encoded
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

  /* Print with every group open. */
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details.fold:not([open])")];
    for (const fold of closed) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of closed) fold.open = false; });

  /* Mark the section in view in the list of contents. */
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
