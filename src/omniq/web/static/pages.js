// The pages. Each gets a view: an element to fill, and asks the server for what it shows.
import { ago, compact, h, nowMs, number, pill, redraw, setNow, shortId, since, span, taskHref, taskLink, time } from "./dom.js";
import { area, bars, meter, times } from "./charts.js";

const LATE_S = 60, LIST_EVERY_MS = 3000;
// A head is a word, or a word and the class of its column: `num` lines up at the right, `less` is not for phones.
const headRow = (heads) => h("thead", {}, h("tr", {}, heads.map((one) => (Array.isArray(one) ? h("th", { scope: "col", class: one[1] }, one[0]) : h("th", { scope: "col" }, one)))));
const table = (heads, rows, empty) => h("div", { class: "scroll" }, h("table", {}, headRow(heads),
  h("tbody", {}, rows.length ? rows : h("tr", {}, h("td", { colspan: heads.length, class: "empty" }, empty)))));
const tile = (label, value, note, cls) => h("div", { class: `card tile ${cls || ""}` },
  h("div", { class: "label" }, label), h("div", { class: "value" }, value), h("div", { class: "note" }, note));

const progressed = ([done, all]) => (all ? `${number(done)} of ${number(all)}` : number(done));
const part = (text) => [h("span", { class: "part" }, text), " "];

// --- overview ------------------------------------------------------------------------------------

function tiles(seen) {
  const waiting = seen.held.PENDING, running = seen.held.RUNNING, over = `${Math.round(seen.rates.over_s / 60)} min`;
  const oldest = seen.late.find((one) => !one.paused) || seen.late[0];
  const wait = oldest ? (nowMs() - new Date(oldest.due_at)) / 1000 : null;
  const t = seen.timings, minutes = seen.rates.over_s / 60;
  return h("div", { class: "tiles" },
    tile("Waiting", compact(waiting), waiting >= 10000 ? `${number(waiting)} in ${number(seen.queue_count)} queues` : `in ${number(seen.queue_count)} queues`),
    tile("Running", compact(running), seen.longest.length ? `longest ${since(seen.longest[0].started_at)}` : "nothing runs"),
    workersTile(seen.workers),
    tile("Oldest waiting", oldest ? h("a", { href: taskHref(oldest.id) }, span(wait)) : "–", oldest ? `in ${oldest.queue}` : "nothing is due", wait > LATE_S ? "bad" : ""),
    tile("Done", `${compact(Math.round(seen.rates.succeeded / minutes))}/min`, `${number(seen.rates.succeeded)} in ${over}`),
    tile("Failed", compact(seen.rates.failed), [part(`in ${over},`), part(`${number(seen.rates.retried)} retried,`), part(`${number(seen.rates.lost)} lost`)], seen.rates.failed ? "warn" : ""),
    tile("Wait p95", t.wait ? span(t.wait.p95) : "–", t.wait ? [part(`p50 ${span(t.wait.p50)},`), part(`p99 ${span(t.wait.p99)}`)] : "nothing ended yet"),
    tile("Run p95", t.run ? span(t.run.p95) : "–", t.run ? [part(`p50 ${span(t.run.p50)},`), part(`p99 ${span(t.run.p99)}`)] : "nothing ended yet"));
}

function workersTile({ known, silent, slots, busy }) {
  // What the silent ones hold is in no slot of those that live.
  const held = busy <= slots ? `${number(busy)} of ${number(slots)} slots` : `${number(slots)} slots, ${number(busy)} running`;
  const note = [part(silent ? `${held},` : held), silent ? part(`${number(silent)} silent`) : null];
  return tile("Workers", number(known - silent), note, known && !silent ? "" : known > silent ? "warn" : "bad");
}

function problems(seen) {
  if (seen.health.ok && !seen.health.notes.length) return null;
  return h("section", { class: `card banner ${seen.health.ok ? "" : "bad"}`, id: "problems" },
    h("ul", {}, [...seen.health.problems.map((one) => h("li", {}, h("b", {}, one))), ...seen.health.notes.map((one) => h("li", {}, one))]));
}

