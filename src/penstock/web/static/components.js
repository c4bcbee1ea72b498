// What several pages need: asking the server, acting on it, tables, tags, charts.

import { html, useEffect, useRef, useState } from "./ui.js";
import { age, language, locale, number, say, t, time } from "./text.js";

export async function ask(path) {
  const answer = await fetch(`api/${path}`);
  const found = await answer.json().catch(() => ({ error: answer.statusText }));
  if (!answer.ok) throw Object.assign(new Error(found.error || answer.statusText), { status: answer.status });
  return found;
}

/** What `path` answers, asked again every few seconds: [answer, error, ask again now]. */
export function useAnswer(path, every = 4000) {
  const [state, set] = useState({ path: null });
  const [turn, again] = useState(0);
  useEffect(() => {
    let ended = false, timer;
    const look = async () => {
      try {
        const answer = await ask(path);
        if (!ended) set({ path, answer });
      } catch (error) {
        if (!ended) set((old) => ({ ...old, path, error: error.message }));
      }
      if (!ended && every) timer = setTimeout(look, document.hidden ? every * 5 : every);
    };
    look();
    return () => { ended = true; clearTimeout(timer); };
  }, [path, turn]);
  const fits = state.path === path;
  return [fits ? state.answer : undefined, fits ? state.error : undefined, () => again((n) => n + 1)];
}

let toast = () => {};

export function Toasts() {
  const [shown, show] = useState(null);
  useEffect(() => {
    toast = show;
    const timer = shown && setTimeout(() => show(null), shown.undo ? 10000 : 5000);
    return () => clearTimeout(timer);
  }, [shown]);
  return html`<div role="status" aria-live="polite">${shown && html`
    <div class=${`toast ${shown.bad ? "bad" : ""}`}>
      <span>${shown.text}</span>
      ${shown.undo && html`<button onClick=${() => { show(null); shown.undo(); }}>${t("undo")}</button>`}
    </div>`}</div>`;
}

