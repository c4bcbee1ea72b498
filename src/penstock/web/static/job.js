// The page of one job: what it is, what it did so far, which jobs it waits for, and which wait for it.

import { html, useEffect } from "./ui.js";
import { NEVER, STATES } from "./jobs.js";
import { Ask, Careful, Loading, Problem, Table, Tag, act, jobsLink, later, link, queueOf, releaseLink, seen, useAnswer, workerLink } from "./components.js";
import { Flow } from "./flow.js";
import { Log, Output } from "./output.js";
import { age, duration, number, say, t, time } from "./text.js";

const WAITS = ["ready", "delayed", "sleeping", "parked", "running", "waiting", "blocked"];

const ENDED = ["completed", "cancelled", "expired", "dropped"];

const filtered = (job, name, value) => jobsLink(queueOf(job.id), { [name]: value });

function Facts({ job }) {
  const ago = (at) => at && at < NEVER && (at > job.now ? `${time(at)}, ${t("due-in", { age: age(at - job.now) })}` : t("ago", { time: time(at), age: age(job.now - at) }));
  const facts = [
    ["id", html`<code>${job.id}</code>`], ["queue", link("queue", queueOf(job.id))], ["tenant", job.tenant && filtered(job, "tenant", job.tenant)], ["task", job.task && filtered(job, "task", job.task)], ["priority", job.priority], ["tags", job.tags.length > 0 && html`<span class="row">${job.tags.map((tag) => filtered(job, "tag", tag))}</span>`],
    ["enqueued", ago(job.enqueued)], ...(job.status === "running" ? [["claimed", ago(job.claimed)]] : [[job.since > job.now ? "due" : "since", ago(job.since)]]),
    ["started", ago(job.started)], ["ended", ago(job.ended)], ["took", job.started && job.ended && duration(job.ended - job.started)],
    ["worker", workerLink(job.worker)], ["release", releaseLink(job.release)],
    ["expires", time(job.expires)], ["attempts", job.attempts], ["deliveries", job.deliveries], ["crashes", job.crashes],
  ].filter(([, value]) => value);
  return facts.length > 0 && html`<div class="card"><dl>${facts.map(([key, value]) => html`<dt>${t(`job.${key}`)}</dt><dd>${value}</dd>`)}</dl></div>`;
}

function Progress({ progress, now }) {
  const part = Math.round(100 * progress.fraction);
  return html`<div class="card"><h2>${t("progress")}</h2>
    <div class="bar" role="progressbar" aria-label=${t("progress")} aria-valuenow=${part} aria-valuemin="0" aria-valuemax="100"><i style=${{ width: `${part}%` }}></i></div>
    <p>${part} % ${progress.text} <span class="quiet">${t("seen-ago", { age: age(Math.max(0, now - progress.at)) })}</span></p></div>`;
}

/**
 * The durable steps as bars. The server notes when a step was recorded: its bar begins with the record before it, the first
 * one with the job. Of a step that waits, the bar begins with its record and ends now.
 */
function Steps({ job }) {
  const state = { done: "good", failed: "bad", waiting: "", "timed out": "warn" };
  const first = job.enqueued ?? job.steps[0].at, last = Math.max(...job.steps.map((step) => (step.state === "waiting" ? job.now : step.at)), first + 0.001);
  const part = (at) => `${(100 * Math.max(0, at - first)) / (last - first)}%`;
  let before = first;
  const rows = [...job.steps].sort((one, other) => one.at - other.at).map((step) => {
    const waits = step.state === "waiting", from = waits ? step.at : before, to = waits ? job.now : step.at;
    before = Math.max(before, step.at);
    return html`<span><span class="mono">${step.step}</span> ${step.does !== step.step && html`<span class="quiet mono">${step.does}</span>`}</span>
      <span class=${`track ${waits ? "waiting" : step.state === "done" ? "" : "failed"}`} title=${`${time(from)} – ${time(to)}`}><i style=${{ left: part(from), width: `calc(${part(to)} - ${part(from)})` }}></i></span>
      <span><${Tag} state=${state[step.state]}>${t(`step.${step.state}`)}<//> <span class="quiet">${duration(to - from)}${step.ends && step.ends > job.now ? ` · ${t("due-in", { age: age(step.ends - job.now) })}` : ""}</span></span>`;
  });
  return html`<div class="card"><h2>${t("steps")}</h2><div class="steps">${rows}</div></div>`;
}