function late(seen) {
  return h("section", { class: "card", id: "late" }, h("h2", {}, "Waiting longest ", seen.late.length ? h("span", { class: "note" }, "the first of each queue") : null),
    table(["Task", "Queue", ["Due for", "num"]], seen.late.map((one) => h("tr", { class: !one.paused && (nowMs() - new Date(one.due_at)) / 1000 > LATE_S ? "late" : "" },
      h("td", {}, taskLink(one)),
      h("td", { class: "wrap" }, h("a", { href: `#/tasks?status=PENDING&queue=${encodeURIComponent(one.queue)}` }, one.queue), " ", one.because && pill(one.because), one.priority ? ` priority ${one.priority}` : null),
      h("td", { class: "num" }, since(one.due_at)))), "Nothing waits."));
}

function longest(seen) {
  return h("section", { class: "card", id: "longest" }, h("h2", {}, "Running longest"),
    table(["Task", "Held by", ["For", "num"]], seen.longest.map((one) => h("tr", { class: (nowMs() - new Date(one.started_at)) / 1000 > 600 ? "late" : "" },
      h("td", {}, taskLink(one)), h("td", { class: "wrap" }, h("a", { href: `#/workers?id=${encodeURIComponent(one.owner)}` }, one.owner)), h("td", { class: "num" }, since(one.started_at)))), "Nothing runs."));
}

async function overview(view) {
  const draw = (seen) => {
    redraw(view.element, problems(seen), tiles(seen),
      h("div", { class: "two" },
        bars("Ended per minute", seen.series, [["succeeded", "c-good", "done"], ["given_up", "c-bad", "failed"], ["stopped", "c-off", "cancelled"]]),
        bars("Enqueued per minute", seen.series, [["enqueued", "c-accent", "enqueued"], ["retried", "c-warn", "retried"], ["lost", "c-bad", "lost"]]),
        area("Depth: tasks that wait", seen.series, "waiting", "c-accent", "waiting"),
        times("Times: tasks by how long", seen.timings.spread, seen.timings.of)),
      h("div", { class: "two" }, late(seen), longest(seen)),
      h("section", { class: "card" }, h("h2", {}, "Queues"), queueTable(view, seen)));
  };
  const seen = view.state.overview || await view.ask("overview");
  setNow(seen.now);
  view.update = draw;
  draw(seen);
}

// --- queues --------------------------------------------------------------------------------------

// Why nothing of a queue runs, in the words of `why`. A pause counts also where nothing is due.
const holdsBack = (queue) => (queue.paused ? "paused" : queue.oldest?.because);

function queueTable(view, seen) {
  const cell = (queue, status, less) => h("td", { class: less ? "num less" : "num" }, queue.counts[status]
    ? h("a", { href: `#/tasks?status=${status}&queue=${encodeURIComponent(queue.name)}` }, number(queue.counts[status])) : h("span", { class: "zero" }, "0"));
  const act = (queue, action) => async (event) => {
    event.target.disabled = true;
    await view.tell(`queue/${action}`, { queue: queue.name }, `${queue.name}: ${action}d`);
  };
  const button = (queue) => view.state.session.actions && (queue.paused
    ? h("button", { type: "button", onclick: act(queue, "resume") }, "Resume")
    : h("button", { type: "button", onclick: act(queue, "pause") }, "Pause"));
  return [table(["Queue", ["Waiting", "num"], ["Running", "num"], ["Failed", "num"], ["Done", "num less"], ["Ended in 5 min", "num less"], ["Oldest due", "num"], ["", "less"]], seen.queues.map((queue) => h("tr", { dataset: { queue: queue.name } },
    h("td", {}, h("b", {}, queue.name), " ", holdsBack(queue) && pill(holdsBack(queue)), h("div", { class: "phone" }, button(queue))),
    cell(queue, "PENDING"), cell(queue, "RUNNING"), cell(queue, "FAILED"), cell(queue, "SUCCESS", true),
    h("td", { class: "num less" }, queue.failed_5m ? h("small", { class: "badtext" }, `${number(queue.failed_5m)} failed of `) : null, queue.ended_5m ? number(queue.ended_5m) : h("span", { class: "zero" }, "0")),
    h("td", { class: "num" }, queue.oldest ? h("a", { href: taskHref(queue.oldest.id) }, since(queue.oldest.due_at)) : "–"),
    h("td", { class: "end less" }, button(queue)))), "No queue has a task."),
    seen.queue_count > seen.queues.length ? h("p", { class: "note" }, `The ${number(seen.queues.length)} that need a look, of ${number(seen.queue_count)}; omniq queues lists all.`) : null];
}