/** Send an order, and return the answer. */
export async function send(order) {
  const answer = await fetch("api/act", {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(order), keepalive: true,
  });
  const text = await answer.text();
  let found;
  try { found = JSON.parse(text); } catch { found = { error: text }; }
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

let waiting = null;

/** Act after some seconds, in which it can be undone: for what nothing takes back. Leaving the page acts at once. */
export function later(order, text, { then } = {}) {
  waiting?.();
  let timer;
  const done = () => { clearTimeout(timer); removeEventListener("pagehide", go); waiting = null; };
  const go = () => { done(); act(order, { then }); };
  waiting = go;
  timer = setTimeout(go, 4000);
  addEventListener("pagehide", go);
  toast({ text, undo: done });
}

/** What an action did, in the language of the page. The server's own sentence names what was left out. */
const wordsOf = ({ done, verb, n, left }) => (language === "en" ? done : [t(`did.${verb}`, { n: number(n) }), ...(left ?? []).map(say)].join("; "));

/** Act on the server, and report how it went. `undo`: the order that takes it back. */
export async function act(order, { undo, then } = {}) {
  try {
    const found = await send(order);
    toast({ text: wordsOf(found), undo: undo && (() => act(undo, { then })) });
  } catch (error) {
    toast({ text: say(error.message), bad: true });
  }
  then?.();
}

/** A button that asks first. `question` says what will be destroyed. */
export function Careful({ question, label, order, then, disabled }) {
  const dialog = useRef();
  // A table that is asked for again may have another row here by now: the answer is about what the question was about.
  const [asked, keep] = useState({});
  const open = () => { keep({ question, order }); dialog.current.showModal(); };
  const title = useRef(`ask-${Math.random().toString(36).slice(2)}`).current;
  const go = () => { dialog.current.close(); act({ ...asked.order, confirmed: true }, { then }); };
  return html`<button class="danger" disabled=${disabled} onClick=${open}>${label}</button>
    <dialog ref=${dialog} aria-labelledby=${title}>
      <h2 id=${title}>${label}</h2><p>${asked.question}</p>
      <div class="row">
        <button autofocus onClick=${() => dialog.current.close()}>${t("keep")}</button>
        <button class="danger" onClick=${go}>${label}</button>
      </div>
    </dialog>`;
}

/** A button that opens a form. `order(elements)`: the action of what was typed. An error stays beside what was typed. */
export function Ask({ label, what, kind, children, order, then }) {
  const dialog = useRef(), title = useRef(`form-${Math.random().toString(36).slice(2)}`).current;
  const [error, fail] = useState("");
  const open = () => { fail(""); dialog.current.showModal(); };
  const go = async (event) => {
    event.preventDefault();
    try {
      const found = await send(order(event.target.elements));
      dialog.current.close();
      toast({ text: wordsOf(found) });
      then?.();
    } catch (problem) { fail(problem.message); }
  };
  return html`<button class=${kind} onClick=${open}>${label}</button>
    <dialog ref=${dialog} class="form" aria-labelledby=${title}><h2 id=${title}>${label}</h2>${what && html`<p>${what}</p>`}
      <form onSubmit=${go}>${children}<${Problem} error=${error} />
        <div class="row"><button type="button" onClick=${() => dialog.current.close()}>${t("keep")}</button><button class="main">${label}</button></div></form></dialog>`;
}

/** The actions on one row, behind a button: they are named, and not beside a number that somebody wants to click. */
export function Menu({ name, children }) {
  const dialog = useRef(), title = useRef(`menu-${Math.random().toString(36).slice(2)}`).current;
  const close = () => dialog.current.close();
  return html`<button class="more" aria-haspopup="dialog" aria-label=${t("actions-on", { name })} title=${t("actions")} onClick=${() => dialog.current.showModal()}>⋯</button>
    <dialog ref=${dialog} class="menu" aria-labelledby=${title} onClick=${(event) => event.target === dialog.current && close()}>
      <h2 id=${title}>${name}</h2>${children}
      <div class="row"><button onClick=${close}>${t("close")}</button></div></dialog>`;
}

/** One action of a menu: what it does, beside its button. */
export const Choice = ({ what, children }) => html`<div class="choice"><span>${what}</span>${children}</div>`;

export function Tag({ state, children }) {
  return html`<span class=${`tag ${state || ""}`}>${children}</span>`;
}

export function Fact({ name, value, more, state }) {
  return html`<div class=${`fact ${state || ""}`}>
    <div class="name">${name}</div><div class="value">${value}</div><div class="more">${more}</div></div>`;
}

/**
 * A table. `columns`: [heading, cell(row), class, the heading in words if it is no text]. `by`: what tells a row from others, so that an opened part of a row
 * stays with it when rows come and go. On a phone each row is a card, whose cells have their headings beside them: what is in a
 * cell stays together there.
 */
export function Table({ columns, rows, none, label, by = (row) => row.id ?? row.name }) {
  if (!rows?.length) return html`<div class="none">${none}</div>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${columns.map(([heading, , kind]) => html`<th scope="col" class=${kind}>${heading}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${by(row)}>${columns.map(([heading, cell, kind, words]) => html`
      <td class=${kind} data-heading=${words ?? (typeof heading === "string" ? heading : undefined)}><div class="cell">${cell(row)}</div></td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** What would be here, and the line of code that puts it there. */
export const teach = (what, code) => html`${what}${code && html`<pre class="teach">${code}</pre>`}`;

/** A link to another page about something. */
export const link = (page, name, text) => html`<a href=${`#/${page}/${encodeURIComponent(name)}`}>${text ?? name}</a>`;

/** The queue in an id; of a shard such as mail~1, the whole queue. */
export const queueOf = (id) => id.split(":")[0].split("~")[0];

const named = (page, name, text) => (name ? html`<a class="mono" href=${`#/${page}`}>${text ?? name}</a>` : "");

/** The jobs of a queue that match, such as those with a tag; without a queue, those of all. */
export const jobsLink = (queue, filter, text) => named(`jobs/${encodeURIComponent(queue)}?${new URLSearchParams(filter)}`, Object.values(filter).at(-1), text);

/** The row of a worker, which is host:pid as for the owner of a lock; and the workers with a release. */
export const workerLink = (worker) => named(`workers/${encodeURIComponent(worker)}`, worker);
export const releaseLink = (release) => named(`workers?${new URLSearchParams({ release })}`, release);

/** The page with only the row of this name. */
export const alone = (page, name) => named(`${page}/${encodeURIComponent(name)}`, name);

/** Rows of one name, and a way back to all. */
export const onlyNamed = (rows, name) => (name ? rows.filter((row) => row.name === name) : rows);
export const ShowAll = ({ page, name }) => (name ? html`<div class="head"><span class="quiet">${t("only", { name })}</span> <a href=${`#/${page}`}>${t("show-all")}</a></div>` : null);

/** An id without the middle of its long key. Who copies it copies all of it. */
export function shortId(id) {
  const parts = /^(.*:)([0-9A-Z]{18})([0-9A-Z]{8})$/.exec(id);
  return parts ? html`${parts[1]}<span class="cut">${parts[2]}</span>${parts[3]}` : id;
}

export const mono = (text) => html`<span class="mono">${text}</span>`;

/** How long before `now` something happened. */
export const seen = (now, at) => (at ? html`<span title=${time(at)}>${t("seen-ago", { age: age(Math.max(0, now - at)) })}</span>` : html`<span class="quiet">${t("never")}</span>`);

export function Problem({ error }) {
  return error ? html`<div class="card alarm" role="alert"><h2>${t("problem")}</h2>${say(error)}</div>` : null;
}

export function Loading({ answer, error }) {
  return answer || error ? null : html`<div class="none" aria-busy="true">${t("loading")}</div>`;
}

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The time below a chart: seconds only where the chart is shorter than ten minutes. */
function clockTimes(plot, moments) {
  const second = plot.scales.x.max - plot.scales.x.min < 600 ? "2-digit" : undefined;
  return moments.map((at) => new Date(at * 1000).toLocaleTimeString(locale, { hour: "2-digit", minute: "2-digit", second }));
}

/** At least a minute of time: a single moment has no span of its own, and uPlot would show years around it. */
export function timeRange(plot, low, high) {
  const times = plot.data?.[0] ?? [], newest = times.at(-1) ?? Date.now() / 1000;
  return newest - (times[0] ?? newest) < 60 ? [newest - 60, newest] : [low, high];
}

const fromZero = (_, low, high) => [0, Math.max(1, high * 1.1)];

/** The steps of an axis that counts things, of which there are no fractions. */
export const WHOLE_STEPS = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power));

/** Lines over time. `series`: [label, class, index in a row, whether it has a scale of its own, on the right]. `whole`: they count. */
export function Chart({ rows, series, label, whole }) {
  const place = useRef(), plot = useRef();
  const data = () => [rows.map((row) => row[0]), ...series.map(([, , index]) => rows.map((row) => row[index]))];
  useEffect(() => {
    const frame = place.current;
    const draw = () => {
      plot.current?.destroy();
      const axis = { stroke: ink("--quiet"), grid: { stroke: ink("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      const steps = whole ? { incrs: WHOLE_STEPS } : {};
      plot.current = new uPlot({
        width: frame.clientWidth, height: 180, cursor: { y: false }, legend: { show: false },
        scales: { x: { range: timeRange }, y: { range: fromZero }, own: { range: fromZero } },
        axes: [{ ...axis, size: 28, space: 80, values: clockTimes }, { ...axis, ...steps, size: 56 },
          ...series.filter(([, , , own]) => own).map(([, color]) => ({ ...axis, ...steps, scale: "own", side: 1, size: 48, grid: { show: false }, stroke: ink(`--chart-${color}`) }))],
        series: [{}, ...series.map(([name, color, , own]) => ({ label: name, scale: own ? "own" : "y", stroke: ink(`--chart-${color}`), width: 2, points: { show: false } }))],
      }, data(), frame);
    };
    draw();
    addEventListener("theme", draw);
    const watcher = new ResizeObserver(() => plot.current?.setSize({ width: frame.clientWidth, height: 180 }));
    watcher.observe(frame);
    return () => { watcher.disconnect(); removeEventListener("theme", draw); plot.current?.destroy(); plot.current = null; };
  }, []);
  useEffect(() => { plot.current?.setData(data()); }, [rows]);
  return html`<div class="legend">${series.map(([name, color]) => html`<span class=${`of-${color}`}>${name}</span>`)}</div>
    <div class="chart" ref=${place} role="img" aria-label=${label}></div>`;
}

/** A small line of one number over time, without axes. */
export function Spark({ values, color, label }) {
  if (!values?.length) return null;
  const most = Math.max(...values, 1e-9), step = 96 / Math.max(1, values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(22 - (20 * value) / most).toFixed(1)}`).join(" ");
  return html`<svg class=${`spark of-${color}`} viewBox="0 0 96 24" role="img" aria-label=${label} preserveAspectRatio="none"><polyline points=${points} /></svg>`;
}
