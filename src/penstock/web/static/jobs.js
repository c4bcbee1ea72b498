// The pages of jobs by filter, and of schedules.

import { html, useEffect, useRef, useState } from "./ui.js";
import { Ask, Loading, Problem, Table, Tag, act, ask, jobsLink, later, link, queueOf, send, shortId, teach, useAnswer, workerLink } from "./components.js";
import { age, exactly, number, say, t, time } from "./text.js";

export const STATES = { dead: "bad", expired: "warn", cancelled: "warn", delayed: "", sleeping: "", ready: "", parked: "", waiting: "", blocked: "warn", unknown: "", running: "good", completed: "good", dropped: "" };
export const NEVER = 1e11; // seconds since 1970 beyond which nothing is due: it waits for a signal without a time-out
const FILTERS = ["state", "task", "tenant", "worker", "id_prefix", "older_than", "tag", "text", "since"];
const ENDED = ["ended", "completed", "failed", "cancelled", "expired", "dropped"];
const OFFERED = 200; // names that a field offers
const SPANS = [[900, "last-quarter"], [3600, "last-hour"], [86400, "last-day"]];
const SEARCHED = ["ended", "ready", "delayed", "sleeping", "parked", "waiting", "running", "dead", "completed", "cancelled", "expired", "dropped"];

const job = (id) => html`<a class="mono" title=${id} href=${`#/job/${encodeURIComponent(id)}`}>${shortId(id)}</a>`;

/** The filter of an address: only what is set. An empty task or tenant that is set is a filter, too. */
function chosen(filter) {
  return Object.fromEntries(FILTERS.filter((name) => filter.get(name)).map((name) => [name, filter.get(name)]));
}

/**
 * Names that the fields of the form offer: the tasks and workers of a queue, or of all, the largest tenants of a queue, and
 * the tenants and tags of the jobs that were found.
 */
function useNames(queue, jobs) {
  const [names, keep] = useState({ tasks: [], tenants: [], workers: [] });
  useEffect(() => {
    let ended = false;
    const known = async (part, path, read) => {
      try {
        const found = [...new Set(read(await ask(path)))].filter(Boolean).sort();
        if (!ended) keep((old) => ({ ...old, [part]: found }));
      } catch { /* a form without offers is good enough */ }
    };
    known("tasks", "tasks", (answer) => answer.tasks.filter((one) => !queue || one.queue === queue).map((one) => one.task));
    known("workers", "workers", (answer) => answer.workers.filter((one) => !queue || one.queue === queue).map((one) => one.name));
    if (queue) known("tenants", `queues/${encodeURIComponent(queue)}`, (answer) => answer.largest.map((one) => one.name));
    return () => { ended = true; };
  }, [queue]);
  const all = (known, found) => [...new Set([...known, ...found])].filter(Boolean).sort().slice(0, OFFERED);
  return { ...names, tenants: all(names.tenants, jobs.map((one) => one.tenant)), tags: all([], jobs.flatMap((one) => one.tags)) };
}

function Form({ queue, queues, filter, jobs }) {
  const search = (event) => {
    event.preventDefault();
    const fields = new FormData(event.target), next = new URLSearchParams();
    for (const name of FILTERS) if (fields.get(name)) next.set(name, fields.get(name));
    if (next.get("since") && !ENDED.includes(next.get("state"))) next.set("state", "ended"); // only ends have a time
    const to = `#/jobs/${encodeURIComponent(fields.get("queue"))}?${next}`;
    if (location.hash === to) dispatchEvent(new Event("hashchange")); else location.hash = to;
  };
  // Not `value`: what is typed must stay when the live connection draws the page again.
  const field = (name, kind = "text", known = []) => html`<label>${t(`filter.${name}`)}<input name=${name} type=${kind} min="0" defaultValue=${filter.get(name) || ""} list=${known.length ? `known-${name}` : undefined} autocomplete="off" />
    ${known.length > 0 && html`<datalist id=${`known-${name}`}>${known.map((one) => html`<option value=${one} />`)}</datalist>`}</label>`;
  const names = useNames(queue, jobs);
  return html`<form class="card filter" onSubmit=${search} role="search" key=${queue + filter}>
    <label>${t("queue")}<select name="queue">
      <option value="" selected=${!queue}>${t("all-queues")}</option>
      ${[...new Set([...queues.map((one) => one.name), queue])].filter(Boolean).map((name) => html`<option value=${name} selected=${name === queue}>${name}</option>`)}</select></label>
    <label>${t("state")}<select name="state"><option value="">${t("any-state")}</option>
      ${SEARCHED.map((state) => html`<option value=${state} selected=${filter.get("state") === state}>${t(`status.${state}`)}</option>`)}</select></label>
    <label>${t("filter.since")}<select name="since"><option value="">${t("any-time")}</option>
      ${SPANS.map(([seconds, word]) => html`<option value=${seconds} selected=${Number(filter.get("since")) === seconds}>${t(word)}</option>`)}</select></label>
    ${field("task", "text", names.tasks)}${field("tenant", "text", names.tenants)}${field("worker", "text", names.workers)}${field("tag", "text", names.tags)}${field("text")}${field("id_prefix")}${field("older_than", "number")}
    <button class="main">${t("search")}</button></form>`;
}