async function queues(view) {
  const draw = (seen) => redraw(view.element, h("h1", {}, "Queues"), h("section", { class: "card" }, queueTable(view, seen)));
  const seen = view.state.overview || await view.ask("overview");
  setNow(seen.now);
  view.update = draw;
  draw(seen);
}

// --- tasks ---------------------------------------------------------------------------------------

const STATUSES = ["", "PENDING", "RUNNING", "SUCCESS", "FAILED", "CANCELLED"];
const FIELDS = [["queue", "Queue"], ["func", "Function"], ["error", "Text of the error"]];
const WINDOWS = [["", "any time"], ["900", "15 minutes"], ["3600", "1 hour"], ["86400", "1 day"], ["604800", "7 days"]];

function when(task) {
  if (task.status === "RUNNING") return ["running for ", since(task.started_at)];
  if (task.finished_at) return ["ended ", time(task.finished_at)];
  if (task.eta && new Date(task.eta) > nowMs()) return ["due ", time(task.eta)];
  return ["enqueued ", time(task.enqueued_at)];
}

// Two lines of it, so that a list stays a list; all of it under the pointer.
function errorLine(error) {
  const said = `${error.type}: ${error.message}`;
  return h("span", { class: "badtext short", title: said.slice(0, 600) }, said.slice(0, 240));
}

// What keeps all of its queue waiting is said beside each: the rest of why is on its own page.
function byOrWhy(view, task) {
  if (task.owner) return task.owner;
  const queue = task.state === "PENDING" && view.state.overview?.queues.find((one) => one.name === task.queue);
  const because = queue && holdsBack(queue);
  return [because === "paused" || because === "unserved queue" ? pill(because) : null, task.error ? errorLine(task.error) : null];
}

function taskRow(view, task) {
  return h("tr", {},
    h("td", {}, taskLink(task), h("small", { class: "id" }, shortId(task.id)), h("div", { class: "phone" }, task.owner ? null : byOrWhy(view, task))),
    h("td", {}, pill(task.state)),
    h("td", { class: "wrap less" }, task.queue),
    h("td", { class: "wrap" }, when(task)),
    h("td", { class: "wide less" }, byOrWhy(view, task)));
}