/** What happened to the job so far, the earliest first. */
function Timeline({ job }) {
  const state = { done: "good", failed: "bad", waiting: "", "timed out": "warn" };
  const events = [
    job.enqueued && [job.enqueued, t("event.enqueued")],
    ...job.steps.map((step) => [step.at, html`<span class="mono">${step.step}</span> ${step.does !== step.step && html`<span class="quiet mono">${step.does}</span>`} ${step.job && html`<span class="mono">${link("job", step.job)}</span>`}
      ${" "}<${Tag} state=${state[step.state]}>${t(`step.${step.state}`)}<//> ${step.ends && step.ends > job.now && html`<span class="quiet">${t("due-in", { age: age(step.ends - job.now) })}</span>`}`]),
    job.claimed && [job.claimed, t("event.claimed", { worker: job.worker })],
    ...job.failures.map((one) => [one.ended, html`${t("event.attempt", { n: number(one.number), outcome: t(`outcome.${one.outcome}`) })} <span class="quiet">${one.reason.slice(0, 120)}</span>`]),
    job.started && [job.started, job.worker ? t("event.started", { worker: job.worker }) : t("job.started")],
    job.ended && [job.ended, t(`status.${job.status}`)],
    job.since && !job.ended && job.since < NEVER && job.status !== "running" && [job.since, t(`status.${job.status}`)],
  ].filter((one) => one && one[0] <= job.now + 1).sort((one, other) => one[0] - other[0]);
  return events.length > 0 && html`<div class="card"><h2>${t("timeline")}</h2><${Table} label=${t("timeline")} rows=${events} by=${(row) => events.indexOf(row)} columns=${[
    [t("time"), ([at]) => html`<span title=${t("seen-ago", { age: age(Math.max(0, job.now - at)) })}>${time(at)}</span>`, "tight"],
    [t("event"), ([, what]) => what]]} /></div>`;
}

/** The arguments of a dead letter, or of a job that has ended, to be changed before it runs again. */
function Edit({ job, again }) {
  const dead = job.status === "dead";
  return html`<${Ask} label=${t("edit-and-run")} what=${t(dead ? "edit-and-run.what" : "run-again.what")} then=${again}
    order=${({ text }) => ({ action: dead ? "edit" : "run_again", ids: [job.id], text: text.value, confirmed: true })}>
    <label>${t("arguments")}<textarea name="text" required spellcheck=${false} defaultValue=${job.body}></textarea></label><//>`;
}

function Signal({ job, again }) {
  const waits = job.steps.find((step) => step.state === "waiting" && step.does.startsWith("wait_for "));
  return html`<${Ask} label=${t("signal")} what=${t("signal.what")} kind=${waits ? "main" : ""} then=${again}
    order=${({ signal, text }) => ({ action: "signal", ids: [job.id], names: [signal.value], text: text.value })}>
    <label>${t("signal.name")}<input name="signal" required defaultValue=${waits ? waits.does.replace("wait_for ", "") : ""} /></label>
    <label>${t("signal.value")}<textarea name="text" spellcheck=${false} defaultValue="null"></textarea></label><//>`;
}

/** A text that may be long: it scrolls inside the page. */
const Long = ({ children }) => html`<div class="long" tabindex="0">${children}</div>`;

/** A sentence of the server, with a moment in the browser's own form, a capital and a full stop. `jobs`: those of its ids that are links. */
function sentence(text, until, jobs = []) {
  let rest = say(text).replace(/\d\d [A-Z][a-z]{2} \d\d:\d\d:\d\d UTC/g, (own) => (until ? time(until) : own));
  rest = rest[0].toUpperCase() + rest.slice(1) + t("full-stop");
  const pieces = [];
  for (const id of jobs) {
    const [before, ...after] = rest.split(id);
    if (!after.length) continue;
    pieces.push(before, html`<span class="mono">${link("job", id)}</span>`);
    rest = after.join(id);
  }
  return [...pieces, rest];
}

