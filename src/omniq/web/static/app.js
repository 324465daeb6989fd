// The frame around the pages: where we are, what the server says, keys, and what people do.
import { h, setNow } from "./dom.js";
import { pages } from "./pages.js";

const TABS = [["", "Overview", "o"], ["queues", "Queues", "q"], ["tasks", "Tasks", "t"], ["workers", "Workers", "w"], ["schedules", "Schedules", "s"]];
const main = document.getElementById("main");
const state = { session: { actions: false, args: false, csrf: "" }, overview: null, live: false, heardAt: 0, page: null };
const SILENT_MS = 20000, AGAIN_MS = 3000;

// --- talking to the server -----------------------------------------------------------------------

export async function ask(path, parameters) {
  const query = new URLSearchParams(Object.entries(parameters || {}).filter(([, v]) => v !== "" && v !== null && v !== undefined));
  const answer = await fetch(`api/${path}?${query}`, { headers: { accept: "application/json" } });
  return read(answer);
}

async function read(answer) {
  if (answer.status === 401) location.replace("login");
  const said = await answer.json().catch(() => ({ error: `the server said ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(said.error || `the server said ${answer.status}`), { status: answer.status });
  return said;
}

export async function tell(path, body, done) {
  try {
    const answer = await fetch(`api/${path}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-omniq-csrf": state.session.csrf },
      body: JSON.stringify(body),
    });
    const said = await read(answer);
    toast(done);
    return said;
  } catch (error) {
    toast(error.message, "bad");
    return false;
  }
}

export function toast(text, kind) {
  const box = h("div", { class: `toast ${kind || "good"}` }, text);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), 6000);
}

export function confirmed(question, word) {
  const dialog = document.getElementById("dialog");
  return new Promise((resolve) => {
    const close = (answer) => { dialog.close(); resolve(answer); };
    dialog.replaceChildren(
      h("p", {}, question),
      h("div", { class: "row end" },
        h("button", { type: "button", onclick: () => close(false) }, "Keep it"),
        h("button", { type: "button", class: "danger", id: "confirm", onclick: () => close(true) }, word)));
    dialog.oncancel = () => resolve(false);
    dialog.showModal();
  });
}

// --- where we are --------------------------------------------------------------------------------

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("?")[0].split("/");
  const query = new URLSearchParams(location.hash.split("?")[1] || "");
  return { name, rest: rest.map(decoded).join("/"), query };
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; } // typed by hand
}

async function show() {
  const { name, rest, query } = route();
  const page = pages[name] || pages[""];
  drawNav(name === "task" ? "tasks" : name);
  state.page?.leave?.();
  const view = { element: h("div", { class: `page ${name || "overview"}` }), args: rest, query, state, ask, tell, confirmed, toast };
  view.failed = (error) => {
    view.element.replaceChildren(h("div", { class: "card bad" }, h("h2", {}, "That did not work"), h("p", {}, error.message),
      error.status === 404 ? h("p", {}, h("a", { href: "#/tasks" }, "All tasks")) : null));
    view.update = !error.status || error.status >= 500 ? () => show() : null; // at the next good news
  };
  state.page = view;
  document.title = `OmniQ: ${name || "overview"}`;
  main.replaceChildren(view.element);
  try {
    await page(view);
  } catch (error) {
    view.failed(error);
  }
}

function drawNav(current) {
  document.getElementById("nav").replaceChildren(...TABS.map(([name, label, key]) =>
    h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null, title: `g ${key}` }, label)));
}

// --- live ----------------------------------------------------------------------------------------

function follow() {
  const source = new EventSource("api/events");
  source.addEventListener("overview", (event) => {
    state.overview = JSON.parse(event.data);
    setNow(state.overview.now);
    state.live = true;
    state.heardAt = Date.now();
    drawStatus();
    if (!isSelecting()) state.page?.update?.(state.overview);
  });
  source.addEventListener("trouble", (event) => {
    state.live = false;
    drawStatus(`The store does not answer: ${JSON.parse(event.data).error}.`);
  });
  source.onopen = () => ask("session").then((session) => { state.session = session; }).catch(() => {}); // it may be another server now
  source.onerror = () => {
    state.live = false;
    drawStatus("The dashboard's server does not answer.");
    // A browser tries again by itself, unless it was refused: then it is asked why, or who we are.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => ask("session").catch(() => {}).then(follow), AGAIN_MS);
  };
}

