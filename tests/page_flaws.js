/* What is wrong with the layout of a page, in sentences: texts of drawings that are cut off, that lie on one another or
   on a limit line, and elements that are wider than their boxes. Evaluated in a page; gives JSON. */
(() => {
  const flaws = [];
  const isShown = (element) => element.getClientRects().length > 0;
  const words = (element) => {
    const title = element.closest("figure")?.querySelector("figcaption strong")?.textContent ?? "";
    return `${title} "${element.textContent.trim().slice(0, 40)}"`;
  };
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 0.5;
  const inked = (box, scale) => // without the room above and below letters
    ({ left: box.left, right: box.right, top: box.top + 2.5 * scale, bottom: box.bottom - 2.5 * scale });

  for (const drawing of [...document.querySelectorAll("svg")].filter(isShown)) {
    const frame = drawing.getBoundingClientRect(), scale = frame.width / drawing.viewBox.baseVal.width;
    const texts = [...drawing.querySelectorAll("text")].filter(isShown);
    const boxes = texts.map((text) => text.getBoundingClientRect());
    const limits = [...drawing.querySelectorAll("line.peak, line.target")].map((line) => line.getBoundingClientRect())
      .filter((box) => box.width < 2 || box.height < 2); // a slope's box says nothing
    texts.forEach((text, index) => {
      const box = boxes[index], ink = inked(box, scale);
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2) {
        flaws.push(`cut off: ${words(text)}`);
      }
      for (let other = index + 1; other < texts.length; other++) {
        if (meet(ink, inked(boxes[other], scale))) flaws.push(`${words(text)} lies on "${texts[other].textContent}"`);
      }
      for (const line of limits) {
        if (line.right > ink.left && line.left < ink.right && line.bottom > ink.top && line.top < ink.bottom - 1) {
          flaws.push(`on a limit line: ${words(text)}`);
        }
      }
    });
  }
  if (innerWidth > 600) { // on a phone wide tables scroll
    for (const element of document.querySelectorAll(".derived, .drawing, .more, td, th, .tiles a, summary, p, li, h1, h2")) {
      if (isShown(element) && element.scrollWidth > element.clientWidth + 1) {
        flaws.push(`wider than its box: ${element.tagName} ${words(element)}`);
      }
    }
  }
  return JSON.stringify(flaws);
})()
