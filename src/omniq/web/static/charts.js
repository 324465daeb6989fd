// Charts of an hour: stacked bars per minute, drawn with SVG. Numbers in, elements out.
import { h, s, number } from "./dom.js";

const W = 600, H = 150, LEFT = 34, BOTTOM = 16;

function nice(top) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, top)));
  for (const step of [1, 2, 5, 10]) if (top <= step * power) return step * power;
  return 10 * power;
}

const short = (n) => (n >= 1e6 ? `${n / 1e6}M` : n >= 1e3 ? `${n / 1e3}k` : String(n));

// layers: [[name in the points, css class, label]]
export function bars(title, points, layers) {
  const sums = points.map((p) => layers.reduce((total, [name]) => total + p[name], 0));
  const top = nice(Math.max(1, ...sums));
  const width = (W - LEFT) / points.length;
  const y = (v) => (H - BOTTOM) * (1 - v / top);
  const marks = [0, 0.5, 1].flatMap((part) => {
    const at = y(top * part);
    return [
      s("line", { x1: LEFT, x2: W, y1: at, y2: at, class: "grid" }),
      s("text", { x: LEFT - 5, y: Math.max(9, at + 3), class: "tick", "text-anchor": "end" }, short(top * part)),
    ];
  });
  const stacks = points.flatMap((point, index) => {
    let below = 0;
    return layers.map(([name, cls, label]) => {
      const value = point[name];
      const bar = s("rect", {
        x: LEFT + index * width + 0.8, width: Math.max(1, width - 1.6),
        y: y(below + value), height: Math.max(0, y(below) - y(below + value)), class: cls, rx: 1,
      }, s("title", {}, `${new Date(point.at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}: ${number(value)} ${label}`));
      below += value;
      return bar;
    });
  });
  const ticks = points.map((p, i) => [p, i]).filter(([p]) => new Date(p.at).getMinutes() % 15 === 0).map(([p, i]) =>
    s("text", { x: LEFT + i * width + width / 2, y: H - 3, class: "tick", "text-anchor": "middle" },
      new Date(p.at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })));
  const legend = h("div", { class: "legend" }, layers.map(([name, cls, label]) =>
    h("span", {}, h("i", { class: cls }), `${label} ${number(points.reduce((t, p) => t + p[name], 0))}`)));
  return h("section", { class: "card chart" },
    h("div", { class: "row" }, h("h2", {}, title), legend),
    s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}, by minute` }, ...marks, ...stacks, ...ticks));
}

export function meter(part, all) {
  const share = all > 0 ? Math.min(1, part / all) : 0;
  return s("svg", { viewBox: "0 0 100 6", class: "meter", preserveAspectRatio: "none", role: "img", "aria-label": `${part} of ${all}` },
    s("rect", { width: 100, height: 6, rx: 3, class: "track" }), s("rect", { width: share * 100, height: 6, rx: 3, class: share >= 1 ? "full" : "fill" }));
}
