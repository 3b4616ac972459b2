"use strict";
// Zooms a chart over its steps, with values on an axis that fits what is shown, and tells the values under the
// pointer. Wheel or + and -: zoom; drag or arrows: move; double click or 0: all.
const SIDE = 1000, CLOSEST = 5;

function points(path) {
  return path.getAttribute("d").replace(/[MZ]/g, "").split("L").map(point => point.split(" ").map(Number));
}

function figure(value, isPercent) {
  if (isPercent) return `${(100 * value).toFixed(1)} %`;
  const size = Math.abs(value);
  if (value && (size < 1e-3 || size >= 1e4)) return value.toExponential(1);
  return size >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(3)));
}

function chart(root) {
  const svg = root.querySelector("svg"), told = root.querySelector("output"), data = root.dataset;
  const [first, last, low, high] = [data.first, data.last, data.low, data.high].map(Number);
  const xTicks = [...root.querySelectorAll(".x span")], yTicks = [...root.querySelectorAll(".y span")];
  const written = [...xTicks, ...yTicks].map(tick => tick.textContent);
  const drawn = [...svg.querySelectorAll(".line, .band")].map(points);
  const lines = [...svg.querySelectorAll(".line")].map(path => ({ label: path.dataset.label, places: points(path) }));
  const grid = [...svg.querySelectorAll(".grid")];
  const cursor = document.createElementNS(svg.namespaceURI, "path");
  cursor.setAttribute("class", "cursor");
  svg.append(cursor);
  let left = 0, width = SIDE, held = null;

  const stepAt = x => Math.round(first + (last - first) * x / SIDE).toLocaleString("en-US");
  const valueAt = y => high - (high - low) * y / SIDE;

  function range() {
    if (width >= SIDE) return [0, SIDE];
    const seen = drawn.flat().filter(([x]) => x >= left && x <= left + width).map(([, y]) => y);
    const top = Math.min(...seen), bottom = Math.max(...seen);
    return seen.length && bottom > top ? [top, bottom] : [0, SIDE];
  }

  function show(start, size) {
    width = Math.min(SIDE, Math.max(CLOSEST, size));
    left = Math.min(SIDE - width, Math.max(0, start));
    const [top, bottom] = range();
    svg.classList.toggle("zoomed", width < SIDE);
    svg.setAttribute("viewBox", `${left} ${top} ${width} ${bottom - top}`);
    grid.forEach((line, n) => line.setAttribute("d", `M0 ${top + (bottom - top) * n / (grid.length - 1)}H${SIDE}`));
    const words = width >= SIDE ? written : [
      ...xTicks.map((_, n) => stepAt(left + width * n / (xTicks.length - 1))),
      ...yTicks.map((_, n) => figure(valueAt(top + (bottom - top) * n / (yTicks.length - 1)), data.percent === "1")),
    ];
    [...xTicks, ...yTicks].forEach((tick, n) => { tick.textContent = words[n]; });
  }

  function tell(x) {
    const here = lines.filter(({ places }) => places[0][0] - CLOSEST <= x && x <= places.at(-1)[0] + CLOSEST);
    const values = here.map(({ label, places }) => {
      const near = places.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
      return (lines.length > 1 ? `${label} ` : "") + figure(valueAt(near[1]), data.percent === "1");
    });
    told.textContent = `step ${stepAt(x)}: ${values.join(" · ")}`;
    cursor.setAttribute("d", `M${x} 0V${SIDE}`);
  }

  const zoom = (factor, share) => {
    const size = Math.min(SIDE, Math.max(CLOSEST, width * factor));
    show(left + share * (width - size), size);
  };
  const place = event => {
    const box = svg.getBoundingClientRect();
    return (event.clientX - box.left) / box.width;
  };
  svg.addEventListener("wheel", event => {
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, place(event));
  }, { passive: false });
  svg.addEventListener("pointerdown", event => { held = place(event); svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointerup", () => { held = null; });
  svg.addEventListener("pointermove", event => {
    const now = place(event);
    if (held !== null) {
      show(left + (held - now) * width, width);
      held = now;
    }
    tell(left + now * width);
  });
  svg.addEventListener("pointerleave", () => { told.textContent = ""; cursor.setAttribute("d", ""); });
  svg.addEventListener("dblclick", () => show(0, SIDE));
  root.addEventListener("keydown", event => {
    const keys = {
      "+": () => zoom(0.8, 0.5), "-": () => zoom(1.25, 0.5), "0": () => show(0, SIDE),
      ArrowLeft: () => show(left - width / 10, width), ArrowRight: () => show(left + width / 10, width),
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
}

document.querySelectorAll(".chart").forEach(chart);