async function tasks(view) {
  const query = Object.fromEntries(view.query);
  const go = (changes) => {
    const next = new URLSearchParams(Object.entries({ ...query, ...changes }).filter(([, v]) => v));
    location.hash = `#/tasks?${next}`;
  };
  const form = h("form", { class: "filters card", onsubmit: (event) => { event.preventDefault(); go(Object.fromEntries(new FormData(event.target))); } },
    h("label", {}, "Status", h("select", { name: "status", onchange: (e) => go({ status: e.target.value }) },
      STATUSES.map((one) => h("option", { value: one, selected: (query.status || "") === one }, one ? one.toLowerCase() : "any")))),
    (query.owner ? [...FIELDS, ["owner", "Held by"]] : FIELDS).map(([name, label]) => h("label", {}, label, h("input", { name, value: query[name] || "", maxlength: 200, "data-filter": name === "queue" }))),
    h("label", {}, "Enqueued within", h("select", { name: "within", onchange: (e) => go({ within: e.target.value }) },
      WINDOWS.map(([value, label]) => h("option", { value, selected: (query.within || "") === value }, label)))),
    h("button", { class: "primary", type: "submit" }, "Filter"), h("button", { type: "button", onclick: () => { location.hash = "#/tasks"; } }, "Clear"));
  const body = h("tbody", {}), more = h("div", { class: "row more" });
  view.element.replaceChildren(h("h1", {}, "Tasks"), form, h("section", { class: "card" },
    h("div", { class: "scroll" }, h("table", {}, headRow(["Task", "State", ["Queue", "less"], "When", ["By, or why", "less"]]), body)), more));
  const asked = () => ({ status: query.status, queue: query.queue, func: query.func, error: query.error, owner: query.owner, limit: 50,
    enqueued_after: Number(query.within) > 0 ? new Date(nowMs() - Number(query.within) * 1000).toISOString() : "" });
  let loads = 0;
  const draw = (page) => {
    const count = body.children.length;
    redraw(more,
      h("span", { class: "note", id: "found" }, page.after ? `${number(count)} so far` : count ? `${number(count)}, that is all` : "Nothing matches."),
      page.after ? h("button", { type: "button", onclick: () => load(page.after).catch((error) => view.toast(error.message, "bad")) }, page.tasks.length ? "More" : "Look further back") : null);
    return count;
  };
  const load = async (after) => {
    const before = [...more.childNodes];
    more.replaceChildren(h("span", { class: "note" }, "Looking…"));
    const page = await view.ask("tasks", { ...asked(), after }).catch((error) => { more.replaceChildren(...before); throw error; });
    loads += 1;
    body.append(...page.tasks.map((one) => taskRow(view, one)));
    const count = draw(page);
    // A page can be empty although older tasks match: look on by ourselves for a while.
    return page.after && count < 20 && page.tasks.length < 50 ? page.after : null;
  };
  let after = await load(null);
  for (let tries = 0; after && tries < 10 && view.state.page === view; tries++) after = await load(after);
  let looked = Date.now();
  view.update = async () => { // as long as one page is all that is shown: nobody has looked further back
    if (loads > 1 || Date.now() - looked < LIST_EVERY_MS) return;
    looked = Date.now();
    const page = await view.ask("tasks", asked()).catch(() => null);
    if (!page || loads > 1) return;
    redraw(body, page.tasks.map((one) => taskRow(view, one)));
    draw(page);
  };
}

// --- one task ------------------------------------------------------------------------------------

function actions(view, task) {
  if (!view.state.session.actions) return h("p", { class: "note" }, "Read-only: started without --allow-actions.");
  const act = (name, done, question) => async () => {
    if (question && !(await view.confirmed(question, name))) return;
    if (await view.tell(`task/${name}`, { id: task.id }, done)) {
      if (name === "delete") location.hash = "#/tasks"; else await view.reload();
    }
  };
  const waits = task.status === "PENDING", runs = task.status === "RUNNING", over = !waits && !runs;
  return h("div", { class: "row actions" },
    h("button", { type: "button", "data-key": "r", disabled: !(task.status === "FAILED" || task.status === "CANCELLED"), onclick: act("retry", "It runs again.") }, "Retry"),
    h("button", { type: "button", "data-key": "n", disabled: !waits, onclick: act("run-now", "It is due now.") }, "Run now"),
    h("button", { type: "button", "data-key": "c", class: "danger", disabled: over || task.cancel_requested, onclick: act("cancel", runs ? "Asked to stop." : "Cancelled.", runs ? "Ask its worker to stop it?" : "Cancel it before it runs?") }, "Cancel"),
    h("button", { type: "button", "data-key": "d", class: "danger", disabled: !over, onclick: act("delete", "Deleted.", "Delete it, with its result and history?") }, "Delete"));
}

const pair = (name, value) => [h("dt", {}, name), h("dd", {}, value === null || value === undefined || value === "" ? "–" : value)];

const maybe = (name, value) => (value === null || value === undefined || value === "" ? [] : pair(name, value));

function errorBox(error, of, open) {
  return h("div", { class: "error" }, h("p", {}, h("b", {}, `${error.type}`), `: ${error.message} `, pill(error.kind)),
    error.traceback ? h("details", { open, dataset: { of } }, h("summary", {}, "Traceback"), h("pre", {}, error.traceback)) : null);
}