function Why({ why }) {
  if (!why || why.kind === "ended") return null;
  return html`<div class="card"><h2>${t(why.kind === "running" ? "state" : "why")}</h2><p>${sentence(why.sentence, why.until, why.waits_for)}</p>
    ${why.further.map((one) => html`<p class="quiet">${t("why.also")} ${sentence(one, null)}</p>`)}</div>`;
}

function Attempts({ job }) {
  return html`<div class="card"><h2>${t("tried")}</h2><${Table} label=${t("tried")} rows=${job.failures} columns=${[
    [t("attempt"), (one) => number(one.number), "n"],
    [t("outcome"), (one) => t(`outcome.${one.outcome}`)],
    [t("ended"), (one) => seen(job.now, one.ended), "n"],
    [t("took"), (one) => (one.duration === null ? "" : age(one.duration)), "n"],
    [t("worker"), (one) => workerLink(one.worker)], [t("release"), (one) => releaseLink(one.release)],
    [t("reason"), (one) => (one.traceback || one.arguments !== null
      ? html`<details><summary>${one.reason}</summary><pre tabindex="0">${one.traceback || one.arguments}</pre></details>` : one.reason)],
  ]} /></div>`;
}

export function Job({ name, mayAct }) {
  const [job, error, again] = useAnswer(`jobs/${encodeURIComponent(name)}`);
  const title = job && (job.task ? [job.task, job.tenant].filter(Boolean).join(" · ") : job.id);
  useEffect(() => { if (title) document.title = `${title} · Penstock`; }, [title]);
  if (!job) return html`<h1>${t("job")}</h1><${Problem} error=${error} /><${Loading} answer=${job} error=${error} />`;
  const order = (action) => ({ action, ids: [job.id] });
  return html`
    <div class="head"><h1>${title}</h1><${Tag} state=${STATES[job.status]}>${t(`status.${job.status}`)}<//>
      ${mayAct && html`<div class="rest">
        ${job.status === "dead" && html`<button class="main" onClick=${() => later(order("requeue"), t("requeue.soon", { n: 1 }), { then: again })}>${t("requeue")}</button>
          <${Careful} label=${t("remove")} question=${t("remove.job", { id: job.id })} order=${order("remove")} then=${again} />`}
        ${ENDED.includes(job.status) && job.body !== null && html`
          <${Careful} label=${t("requeue")} question=${t("run-again.job", { id: job.id })} order=${order("run_again")} then=${again} />`}
        ${(job.status === "dead" || (ENDED.includes(job.status) && job.task)) && job.may_edit && html`<${Edit} job=${job} again=${again} />`}
        ${job.steps.length > 0 && WAITS.includes(job.status) && html`<${Signal} job=${job} again=${again} />`}
        ${job.status === "delayed" && html`<button onClick=${() => act(order("promote"), { then: again })}>${t("promote")}</button>`}
        ${WAITS.includes(job.status) && html`
          <${Careful} label=${t("cancel")} question=${t("cancel.job", { id: job.id })} order=${order("cancel")} then=${again} />`}
      </div>`}</div>
    <${Problem} error=${error} />
    <${Why} why=${job.why} />
    ${job.body !== null && html`<div class="card"><h2>${t(job.task ? "arguments" : "value")}</h2><pre tabindex="0">${job.body}</pre></div>`}
    ${job.result !== null && html`<div class="card"><h2>${t("result")}</h2><pre tabindex="0">${job.result}</pre></div>`}
    ${job.reason && html`<div class="card ${job.status === "dead" ? "alarm" : ""}"><h2>${t("reason")}</h2><${Long}>${job.reason}<//>${job.traceback && html`<pre tabindex="0">${job.traceback}</pre>`}</div>`}
    ${job.progress && html`<${Progress} progress=${job.progress} now=${job.now} />`}
    ${job.steps.length > 0 && html`<${Steps} job=${job} />`}
    ${job.failures.length > 0 && html`<${Attempts} job=${job} />`}
    ${job.flow && html`<${Flow} flow=${job.flow} />`}
    <${Output} job=${job} /><${Log} job=${job} />
    <${Facts} job=${job} />
    <${Timeline} job=${job} />`;
}
