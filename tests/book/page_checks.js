// What is wrong with this page, by check: an object of lists, all empty on a good page.
(() => {
  const visible = (element) =>
    element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) &&
    element.getClientRects().length > 0;
  const said = (element) => element.textContent.trim().replace(/\s+/g, " ").slice(0, 60);
  const all = (selector) => [...document.querySelectorAll(selector)].filter(visible);

  // Contrast, WCAG 2.2 success criterion 1.4.3, over the backgrounds that lie under a text.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (color) => {
    if (!known.has(color)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = color;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(color, [r, g, b, a / 255]);
    }
    return known.get(color);
  };
  const over = (top, bottom) =>
    [0, 1, 2].map((i) => top[i] * top[3] + bottom[i] * (1 - top[3])).concat(1);
  const background = (element) => {
    if (!element) return [255, 255, 255, 1];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own : over(own, background(element.parentElement));
  };
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (element) => {
    const below = background(element);
    const text = over(rgba(getComputedStyle(element).color), below);
    const [low, high] = [luminance(text), luminance(below)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const enough = (element) => {
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    return size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
  };
  const texts = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (walker.currentNode.data.trim() && visible(element)) texts.add(element);
  }
  const pale = [...texts]
    .filter((element) => contrast(element) < enough(element))
    .map((element) => `${contrast(element).toFixed(2)}: ${said(element)}`);

  const name = (element) =>
    (element.getAttribute("aria-label") || element.title || element.textContent).trim() ||
    [...element.querySelectorAll("img[alt]")].map((image) => image.alt).join("") ||
    [...(element.labels || [])].map(said).join("");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  const headings = all("main :is(h1, h2, h3, h4, h5, h6)");
  const levels = headings.map((heading) => Number(heading.tagName[1]));
  const width = document.documentElement.clientWidth;
  const scrolls = (element) => element.scrollWidth > element.clientWidth + 1;
  const scrolling = all("main *").filter(
    (element) => scrolls(element) && /auto|scroll/.test(getComputedStyle(element).overflowX),
  );

  return {
    pale,
    "without a name": all("a[href], button, input, select, summary")
      .filter((element) => !name(element))
      .map((element) => element.outerHTML.slice(0, 80)),
    "pictures without words": [...document.images]
      .filter((image) => !image.alt.trim())
      .map((image) => image.src),
    "pictures not loaded": [...document.images]
      .filter((image) => !image.naturalWidth)
      .map((image) => image.src),
    "pictures on a dark panel": all("figure img")
      .filter((image) => luminance(background(image)) < 0.9)
      .map((image) => image.src),
    "ids used twice": ids.filter((id, place) => ids.indexOf(id) !== place),
    "not one title": levels.filter((level) => level === 1).length === 1 ? [] : headings.map(said),
    "levels left out": headings
      .filter((_, place) => levels[place] > (levels[place - 1] ?? 0) + 1)
      .map(said),
    "no language": document.documentElement.lang ? [] : [location.pathname],
    "wider than the page": all("main *")
      .filter((element) => element.getBoundingClientRect().right > width + 1)
      .filter((element) => !scrolling.some((box) => box !== element && box.contains(element)))
      .map((element) => `${element.tagName} ${said(element)}`),
    "page that scrolls sideways": document.documentElement.scrollWidth > width ? [width] : [],
    "cut off": all(".equation-box, :has(> table.stacking)").filter(scrolls).map(said),
    "out of reach of the keyboard": scrolling
      .filter((element) => element.tabIndex < 0 && !element.querySelector("a[href], [tabindex]"))
      .map((element) => `${element.tagName}.${element.className} ${said(element)}`),
  };
})();