function history(task) {
  if (!task.history.length) return null;
  return h("section", { class: "card", id: "history" }, h("h2", {}, "Runs"),
    h("ol", { class: "runs" }, task.history.map((run) => h("li", {},
      h("div", { class: "row" }, h("b", {}, `Run ${run.run}`), pill(run.outcome.replace(" ", "-")), h("span", { class: "note" },
        "on ", run.owner || "–", ", ", run.started_at ? ["started ", time(run.started_at), ", took ", span((new Date(run.finished_at) - new Date(run.started_at)) / 1000)] : "never started")),
      run.error ? errorBox(run.error, `run ${run.run}`, false) : null))));
}

function drawTask(view, task) {
  const [first, ...others] = task.why;
  const done = task.progress;
  const show = (title, value, many) => many ? [h("h3", {}, title), h("pre", {}, JSON.stringify(value, null, 2))] : null;
  redraw(view.element,
    h("h1", {}, task.func, " ", pill(task.state)),
    h("p", { class: "note" }, h("code", {}, task.id)),
    first ? h("section", { class: `card why ${first.because.replaceAll(" ", "-")} ${task.status.toLowerCase()}`, id: "why" }, h("h2", {}, "Why"),
      h("p", { class: "because", title: first.text.slice(0, 600) }, first.text), first.do ? h("p", { class: "note" }, `→ ${first.do}`) : null,
      others.length ? h("ul", {}, others.map((one) => h("li", {}, one.text, one.do ? h("small", {}, ` → ${one.do}`) : null))) : null,
      first.because === "full" ? h("p", {}, h("a", { href: "#/workers" }, "See what these slots run")) : null,
      first.because === "paused" && view.state.session.actions ? h("button", { type: "button", class: "primary", onclick: async () => { if (await view.tell("queue/resume", { queue: task.queue }, `${task.queue}: resumed`)) await view.reload(); } }, `Resume ${task.queue}`) : null) : null,
    actions(view, task),
    done ? h("section", { class: "card" }, h("h2", {}, "Progress"), meter(done[0], done[1] || done[0]), h("p", { class: "note" }, progressed(done))) : null,
    task.error ? h("section", { class: "card", id: "error" }, h("h2", {}, "Error"), errorBox(task.error, "error", task.status === "FAILED")) : null,
    h("section", { class: "card" }, h("dl", { class: "facts" },
      pair("Queue", h("a", { href: `#/tasks?queue=${encodeURIComponent(task.queue)}` }, task.queue)), pair("Priority", task.priority),
      pair("Enqueued", time(task.enqueued_at)), maybe("Due", task.eta ? time(task.eta) : null), maybe("Started", task.started_at ? time(task.started_at) : null),
      maybe("Ended", task.finished_at ? time(task.finished_at) : null), maybe("Held by", task.owner ? h("a", { href: `#/workers?id=${encodeURIComponent(task.owner)}` }, task.owner) : null),
      pair("Runs", task.runs), pair("Failures", `${task.attempts} of at most ${task.max_retries + 1}`), pair("Deaths", `${task.losses} of at most ${task.max_losses}`),
      maybe("Timeout", task.timeout ? span(task.timeout) : null), maybe("Every", task.interval ? span(task.interval) : null),
      maybe("Expires", task.expires_at ? time(task.expires_at) : null), maybe("Unique key", task.unique_key))),
    h("section", { class: "card" }, h("h2", {}, "Call"),
      task.args_hidden ? h("p", { class: "note" }, "Arguments are hidden; start the dashboard with --show-args.") : [show("Positional", task.args, task.args.length), show("By name", task.kwargs, Object.keys(task.kwargs).length), task.args.length || Object.keys(task.kwargs).length ? null : h("p", { class: "note" }, "Without arguments.")],
      Object.keys(task.headers).length ? [h("h3", {}, "Headers"), h("dl", { class: "facts" }, Object.entries(task.headers).flatMap(([k, v]) => pair(k, v)))] : null),
    history(task));
}

