"use strict";
// zooms a chart over its steps: wheel or + and -, drag or arrows to move, double click or 0 for all
for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg"), ticks = [...chart.querySelectorAll(".x span")];
  const first = Number(chart.dataset.first), last = Number(chart.dataset.last);
  let left = 0, width = 1000, held = null;
  const show = (start, size) => {
    width = Math.min(1000, Math.max(5, size));
    left = Math.min(1000 - width, Math.max(0, start));
    svg.setAttribute("viewBox", `${left} 0 ${width} 1000`);
    ticks.forEach((tick, n) => {
      const share = (left + width * n / (ticks.length - 1)) / 1000;
      tick.textContent = Math.round(first + (last - first) * share).toLocaleString("en-US");
    });
  };
  const zoom = (factor, share) => show(left + share * (width - Math.min(1000, Math.max(5, width * factor))), width * factor);
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
    if (held === null) return;
    const now = place(event);
    show(left + (held - now) * width, width);
    held = now;
  });
  svg.addEventListener("dblclick", () => show(0, 1000));
  chart.addEventListener("keydown", event => {
    const keys = {
      "+": () => zoom(0.8, 0.5), "-": () => zoom(1.25, 0.5), "0": () => show(0, 1000),
      ArrowLeft: () => show(left - width / 10, width), ArrowRight: () => show(left + width / 10, width),
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
}
