// Elements from values. Text only ever becomes text: nothing here parses HTML.

export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false).map(String_or_node));
  return element;
}

function String_or_node(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

// What is held outlives a redraw: the focus, how far a table was moved, what is open.
export function redraw(element, ...children) {
  const focused = element.contains(document.activeElement) ? markOf(document.activeElement) : null;
  const moved = [...element.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const turned = new Map([...element.querySelectorAll("details")].map((one) => [one.dataset.of, one.open]));
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  element.querySelectorAll(".scroll").forEach((one, n) => { one.scrollLeft = moved[n] || 0; });
  element.querySelectorAll("details").forEach((one) => { if (turned.has(one.dataset.of)) one.open = turned.get(one.dataset.of); });
  if (focused) [...element.querySelectorAll("a, button, summary")].find((one) => one.offsetParent && markOf(one) === focused)?.focus({ preventScroll: true });
}

// A row is told by its data, and in it a button or link by what it says or leads to.
function markOf(one) {
  const place = one.closest("[data-of], [data-queue], [data-schedule], [data-worker], section[id]");
  return JSON.stringify([one.tagName, one.getAttribute("href") || one.textContent, place?.id, place && { ...place.dataset }]);
}

const SVG = "http://www.w3.org/2000/svg";
export function s(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, String(value));
  element.append(...children.filter((c) => c !== null).map(String_or_node));
  return element;
}

// --- words for numbers and moments ---------------------------------------------------------------

export const number = (n) => Number(n || 0).toLocaleString("en-US");

export function compact(n) {
  n = Number(n || 0);
  return n < 10000 ? number(n) : Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 }).format(n);
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return "< 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// The store's clock counts, not this machine's: what is shown is relative to the latest answer.
let skew = 0;
export function setNow(iso) { skew = new Date(iso) - Date.now(); }
export const nowMs = () => Date.now() + skew;

export function ago(iso) {
  if (!iso) return "–";
  const seconds = (nowMs() - new Date(iso)) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
}

export function time(iso) {
  if (!iso) return "–";
  return h("time", { datetime: iso, title: new Date(iso).toLocaleString() }, ago(iso));
}

export const since = (iso) => (iso ? span((nowMs() - new Date(iso)) / 1000) : "–");

export function pill(state) {
  return h("span", { class: `pill ${String(state).toLowerCase()}` }, String(state).toLowerCase());
}

export function shortId(id) {
  return id.length > 22 ? `${id.slice(0, 8)}…${id.slice(-8)}` : id;
}

export const taskHref = (id) => `#/task/${encodeURIComponent(id)}`;

export function taskLink(task) {
  return h("a", { href: taskHref(task.id), title: task.id }, task.func);
}