async function task(view) {
  view.reload = async () => drawTask(view, await view.ask("task", { id: view.args }));
  await view.reload();
  let looked = Date.now(), over = false;
  view.leave = () => { over = true; };
  view.update = async () => {
    if (Date.now() - looked < 2000 || over || document.getElementById("dialog").open) return;
    looked = Date.now();
    await view.reload().catch((error) => { // what is wrong with the store is said at the top
      if (error.status === 404 && !over) view.failed(error); // deleted or pruned while somebody looks
    });
  };
}

// --- workers -------------------------------------------------------------------------------------

const POOLS = { tasks: "Processes", suspects: "Processes for suspects" };

function poolBox(pool, of) {
  const busy = pool.processes.filter((one) => one.status === "busy").length;
  return h("div", { class: "pool" },
    h("div", { class: "row" }, h("h3", {}, POOLS[pool.purpose] || pool.purpose), h("span", { class: "note" },
      `${pool.processes.length} now, ${busy} busy; ${pool.least} to ${pool.most} allowed`, pool.reason ? `; ${pool.reason}` : "")),
    pool.processes.length ? table(["Process", "State", "Runs", ["For", "num"], ["Runs before", "num less"]], pool.processes.map((one) => h("tr", {},
      h("td", {}, one.pid ? `pid ${one.pid}` : "–"), h("td", { class: "wrap" }, pill(one.status), one.reason ? h("small", { class: "note" }, ` ${one.reason}`) : null),
      h("td", { class: "wrap" }, one.id ? taskLink(one) : "–"), h("td", { class: "num" }, since(one.since)), h("td", { class: "num less" }, number(one.runs)))), "") : null,
    pool.scalings.length ? h("details", { class: "scalings", open: true, dataset: { of } }, h("summary", {}, "Scaling decisions"),
      table(["When", "Size", "Why"], pool.scalings.map((one) => h("tr", {},
        h("td", {}, time(one.at)), h("td", {}, h("b", { class: one.after > one.before ? "more" : "fewer" }, `${one.before} → ${one.after}`)),
        h("td", { class: "wide" }, one.reason))), "")) : null);
}

function slotRow(slot) {
  return h("tr", {}, h("td", {}, taskLink(slot), " ", slot.state === "CANCELLING" && pill("cancelling")), h("td", { class: "wrap less" }, slot.queue), h("td", { class: "num" }, since(slot.started_at)),
    h("td", {}, slot.progress ? [meter(slot.progress[0], slot.progress[1] || slot.progress[0]), " ", h("small", { class: "note less" }, progressed(slot.progress))] : "–"));
}

function workerCard(one, wanted) {
  const shown = one.slots.slice(0, 50), idle = one.concurrency - one.in_flight;
  return h("section", { class: `card worker ${one.silent ? "silent" : ""} ${one.id === wanted ? "wanted" : ""}`, dataset: { worker: one.id } },
    h("div", { class: "row" }, h("h2", {}, one.name), one.silent ? pill("silent") : one.blocked_s ? pill("blocked") : pill("alive"), one.loop_stalls ? h("span", { class: "pill failed", title: "its log has the stack of what blocked it" }, `loop blocked ${one.loop_stalls}×`) : null,
      h("span", { class: "note" }, `${one.host}, pid ${one.pid}, up ${since(one.started_at)}, heard of ${ago(one.seen_at)}`)),
    h("div", { class: "row" }, meter(one.in_flight, one.concurrency, "full"), h("span", { class: "note" }, `${one.in_flight} of ${one.concurrency} slots`),
      h("span", { class: "note" }, "queues: ", h("b", {}, one.queues ? one.queues.join(", ") : "all"))),
    h("p", { class: "note" }, h("code", {}, one.id), "; functions: ", one.functions ? one.functions.join(", ") : "whatever can be imported"),
    one.slots.length ? table(["Slot runs", ["Queue", "less"], ["For", "num"], "Progress"], shown.map(slotRow), "") : null,
    one.in_flight > shown.length ? h("p", { class: "note" }, h("a", { href: `#/tasks?status=RUNNING&owner=${encodeURIComponent(one.id)}` }, shown.length ? `and ${number(one.in_flight - shown.length)} more` : `${number(one.in_flight)} tasks that began later than others'`)) : null,
    one.slots.length && idle > 0 ? h("p", { class: "note" }, `${number(idle)} ${idle === 1 ? "slot waits" : "slots wait"} for work`) : null,
    one.pools.map((pool) => poolBox(pool, `${one.id} ${pool.purpose}`)));
}