setInterval(() => {
  if (!state.live || Date.now() - state.heardAt < SILENT_MS) return;
  state.live = false;
  drawStatus("No news from the store.");
}, 1000);

// News would take away what somebody is about to copy.
function isSelecting() {
  const selected = getSelection();
  return !selected.isCollapsed && main.contains(selected.anchorNode);
}

function drawStatus(trouble) {
  const status = document.getElementById("status");
  const health = state.overview?.health;
  const word = !state.live ? "disconnected" : health?.ok ? "healthy" : "needs a look";
  const cls = !state.live ? "off" : health?.ok ? "good" : "bad";
  const title = trouble || (health?.problems || []).join("\n") || state.session.store;
  say(status, word, h("span", { class: `dot ${cls}` }), h("span", {}, word));
  status.title = title; // which counts the seconds that something is late
  drawTrouble(trouble);
}

function drawTrouble(trouble) {
  const box = document.getElementById("trouble"), old = state.heardAt ? ` What is shown is of ${new Date(state.heardAt).toLocaleTimeString()}.` : "";
  box.hidden = state.live;
  if (!state.live) say(box, `${trouble || "Disconnected."}${old}`, `${trouble || "Disconnected."}${old}`);
}

// Once, and not every second: what is put there anew is read out to those who listen.
function say(box, text, ...parts) {
  if (box.dataset.said === text) return;
  box.dataset.said = text;
  box.replaceChildren(...parts);
}

// --- keys ----------------------------------------------------------------------------------------

const HELP = [["g then o q t w s", "overview, queues, tasks, workers, schedules"], ["/", "to the filter"], ["j k", "down, up in a list"], ["Enter", "open"],
  ["r c n d", "on a task: retry, cancel, run now, delete"], ["shift d", "light or dark"], ["?", "this"]];
let prefix = false;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (prefix) {
    prefix = false;
    const tab = TABS.find(([, , key]) => key === event.key);
    if (tab) { location.hash = `#/${tab[0]}`; event.preventDefault(); }
    return;
  }
  const keys = {
    g: () => { prefix = true; },
    "/": () => document.querySelector("[data-filter]")?.focus(),
    "?": help, D: theme, j: () => move(1), k: () => move(-1),
  };
  if (keys[event.key]) { keys[event.key](); event.preventDefault(); return; }
  const button = document.querySelector(`[data-key="${CSS.escape(event.key)}"]:not(:disabled)`);
  if (button) { button.click(); event.preventDefault(); }
});

function move(step) {
  const links = [...document.querySelectorAll("main tbody tr a[href]:first-of-type")].filter((a, i, all) => all.findIndex((b) => b.closest("tr") === a.closest("tr")) === i);
  if (!links.length) return;
  const at = links.findIndex((a) => a.closest("tr").contains(document.activeElement));
  links[Math.max(0, Math.min(links.length - 1, at + step))].focus();
}

function help() {
  const dialog = document.getElementById("dialog");
  dialog.replaceChildren(h("h2", {}, "Keys"),
    h("dl", { class: "keys" }, HELP.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("omniq-theme", root.dataset.theme); } catch { /* private window: it lasts until the next load */ }
}

// --- begin ---------------------------------------------------------------------------------------

try { const kept = localStorage.getItem("omniq-theme"); if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept; } catch { /* as above */ }
document.getElementById("help").addEventListener("click", help);
document.getElementById("theme").addEventListener("click", theme);
window.addEventListener("hashchange", show);
ask("session").then((session) => { state.session = session; follow(); return show(); }).catch((error) => toast(error.message, "bad"));
