/* Zoomable charts of the counters over time: uPlot draws them when they come into view, all with the same time axis. */
(() => {
  "use strict";
  const { unpack, once } = gpubench;

  const section = document.querySelector("[data-timelines]");
  if (!section || typeof uPlot === "undefined") return;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plots = [];
  let data, shown;

  const spread = (from, to) => {
    shown = [Math.max(from, 0), Math.min(to, data.end)];
    if (shown[1] - shown[0] < 1e-3) return;
    for (const { plot } of plots) plot.setScale("x", { min: shown[0], max: shown[1] });
    const whole = shown[0] === 0 && shown[1] === data.end;
    status.textContent = whole ? "the whole run" : `${shown[0].toFixed(2)} s to ${shown[1].toFixed(2)} s`;
  };
  const move = (share) => {
    const width = shown[1] - shown[0];
    const from = Math.min(Math.max(shown[0] + share * width, 0), data.end - width);
    spread(from, from + width);
  };
  const scale = (factor) => {
    const middle = (shown[0] + shown[1]) / 2, half = ((shown[1] - shown[0]) * factor) / 2;
    spread(middle - half, middle + half);
  };
  const KEYS = {
    ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), "+": () => scale(0.5), "=": () => scale(0.5),
    "-": () => scale(2), 0: () => spread(0, data.end), Escape: () => spread(0, data.end),
  };

  const fill = (plot, spans, top, height, style) => {
    const { ctx, bbox } = plot, right = bbox.left + bbox.width;
    ctx.fillStyle = style;
    for (let index = 0; index < spans.length; index += 2) {
      const from = Math.max(plot.valToPos(spans[index], "x", true), bbox.left);
      const to = Math.min(plot.valToPos(spans[index + 1], "x", true), right);
      if (to >= bbox.left && from <= right) ctx.fillRect(from, top, Math.max(to - from, 1), height);
    }
  };
  const behind = (plot, chart) => {
    const { ctx, bbox } = plot;
    ctx.save();
    fill(plot, data.cases.flatMap(([, from, to]) => [from, to]), bbox.top, bbox.height, colour("--band"));
    for (const [, kind, spans] of chart.bands) {
      ctx.globalAlpha = 0.3;
      fill(plot, spans, bbox.top, bbox.height, colour(kind === "capped" ? "--odd" : "--bad"));
    }
    ctx.restore();
  };
  const write = ({ ctx }, text, x, y) => {
    ctx.save();
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.font = `${11.5 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.fillStyle = colour("--soft");
    ctx.fillText(text, x, y);
    ctx.restore();
  };
  const named = (plot, unit) => write(plot, unit, 2, 11 * devicePixelRatio);
  const LANE = 30;
  const lanes = (plot, chart) => {
    const { ctx, bbox } = plot, ratio = devicePixelRatio;
    ctx.save();
    chart.bands.forEach(([name, kind, spans], row) => {
      const top = bbox.top + row * LANE * ratio;
      const style = kind ? colour(kind === "capped" ? "--odd" : "--bad") : colour(`--c${row % 8}`);
      write(plot, name, bbox.left, top + 10 * ratio);
      fill(plot, spans, top + 14 * ratio, 12 * ratio, style);
    });
    ctx.restore();
  };

  const axis = (more) => ({
    stroke: () => colour("--soft"), font: "11.5px system-ui, sans-serif", grid: { stroke: () => colour("--rule"), width: 1 },
    ticks: { show: false }, ...more,
  });
  const whole = (values) => { // the range of the whole run: a range of the visible part would magnify noise
    const [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
    return uPlot.rangeNum(low < 0.5 * high ? Math.min(low, 0) : low, high, 0.1, true);
  };
  const running = (at) => data.cases.filter(([, from, to]) => from <= at && at <= to).map(([id]) => id).join(", ");
  const options = (chart, holder, note) => ({
    width: holder.clientWidth,
    height: chart.kind === "line" ? 150 : Math.max(chart.bands.length, 1) * LANE + 34,
    legend: { show: false },
    padding: [chart.kind === "line" ? 18 : 4, 8, 0, 0],
    cursor: { sync: { key: "time" }, drag: { x: true, y: false, setScale: false }, y: false, points: { show: chart.kind === "line" } },
    scales: { x: { time: false, range: () => shown }, y: { range: chart.kind === "line" ? whole(chart.values) : [0, 1] } },
    axes: [
      axis({ size: 24, values: (_, all) => all.map((value) => `${value} s`) }),
      axis(chart.kind === "line" ? { size: 56, values: (_, all) => all.map(String) } : { size: 10, values: () => [], grid: { show: false } }),
    ],
    series: [{}, chart.kind === "line"
      ? { stroke: () => colour("--c0"), width: 1.5, points: { show: false } }
      : { show: false }],
    hooks: {
      drawClear: [(plot) => (chart.kind === "line" ? behind(plot, chart) : undefined)],
      draw: [(plot) => (chart.kind === "line" ? named(plot, chart.unit) : lanes(plot, chart))],
      setSelect: [(plot) => {
        const { left, width } = plot.select;
        if (width > 3) spread(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
        plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
      setCursor: [(plot) => {
        const { idx, left } = plot.cursor;
        if (left === null || left < 0) { note.textContent = note.dataset.text; return; }
        const at = plot.posToVal(left, "x"), cases = running(at);
        const value = chart.kind === "line" && idx !== null ? `: ${chart.values[idx]} ${chart.unit}` : "";
        note.textContent = `${at.toFixed(2)} s${value}${cases ? `, ${cases}` : ""}`;
      }],
    },
  });

  const draw = (figure) => {
    const chart = data.charts[Number(figure.dataset.zoom)], picture = figure.querySelector(".drawing svg");
    const holder = document.createElement("div"), note = figure.querySelector("figcaption span");
    holder.className = "zoomable";
    holder.tabIndex = 0;
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", `${picture.getAttribute("aria-label")}. Arrow keys move, plus and minus zoom, 0 shows all.`);
    holder.addEventListener("keydown", (event) => {
      if (KEYS[event.key]) { KEYS[event.key](); event.preventDefault(); }
    });
    figure.classList.add("zooms");
    note.dataset.text = note.textContent;
    figure.querySelector(".drawing").before(holder);
    const values = chart.kind === "line" ? [chart.at, chart.values] : [[0, data.end], [null, null]];
    const plot = new uPlot(options(chart, holder, note), values, holder);
    holder.addEventListener("dblclick", () => spread(0, data.end));
    plots.push({ plot, holder });
  };

  const drawOpen = () => { // a chart in a closed group has no width
    for (const figure of section.querySelectorAll("figure[data-zoom]:not(.zooms)")) {
      if (!figure.closest("details:not([open])")) draw(figure);
    }
  };

  const bar = document.createElement("div"), cases = document.createElement("select");
  const status = document.createElement("output");
  const tools = () => {
    cases.setAttribute("aria-label", "zoom to a case");
    cases.append(new Option("Zoom to a case…", ""), ...data.cases.map(([id], index) => new Option(id, index)));
    cases.addEventListener("change", () => {
      if (cases.value === "") return spread(0, data.end);
      const [, from, to] = data.cases[Number(cases.value)];
      spread(from - 0.1 * (to - from), to + 0.1 * (to - from));
    });
    const button = (text, act) => {
      const element = document.createElement("button");
      element.type = "button";
      element.textContent = text;
      element.addEventListener("click", act);
      return element;
    };
    bar.className = "zoom-tools";
    bar.append(cases, button("−", () => scale(2)), button("+", () => scale(0.5)),
      button("Whole run", () => { cases.value = ""; spread(0, data.end); }), status);
    for (const [index, label] of ["zoom out", "zoom in"].entries()) bar.children[index + 1].setAttribute("aria-label", label);
    section.querySelector(".lead").after(bar);
  };

  const begin = once(async () => {
    data = await unpack("zoom");
    shown = [0, data.end];
    tools();
    drawOpen();
    section.addEventListener("toggle", drawOpen, true);
    spread(0, data.end);
    new ResizeObserver(() => {
      for (const { plot, holder } of plots) plot.setSize({ width: holder.clientWidth, height: plot.height });
    }).observe(section);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const { plot } of plots) plot.redraw(false, true);
    });
  });
  gpubench.showCounters = async (id) => {
    await begin();
    cases.value = String(data.cases.findIndex(([name]) => name === id));
    cases.dispatchEvent(new Event("change"));
    section.scrollIntoView();
    cases.focus({ preventScroll: true });
  };
  new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) begin();
  }, { rootMargin: "600px" }).observe(section);
})();