async function workers(view) {
  const load = async () => {
    const { workers: found, of } = await view.ask("workers", { id: view.query.get("id") });
    redraw(view.element, h("h1", {}, "Workers"), (found.length ? found.map((one) => workerCard(one, view.query.get("id"))) : [h("div", { class: "card empty" }, "No worker has been heard of. Start one: omniq worker myapp:q")]),
      of > found.length ? h("p", { class: "note" }, `The ${number(found.length)} that were heard of last, of ${number(of)}; omniq workers lists all.`) : null);
  };
  await load();
  let looked = Date.now();
  view.update = () => { if (Date.now() - looked > 2000) { looked = Date.now(); load().catch(() => {}); } };
}

// --- schedules -----------------------------------------------------------------------------------

// Nobody fired it: no worker runs, of any queue.
const isOverdue = (one) => one.next_at && !one.paused && (nowMs() - new Date(one.next_at)) / 1000 > LATE_S;

function scheduleRow(view, one) {
  const act = (action, done) => async (event) => {
    event.target.disabled = true;
    const said = await view.tell(`schedule/${action}`, { name: one.name }, done);
    if (said && said.id) location.hash = taskHref(said.id); else await view.reload();
  };
  const rules = [one.catch_up !== "latest" && `catch up: ${one.catch_up}`, one.overlap !== "allow" && "no overlap"].filter(Boolean).join(", ");
  const buttons = () => view.state.session.actions && [
    h("button", { type: "button", onclick: act("run", `${one.name}: a task was made`) }, "Run now"),
    one.paused
      ? h("button", { type: "button", onclick: act("resume", `${one.name}: resumed`) }, "Resume")
      : h("button", { type: "button", onclick: act("pause", `${one.name}: paused`) }, "Pause")];
  return h("tr", { dataset: { schedule: one.name } },
    h("td", {}, h("b", {}, one.name), " ", one.paused && pill("paused"), rules ? h("small", { class: "id" }, rules) : null, h("div", { class: "phone" }, buttons())),
    h("td", { class: "wrap" }, one.every ? `every ${span(one.every)}` : [h("code", {}, one.cron), ` ${one.tz}`]),
    h("td", { class: "less" }, h("a", { href: `#/tasks?func=${encodeURIComponent(one.func)}&queue=${encodeURIComponent(one.queue)}` }, one.func)),
    h("td", { class: "wrap less" }, one.queue),
    h("td", { class: isOverdue(one) ? "num badtext" : "num" }, one.next_at ? time(one.next_at) : "–"), h("td", { class: "num less" }, one.last_at ? time(one.last_at) : "–"),
    h("td", { class: "end less" }, buttons()));
}

async function schedules(view) {
  view.reload = async () => {
    const { schedules: found, of } = await view.ask("schedules");
    redraw(view.element, h("h1", {}, "Schedules"),
      h("section", { class: "card" }, table(["Schedule", "When", ["Task", "less"], ["Queue", "less"], ["Next", "num"], ["Last", "num less"], ["", "less"]], found.map((one) => scheduleRow(view, one)), "Nothing is scheduled. See q.schedule, or omniq schedules add.")),
      of > found.length ? h("p", { class: "note" }, `The first ${number(found.length)} of ${number(of)}; omniq schedules lists all.`) : null);
  };
  await view.reload();
  let looked = Date.now();
  view.update = () => {
    if (Date.now() - looked < 2000) return;
    looked = Date.now();
    view.reload().catch(() => {});
  };
}

export const pages = { "": overview, queues, tasks, task, workers, schedules };
