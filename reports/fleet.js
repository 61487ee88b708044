/* The map of a fleet: show another layer, and the values of a tile. */
(() => {
  const map = document.getElementById("map"), packed = document.getElementById("layers");

  /* A link to a suspect opens its cases. */
  const reveal = () => {
    const fold = document.getElementById(location.hash.slice(1));
    if (fold && fold.matches("details")) { fold.open = true; fold.scrollIntoView(); }
  };
  addEventListener("hashchange", reveal);
  document.addEventListener("click", ({ target }) => {
    const link = target.closest("a[href^='#']");
    if (link && link.hash === location.hash) reveal();
  });
  if (location.hash) reveal();
  if (!map || !packed) return;

  let loaded;
  const unpacked = () => (loaded ??= (async () => {
    const bytes = Uint8Array.from(atob(packed.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  })());
  const tiles = [...map.querySelectorAll("td:not(.gone)")];
  const place = new Map(tiles.map((tile, index) => [tile, index]));
  const written = (layer, value) => (value === null ? "" : (value / 10 ** layer.digits).toFixed(layer.digits));
  const shade = (layer, value) =>
    value === null ? 0 : layer.limits.filter((limit) => (layer.falls ? value < limit : value >= limit)).length;

  const figures = [...document.querySelectorAll(".overview figure")];
  const press = (index) => {
    for (const figure of figures) figure.setAttribute("aria-pressed", figure.dataset.layer === String(index));
  };
  const show = async (index) => {
    const layer = (await unpacked()).layers[index];
    tiles.forEach((tile, at) => {
      const text = written(layer, layer.values[at]), level = shade(layer, layer.values[at]);
      const kept = tile.className.replace(/\bh\d\b/, "").trim();
      tile.className = level ? `h${level} ${kept}`.trim() : kept;
      const holder = tile.firstElementChild ?? tile;
      holder.textContent = text || (tile.firstElementChild ? "–" : "");
    });
    document.getElementById("layer").textContent = `${layer.name}: ${layer.description}`;
    document.querySelectorAll(".scale li").forEach((item, at) => {
      item.hidden = at >= layer.legend.length;
      item.lastElementChild.textContent = layer.legend[at] ?? "";
    });
    map.dataset.layer = index;
    press(index);
  };
  for (const figure of figures) {
    figure.tabIndex = 0;
    figure.setAttribute("role", "button");
    const choose = () => show(Number(figure.dataset.layer));
    figure.addEventListener("click", choose);
    figure.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); }
    });
  }
  press(map.dataset.layer);

  /* The values of a tile in every layer. */
  const output = document.getElementById("tile");
  output.hidden = false;
  const tell = async (tile) => {
    const { devices, layers } = await unpacked(), index = place.get(tile);
    const values = layers.filter((layer) => layer.values[index] !== null)
      .map((layer) => `${layer.name} ${written(layer, layer.values[index])} ${layer.unit}`);
    output.textContent = `${tile.parentElement.firstElementChild.textContent} ${devices[tile.cellIndex - 1]}: ${values.join(", ") || "no results"}`;
  };
  for (const kind of ["pointerover", "click", "focusin"]) {
    map.addEventListener(kind, ({ target }) => {
      const tile = target.closest("td");
      if (place.has(tile)) tell(tile);
    });
  }
})();