/** Search, and continue where the last search ended: [found or nothing, error, search on, search again]. The first page is live. */
function useSearch(path) {
  const [state, set] = useState({}), [turn, again] = useState(0), current = useRef();
  const look = async (cursor, jobs) => {
    const mine = current.current = {};
    clearTimeout(current.timer);
    try {
      const page = await ask(`find?${path}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
      if (current.current !== mine) return;
      set({ path, found: { ...page, jobs: [...jobs, ...page.jobs] } });
      // A long search is repeated seldom. More than one page stays as it is.
      if (!jobs.length) current.timer = setTimeout(() => look("", []), (page.examined > 2000 ? 20000 : 5000) * (document.hidden ? 5 : 1));
    } catch (error) {
      if (current.current === mine) set({ path, error: error.message });
    }
  };
  useEffect(() => { look("", []); return () => { current.current = null; clearTimeout(current.timer); }; }, [path, turn]);
  const fits = state.path === path ? state : {};
  return [fits.found, fits.error, () => look(fits.found.cursor, fits.found.jobs), () => again((n) => n + 1)];
}

/** A button that counts the jobs that match, asks, and acts on those that still do. */
function Bulk({ action, queue, filter, dangerous, target, then }) {
  const dialog = useRef(), closed = useRef(true), waits = useRef();
  const [run, set] = useState(null), [to, choose] = useState("");
  const title = useRef(`bulk-${Math.random().toString(36).slice(2)}`).current;
  const order = { queue, filter: { ...filter, older_than: Number(filter.older_than || 0) } };
  const follow = async (what, more) => {
    try {
      const { run: id } = await send({ ...order, ...more, action: `${what}_matching` });
      let one;
      do {
        one = { ...(await ask(`runs/${id}`)), what };
        if (closed.current) return;
        set(one);
        await new Promise((done) => setTimeout(done, one.ended ? 0 : 300));
      } while (!one.ended);
      if (what !== "count") then();
    } catch (error) { set({ error: error.message, ended: true, what }); }
  };
  const open = () => { closed.current = false; set(null); dialog.current.showModal(); follow("count"); };
  // What is not dangerous begins after some seconds, in which it can be undone: nothing takes it back from a worker.
  const begin = (what, more) => {
    if (dangerous) { follow(what, more); return; }
    set({ what: "soon" });
    waits.current = setTimeout(() => follow(what, more), 4000);
  };
  const stop = () => { clearTimeout(waits.current); closed.current = true; };
  const name = t(`bulk.${action}`), counted = run?.what === "count" && run.ended && !run.error, acting = run && run.what !== "count" && run.what !== "soon";
  return html`<button class=${dangerous ? "danger" : ""} onClick=${open}>${name}</button>
    <dialog ref=${dialog} aria-labelledby=${title} onClose=${stop}>
      <h2 id=${title}>${name}</h2>
      <p role="status">${!run ? t("loading") : say(run.error) || t(run.what === "soon" ? "bulk.soon" : acting ? "bulk.acted" : counted ? `bulk.ask.${action}` : "bulk.counting", { done: number(run.done), found: number(run.found), examined: number(run.examined), of: number(run.of), queue, to })}</p>
      ${run?.of > 0 && !run.ended && html`<div class="bar"><i style=${{ width: `${Math.min(100, (100 * run.examined) / run.of)}%` }}></i></div>`}
      ${target && counted && html`<p><label>${t("move-to")} <input value=${to} onInput=${(event) => choose(event.target.value)} /></label></p>`}
      <div class="row"><button onClick=${() => dialog.current.close()}>${t(acting ? "close" : run?.what === "soon" ? "undo" : "keep")}</button>
        ${counted && run.found > 0 && html`<button class=${dangerous ? "danger" : "main"} disabled=${target && !to} onClick=${() => begin(action, { to, confirmed: true })}>${name}</button>`}</div>
    </dialog>`;
}

/** The states that jobs have not ended in, and the names of their counts. */
const COUNTED = [["ready", "ready"], ["running", "running"], ["delayed", "delayed"], ["sleeping", "sleeping"], ["parked", "parked"], ["waiting", "dependent"], ["dead", "dead"]];

/** How many jobs of one queue, or of all, there are in each state: one click shows them. */
function States({ queue, queues, filter, wanted }) {
  const counts = COUNTED.map(([state, name]) => [state, queues.reduce((total, one) => total + (!queue || one.name === queue ? one[name] : 0), 0)]);
  const shown = counts.filter(([state, n]) => n || state === wanted.state);
  const to = (state) => `#/jobs/${encodeURIComponent(queue)}?${new URLSearchParams(state ? { ...filter, state } : filter)}`;
  const part = (state, name, n) => html`<a href=${to(state)} aria-current=${wanted.state === state ? "true" : undefined}>${name} ${n !== undefined && html`<span class="quiet">${number(n)}</span>`}</a>`;
  return html`<nav class="states" aria-label=${t("state")}>${part(undefined, t("any-state"))}${shown.map(([state, n]) => part(state, t(`status.${state}`), n))}${part("ended", t("status.ended"))}</nav>`;
}

/** Rows that the table shows at once. */
const SHOWN = 100;

/** What is due later counts from when it was enqueued. */
const moment = (row, now) => (row.since > now ? row.enqueued : row.since);

const newest = ({ jobs, now }) => [...jobs].sort((one, other) => moment(other, now) - moment(one, now));

/** The jobs of its queue that have the same task or tenant. */
const where = (row, name) => row[name] && jobsLink(queueOf(row.id), { [name]: row[name] });

/** What workers run now, the longest first. If there is more than one page of it, the count and a link say so. */
export function RunningJobs({ worker }) {
  const wanted = worker ? { worker, state: "running" } : { state: "running" };
  const [found] = useAnswer(`find?${new URLSearchParams(wanted)}`);
  if (!found?.jobs.length) return null;
  const rows = [...found.jobs].sort((one, other) => one.since - other.since);
  return html`<div class="card"><h2>${t("running-now")} <span class="quiet">${number(rows.length)}${found.cursor ? "+" : ""}</span></h2><${Table} label=${t("running-now")} rows=${rows} columns=${[
    [t("job"), (row) => job(row.id)], [t("task"), (row) => where(row, "task")], [t("tenant"), (row) => where(row, "tenant")],
    [t("for"), (row) => html`<span title=${time(row.since)}>${age(Math.max(0, found.now - row.since))}</span>`, "n"],
    [t("attempts"), (row) => number(row.attempts), "n"], [t("worker"), (row) => workerLink(row.worker)]]} />
    ${found.cursor && html`<p>${jobsLink("", wanted, t("show-all"))}</p>`}</div>`;
}

export function Jobs({ name, live, filter, mayAct }) {
  const wanted = chosen(filter);
  const query = new URLSearchParams(name ? { queue: name, ...wanted } : wanted);
  const [found, error, more, again] = useSearch(query.toString());
  const [shown, show] = useState(SHOWN);
  const columns = [
    [t("job"), (row) => (row.id ? job(row.id) : t("purged", { n: number(row.jobs) }))], [t("state"), (row) => html`<${Tag} state=${STATES[row.status]}>${t(`status.${row.status}`)}<//>`, "tight"],
    [t("for"), (row) => (row.since > NEVER ? t("until-signal") : html`<span title=${time(row.since)}>${row.since > found.now ? t("due-in", { age: age(row.since - found.now) }) : age(found.now - row.since)}</span>`), "n"],
    [t("task"), (row) => where(row, "task")], [t("tenant"), (row) => where(row, "tenant")],
    [t("attempts"), (row) => number(row.attempts), "n"],
    [t("worker"), (row) => workerLink(row.worker)],
    ...(found?.jobs.some((row) => row.tags.length) ? [[t("job.tags"), (row) => html`${row.tags.map((tag) => html`${jobsLink(queueOf(row.id), { tag })} `)}`]] : []),
  ];
  const { state, since, ...withoutState } = wanted; // only jobs that have ended have a time
  const bulk = { queue: name, filter: wanted, then: again };
  return html`<div class="head"><h1>${t("page.find")}</h1>
      ${mayAct && name && html`<div class="rest">
        <${Bulk} action="requeue" ...${bulk} /><${Bulk} action="move" target=${true} ...${bulk} />
        <${Bulk} action="cancel" dangerous=${true} ...${bulk} /><${Bulk} action="remove" dangerous=${true} ...${bulk} /></div>`}</div>
    <${Form} queue=${name} queues=${live.queues || []} filter=${filter} jobs=${found?.jobs ?? []} />
    <${States} queue=${name} queues=${live.queues || []} filter=${withoutState} wanted=${wanted} />
    <${Problem} error=${error} /><${Loading} answer=${found} error=${error} />
    ${found && html`<div class="card"><h2>${t("jobs.found", { n: number(found.jobs.length) })} <span class="quiet">${t("searched", { examined: number(found.examined), of: number(found.of) })}</span></h2>
      <${Table} label=${t("page.find")} columns=${columns} rows=${newest(found).slice(0, shown)} none=${t(found.cursor ? "none.so-far" : "none.jobs")} />
      ${found.jobs.length > shown && html`<p><button class="link" onClick=${() => show(shown + SHOWN)}>${t("and-more", { n: number(found.jobs.length - shown) })}</button></p>`}
      ${found.more_ended && html`<p>${jobsLink(name ?? "", { ...wanted, state: "ended" }, t("more-ended"))}</p>`}
      ${found.cursor && html`<p><button onClick=${more}>${t("search-on")}</button></p>`}</div>`}`;
}

// --- schedules ---

const DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/** The number of a day of the week, which a cron line has as a number or a name; -1 for several days. */
const dayOf = (text) => (/^[0-7]$/.test(text) ? text % 7 : DAYS.indexOf(text.toLowerCase()));

/** A schedule in plain words, for the common cron lines; else the line itself. */
function inWords(row) {
  if (row.every) return t("every", { age: age(row.every) });
  const [minute, hour, day, month, weekday] = row.cron.split(" ");
  const at = /^\d+$/.test(hour) && /^\d+$/.test(minute) ? `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}` : "";
  if (row.cron === "* * * * *") return t("every-minute");
  if (/^\*\/\d+$/.test(minute) && [hour, day, month, weekday].every((one) => one === "*")) return t("every", { age: age(60 * minute.slice(2)) });
  if (hour === "*" && /^\d+$/.test(minute) && [day, month, weekday].every((one) => one === "*")) return t("hourly-at", { minute });
  if (at && [day, month, weekday].every((one) => one === "*")) return t("daily-at", { at });
  if (at && day === "*" && month === "*" && /^(mon-fri|1-5)$/i.test(weekday)) return t("workdays-at", { at });
  if (at && day === "*" && month === "*" && dayOf(weekday) >= 0) return t("weekly-at", { at, day: t(`day.${dayOf(weekday)}`) });
  if (at && /^\d+$/.test(day) && month === "*" && weekday === "*") return t("monthly-at", { at, day });
  return row.cron;
}

export function Schedules({ mayAct }) {
  const [answer, error, again] = useAnswer("schedules");
  const state = { active: "good", paused: "warn", unserved: "bad", orphaned: "bad" };
  const columns = answer && [
    [t("schedule"), (row) => html`<div class="mono">${row.id}</div><span class="quiet">${row.declared ? t("declared") : t("added")}</span>`],
    [t("when"), (row) => html`${inWords(row)}<div class="quiet mono">${row.cron} ${row.cron && row.timezone}</div>`],
    [t("state"), (row) => html`<${Tag} state=${state[row.state]}>${t(`schedule.${row.state}`)}<//>`, "tight"],
    [t("next"), (row) => (row.next ? html`<span title=${time(row.next)}>${t("due-in", { age: age(Math.max(0, row.next - answer.now)) })}</span>` : ""), "n"],
    [t("last"), (row) => (row.last ? html`<span title=${time(row.last)}>${t("seen-ago", { age: age(Math.max(0, answer.now - row.last)) })}</span>` : t("never")), "n"],
    [t("last-run"), (row) => row.runs.length > 0 && html`<details><summary><${Tag} state=${STATES[row.runs[0].outcome]}>${t(`status.${row.runs[0].outcome}`)}<//></summary>
      <ul>${row.runs.map((run) => html`<li>${link("job", run.job, t(`status.${run.outcome}`))} <span class="quiet">${run.seconds === null ? "" : `${t("took", { age: age(run.seconds) })}, `}${t("seen-ago", { age: age(Math.max(0, answer.now - run.ended)) })}</span></li>`)}</ul></details>`, "tight"],
    [t("jobs-so-far"), (row) => number(row.count), "n"],
    [t("task"), (row) => html`${jobsLink(queueOf(row.id), { task: row.task })}<details><summary>${t("arguments")}</summary><pre tabindex="0">${row.body}</pre></details>`],
  ];
  if (columns && mayAct) {
    columns.push([t("actions"), (row) => {
      const now = row.state === "paused" ? "resume" : "pause", back = now === "pause" ? "resume" : "pause";
      const order = (action) => ({ action: `${action}_schedule`, names: [row.id] });
      return html`<div class="row"><button onClick=${() => act(order(now), { undo: order(back), then: again })}>${t(now)}</button>
        <button onClick=${() => later(order("run"), t("run-now-soon", { name: row.name }), { then: again })}>${t("run-now")}</button></div>`;
    }, "n"]);
  }
  return html`<h1>${t("page.schedules")}</h1><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><${Table} label=${t("page.schedules")} columns=${columns} rows=${answer.schedules} none=${teach(t("none.schedules"), "@app.task(schedule=\"0 7 * * mon-fri\", timezone=\"Europe/Berlin\")\nasync def report() -> None: ...")} /></div>`}`;
}

// --- limits of a queue ---

/** Close a key of a rate for a while, or open it again. */
function LimitActions({ row, queue, again }) {
  const order = (action, key, more) => ({ ...more, action, queue, names: [row.limit, key], confirmed: true });
  const close = ({ key, seconds }) => order("hold_limit", key.value, { seconds: Number(seconds.value) });
  return html`<div class="row">${row.held_for > 0 && html`<button onClick=${() => act(order("open_limit", row.key), { then: again })}>${t("limit.open")}</button>`}
    <${Ask} label=${t("limit.close")} what=${t("limit.close.what", { limit: row.limit })} order=${close} then=${again}>
      <label>${t("key")}<input name="key" readonly=${row.key !== undefined} defaultValue=${row.key ?? ""} /></label>
      <label>${t("limit.seconds")}<input name="seconds" type="number" min="1" max="31622400" step="any" required defaultValue="60" /></label><//></div>`;
}

/** Of a rate, `used` has only what jobs have that did not start yet; what is not left was used. */
const usedOf = (row) => (row.used === undefined || row.held_for ? "" : number(row.per === null ? row.used : Math.max(0, row.burst - row.left)));

export function Limits({ queue, mayAct }) {
  const [answer, , again] = useAnswer(`limits/${encodeURIComponent(queue)}`);
  if (!answer?.limits.length) return null;
  const rows = answer.limits.flatMap((limit) => (limit.keys.length ? limit.keys : [{}]).map((key) => ({ ...limit, ...key, limit: limit.name })));
  return html`<div class="card"><h2>${t("limits")}</h2><${Table} label=${t("limits")} rows=${rows} by=${(row) => `${row.limit} ${row.key}`} columns=${[
    [t("limit"), (row) => html`<span class="mono">${row.limit}</span>`],
    [t("at-most"), (row) => (row.per === null ? t("at-a-time", { n: number(row.most) }) : t("per-time", { n: number(row.most), age: exactly(row.per) }))],
    [t("key"), (row) => html`<span class="mono">${row.key ?? ""}</span>${row.held_for ? ` ${t("closed-for", { age: age(row.held_for) })}` : ""}`],
    [t("used"), usedOf, "n"], [t("parked"), (row) => (row.parked === undefined ? "0" : number(row.parked)), "n"],
    ...(mayAct && rows.some((row) => row.per !== null) ? [[t("actions"), (row) => row.per !== null && html`<${LimitActions} row=${row} queue=${queue} again=${again} />`, "n"]] : [])]} /></div>`;
}
