// Charts of an hour: stacked bars per minute, drawn with SVG. Numbers in, elements out.
import { h, s, number } from "./dom.js";

// Drawn for the width that it gets, so that letters are as large on a phone as anywhere.
let W = 600;
const H = 150, LEFT = 34, BOTTOM = 18, PHONE = 720;
const isPhone = () => innerWidth <= PHONE;
const measure = () => { W = isPhone() ? Math.max(260, innerWidth - 54) : 600; };

function nice(top) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, top)));
  for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) if (top <= step * power) return step * power;
  return 10 * power;
}

const short = (n) => (n >= 1e6 ? `${n / 1e6}M` : n >= 1e3 ? `${n / 1e3}k` : String(n));

const clock = (at) => new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const y = (value, top) => (H - BOTTOM) * (1 - value / top);

function scale(top) {
  return [0, 0.5, 1].flatMap((part) => {
    const at = y(top * part, top);
    return [
      s("line", { x1: LEFT, x2: W, y1: at, y2: at, class: "grid" }),
      s("text", { x: LEFT - 5, y: Math.max(9, at + 3), class: "tick", "text-anchor": "end" }, short(top * part)),
    ];
  });
}

function minutes(points, width) {
  return points.map((p, i) => [p, i]).filter(([p]) => new Date(p.at).getMinutes() % 15 === 0).map(([p, i]) =>
    s("text", { x: Math.min(LEFT + i * width + width / 2, W - 15), y: H - 3, class: "tick", "text-anchor": "middle" }, clock(p.at)));
}

function card(title, legend, label, ...marks) {
  return h("section", { class: "card chart" },
    h("div", { class: "row" }, h("h2", {}, title), h("div", { class: "legend" }, legend)),
    s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}, ${label}` }, ...marks));
}

const key = (cls, text) => h("span", {}, h("i", { class: cls }), text);

// layers: [[name in the points, css class, label]]
export function bars(title, points, layers) {
  measure();
  const top = nice(Math.max(1, ...points.map((p) => layers.reduce((total, [name]) => total + p[name], 0))));
  const width = (W - LEFT) / points.length;
  const stacks = points.flatMap((point, index) => {
    let below = 0;
    return layers.map(([name, cls, label]) => {
      const value = point[name];
      const bar = s("rect", {
        x: LEFT + index * width + 0.8, width: Math.max(1, width - 1.6),
        y: y(below + value, top), height: Math.max(0, y(below, top) - y(below + value, top)), class: cls, rx: 1,
      }, s("title", {}, `${clock(point.at)}: ${number(value)} ${label}`));
      below += value;
      return bar;
    });
  });
  const legend = layers.map(([name, cls, label]) => key(cls, `${label} ${number(points.reduce((t, p) => t + p[name], 0))}`));
  return card(title, legend, "by minute", ...scale(top), ...stacks, ...minutes(points, width));
}

export function area(title, points, name, cls, label) {
  measure();
  const top = nice(Math.max(1, ...points.map((p) => p[name])));
  const width = (W - LEFT) / points.length;
  const at = (i) => LEFT + i * width + width / 2;
  const line = points.map((p, i) => `${at(i).toFixed(1)},${y(Math.max(0, p[name]), top).toFixed(1)}`).join(" ");
  const zones = points.map((p, i) => s("rect", { x: LEFT + i * width, width, y: 0, height: H - BOTTOM, class: "zone" }, s("title", {}, `${clock(p.at)}: ${number(p[name])} ${label}`)));
  return card(title, key(cls, `${label} ${number(points.at(-1)[name])}`), "by minute", ...scale(top),
    s("polygon", { points: `${at(0)},${H - BOTTOM} ${line} ${at(points.length - 1)},${H - BOTTOM}`, class: `${cls} soft` }),
    s("polyline", { points: line, class: `line ${cls}` }), ...zones, ...minutes(points, width));
}

const upTo = (to, before) => (to === null ? `> ${before >= 120 ? `${Math.round(before / 60)} min` : `${before} s`}` : to < 1 ? `${to * 1000} ms` : to >= 120 ? `${Math.round(to / 60)} min` : `${to} s`);

// How many waited, and ran, so long: two bars for each time.
export function times(title, spread, of) {
  measure();
  const top = nice(Math.max(1, ...spread.map((one) => Math.max(one.waited, one.ran))));
  const width = (W - LEFT) / spread.length, half = width * 0.38;
  const marks = spread.flatMap((one, i) => {
    const label = upTo(one.to_s, i ? spread[i - 1].to_s : 0), x = LEFT + i * width;
    const bar = (value, cls, word, left) => s("rect", { x: left, width: half, y: y(value, top), height: y(0, top) - y(value, top), class: cls, rx: 1.5 }, s("title", {}, `${number(value)} ${word} ${one.to_s === null ? "" : "up to "}${label}`));
    return [bar(one.waited, "c-warn", "waited", x + width * 0.1), bar(one.ran, "c-accent", "ran", x + width * 0.52),
      isPhone() && i % 2 ? null : s("text", { x: Math.min(x + width / 2, W - 20), y: H - 3, class: "tick", "text-anchor": "middle" }, label)];
  });
  return card(title, [key("c-warn", "waited"), key("c-accent", "ran"), h("span", {}, `the latest ${number(of)}`)], "by how long", ...scale(top), ...marks.filter(Boolean));
}

// `full` is how it looks when nothing is left: of slots that is worth a look, of work it is not.
export function meter(part, all, full = "fill") {
  const share = all > 0 ? Math.min(1, part / all) : 0;
  return s("svg", { viewBox: "0 0 100 6", class: "meter", preserveAspectRatio: "none", role: "img", "aria-label": `${part} of ${all}` },
    s("rect", { width: 100, height: 6, rx: 3, class: "track" }), s("rect", { width: share * 100, height: 6, rx: 3, class: share >= 1 ? full : "fill" }));
}
