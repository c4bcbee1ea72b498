// The pages. Each shows what one or two questions to the server answer.

import { html, useEffect, useState } from "./ui.js";
import { Jobs, Limits, STATES, Schedules } from "./jobs.js";
import { Job } from "./job.js";
import { Careful, Chart, Fact, Loading, Problem, Spark, Table, Tag, act, ask, later, link, teach, useAnswer } from "./components.js";
import { age, number, rate, size, t, time } from "./text.js";

/** States that a queue without limits, pauses, flows and durable jobs does not know: shown where there are jobs in them. */
const SELDOM = [["sleeping", "status.sleeping"], ["parked", "parked"], ["dependent", "for-others"]];

const waits = ({ counts }) => counts.ready + counts.delayed + counts.sleeping + counts.parked;

const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);

// --- overview ---

/** The page that says more about a finding. */
const PLACES = { no_worker: "workers", lost: "workers", dead: "dead" };
const SHOWN = 8;

/** What the doctor and /healthz find as well, as sentences with links. */
function Findings({ findings }) {
  const [all, show] = useState(false);
  if (!findings.length) return null;
  const shown = all ? findings : findings.slice(0, SHOWN), more = findings.length - shown.length;
  return html`<div class="card"><ul class="findings">${shown.map((one) => {
    const page = PLACES[one.kind] ?? "queue", place = page === "workers" ? "#/workers" : `#/${page}/${encodeURIComponent(one.queue)}`;
    const words = t(`finding.${one.kind}`, { jobs: number(one.jobs), age: age(one.seconds) });
    return html`<li key=${one.kind + one.queue}><${Tag} state=${KINDS[one.kind]}>${t(`kind.${one.kind}`)}<//>
      <span>${link("queue", one.queue)}: <a href=${place}>${words}</a></span></li>`;
  })}</ul>${more > 0 && html`<p><button class="link" onClick=${() => show(true)}>${t("and-more", { n: number(more) })}</button></p>`}</div>`;
}

function Charts({ rows }) {
  return html`<div class="two">
    <div class="card"><h2>${t("throughput")}</h2>
      <${Chart} rows=${rows} label=${t("throughput")} series=${[[t("in"), "in", 3], [t("out"), "out", 4], [t("failing"), "failing", 5]]} /></div>
    <div class="card"><h2>${t("backlog")}</h2>
      <${Chart} rows=${rows} label=${t("backlog")} series=${[[t("ready"), "ready", 1], [t("running-right"), "running", 2, true]]} /></div>
  </div>`;
}

/** The charts of one queue: the last hour or the last day, and what the live connection says now. */
function Past({ name, flow, at }) {
  const [interval, choose] = useState(10);
  const [answer] = useAnswer(`history/${encodeURIComponent(name)}?interval=${interval}`, 10000);
  const now = flow.name ? [[at, flow.ready, flow.running, flow.in, flow.out, flow.failing]] : [];
  const spans = [[10, "last-hour"], [60, "last-day"]];
  return html`<div class="head"><div class="rest" role="group" aria-label=${t("span")}>
      ${spans.map(([one, word]) => html`<button aria-pressed=${one === interval} onClick=${() => choose(one)}>${t(word)}</button>`)}</div></div>
    <${Charts} key=${interval} rows=${[...(answer?.points || []), ...now]} />`;
}

function FindJob() {
  const find = (event) => {
    event.preventDefault();
    const id = event.target.elements.id.value.trim();
    if (id) location.hash = `#/job/${encodeURIComponent(id)}`;
  };
  return html`<form onSubmit=${find} role="search">
    <input id="find" name="id" type="search" placeholder=${t("find")} aria-label=${t("find")} /></form>`;
}

const KINDS = { no_worker: "bad", lost: "bad", late: "warn", paused: "warn", unknown_task: "warn", failing: "warn", parked: "warn", dead: "bad" };

/** The most urgent finding about a queue; without one, whether something happens in it. */
function State({ queue }) {
  if (queue.worst) return html`<${Tag} state=${KINDS[queue.worst]}>${t(`kind.${queue.worst}`)}<//>`;
  return queue.running || queue.ready ? html`<${Tag} state="good">${t("at-work")}<//>` : html`<${Tag}>${t("idle")}<//>`;
}

function Overview({ live }) {
  const [sparks] = useAnswer("sparks", 10000);
  if (!live.queues) return html`<${Loading} error=${live.lost} />`;
  const { queues, findings } = live;
  const worst = findings.some((one) => KINDS[one.kind] === "bad") ? "bad" : findings.length ? "warn" : "good";
  const word = findings.length ? t("findings.n", { n: number(findings.length) }) : queues.length ? t("health.good") : t("nothing-yet");
  const oldest = Math.max(0, ...queues.map((queue) => (queue.ready ? queue.oldest : 0)));
  const columns = [
    [t("queue"), (queue) => link("queue", queue.name)],
    [t("state"), (queue) => html`<${State} queue=${queue} />`, "tight"],
    [t("ready"), (queue) => number(queue.ready), "n"],
    [t("oldest"), (queue) => (queue.ready ? age(queue.oldest) : ""), "n"],
    [t("delayed"), (queue) => number(queue.delayed), "n"],
    ...SELDOM.filter(([name]) => sum(queues, name)).map(([name, word]) => [t(word), (queue) => number(queue[name]), "n"]),
    [t("running"), (queue) => number(queue.running), "n"],
    [t("in-per-second"), (queue) => rate(queue.in), "n"],
    [t("out-per-second"), (queue) => rate(queue.out), "n"],
    [t("last-minutes"), (queue) => html`<${Spark} values=${sparks?.[queue.name]} color="out" label=${t("last-minutes")} />`, "tight"],
    [t("dead"), (queue) => (queue.dead ? html`<a href=${`#/dead/${encodeURIComponent(queue.name)}`}>${number(queue.dead)}</a>` : "0"), "n"],
    [t("workers"), (queue) => number(queue.workers), "n"],
  ];
  const none = teach(t("none.queues"), "@app.task(queue=\"mail\")\nasync def send(to: str) -> None: ...\n\nsend.enqueue(\"ada@example.com\")");
  return html`
    <div class="head"><h1>${t("page.overview")}</h1><${Tag} state=${queues.length ? worst : ""}>${word}<//>
      <div class="rest"><${FindJob} /></div></div>
    <${Findings} findings=${findings} />
    <div class="facts">
      <${Fact} name=${t("ready")} value=${number(sum(queues, "ready"))} more=${oldest ? t("oldest-for", { age: age(oldest) }) : ""} state=${findings.some((one) => one.kind === "late" || one.kind === "no_worker") ? "warn" : ""} />
      <${Fact} name=${t("running")} value=${number(sum(queues, "running"))} more=${t("delayed-too", { n: number(sum(queues, "delayed")) })} />
      <${Fact} name=${t("in-per-second")} value=${rate(sum(queues, "in"))} />
      <${Fact} name=${t("out-per-second")} value=${rate(sum(queues, "out"))} more=${t("failing-too", { n: rate(sum(queues, "failing")) })} />
      <${Fact} name=${t("dead")} value=${html`<a href="#/dead">${number(sum(queues, "dead"))}</a>`} state=${sum(queues, "dead") ? "bad" : ""} />
      <${Fact} name=${t("workers")} value=${html`<a href="#/workers">${number(live.workers)}</a>`} state=${live.workers || !sum(queues, "ready") ? "" : "warn"} />
    </div>
    <${Charts} rows=${live.history} />
    <div class="card"><h2>${t("queues")}</h2><${Table} label=${t("queues")} columns=${columns} rows=${queues} none=${none} /></div>`;
}

// --- a queue ---

function Tenants({ queue, mayAct, again }) {
  const most = Math.max(1, ...queue.largest.map(waits));
  const columns = [
    [t("tenant"), (tenant) => html`<span class="mono">${tenant.name || t("no-tenant")}</span>`],
    [t("waits"), (tenant) => html`<div class="bar" aria-hidden="true"><i style=${{ width: `${(100 * waits(tenant)) / most}%` }}></i></div>`],
    [t("ready"), (tenant) => number(tenant.counts.ready), "n"],
    [t("delayed"), (tenant) => number(tenant.counts.delayed), "n"],
    ...SELDOM.filter(([name]) => queue.largest.some((tenant) => tenant.counts[name])).map(([name, word]) => [t(word), (tenant) => number(tenant.counts[name]), "n"]),
    [t("served"), (tenant) => number(tenant.counts.running), "n"],
    [t("dead"), (tenant) => number(tenant.counts.dead), "n"],
  ];
  if (mayAct) {
    columns.push([t("actions"), (tenant) => html`<${Careful} label=${t("purge")} then=${again} disabled=${!waits(tenant)}
      question=${t("purge.tenant", { tenant: tenant.name, queue: queue.name, n: number(waits(tenant)) })}
      order=${{ action: "purge", queue: queue.name, tenant: tenant.name, most: waits(tenant) }} />`, "n"]);
  }
  const shown = t("tenants.shown", { shown: number(queue.largest.length), all: number(queue.tenants) });
  return html`<div class="card"><h2>${t("tenants")} <span class="quiet">${shown}</span></h2>
    <${Table} label=${t("tenants")} columns=${columns} rows=${queue.largest} none=${t("none.tenants")} /></div>`;
}

function Queue({ name, live, mayAct }) {
  const [queue, error, again] = useAnswer(`queues/${encodeURIComponent(name)}`);
  if (!queue) return html`<h1>${name}</h1><${Problem} error=${error} /><${Loading} answer=${queue} error=${error} />`;
  const { counts } = queue, flow = (live.queues || []).find((one) => one.name === name) || {};
  const waiting = waits(queue);
  const pause = counts.paused ? ["resume", "pause"] : ["pause", "resume"];
  return html`
    <div class="head"><h1>${name}</h1><${State} queue=${flow.name ? flow : counts} />${link("jobs", name, t("page.find"))}
      ${mayAct && html`<div class="rest">
        <button onClick=${() => act({ action: pause[0], queue: name }, { undo: { action: pause[1], queue: name }, then: again })}>${t(pause[0])}</button>
        <${Careful} label=${t("purge")} disabled=${!waiting} then=${again} question=${t("purge.queue", { queue: name, n: number(waiting) })}
          order=${{ action: "purge", queue: name, most: waiting }} /></div>`}
    </div>
    <${Problem} error=${error} />
    <${Findings} findings=${(live.findings || []).filter((one) => one.queue === name)} />
    <div class="facts">
      <${Fact} name=${t("ready")} value=${number(counts.ready)} more=${counts.ready ? t("oldest-for", { age: age(counts.oldest) }) : ""} />
      <${Fact} name=${t("delayed")} value=${number(counts.delayed)} more=${!counts.delayed || queue.due_in === null ? "" : t("next-in", { age: age(Math.max(0, queue.due_in)) })} />
      ${SELDOM.filter(([name]) => counts[name]).map(([name, word]) => html`<${Fact} name=${t(word)} value=${number(counts[name])} />`)}
      <${Fact} name=${t("running")} value=${number(counts.running)} />
      <${Fact} name=${t("in-per-second")} value=${rate(flow.in)} />
      <${Fact} name=${t("out-per-second")} value=${rate(flow.out)} />
      <${Fact} name=${t("dead")} state=${counts.dead ? "bad" : ""} value=${link("dead", name, number(counts.dead))} />
    </div>
    <${Past} name=${name} flow=${flow} at=${live.at} />
    <${Tenants} queue=${queue} mayAct=${mayAct} again=${again} />
    <${Limits} queue=${name} />
    <div class="two">
      <div class="card"><h2>${t("workers")}</h2><${WorkerTable} workers=${queue.workers} now=${live.at} /></div>
      <div class="card"><h2>${t("totals")}</h2><dl>
        ${["completed", "retried", "failed", "dropped", "cancelled", "expired", "lost"].map((one) => html`<dt>${t(`total.${one}`)}</dt><dd>${number(counts[one])}</dd>`)}
      </dl></div>
    </div>
    ${queue.outbox.length > 0 && html`<div class="card"><h2>${t("outbox")}</h2>
      <${Table} columns=${[[t("queue"), (one) => link("queue", one.queue)], [t("waits"), (one) => number(one.entries), "n"],
        [t("oldest"), (one) => age(one.oldest), "n"]]} rows=${queue.outbox} by=${(one) => one.queue} /></div>`}
    ${queue.unknown_task_jobs.length > 0 && html`<div class="card alarm"><h2>${t("unknown-tasks")}</h2>
      <${Table} columns=${[[t("job"), (job) => link("job", job.id)], [t("reason"), (job) => job.reason]]} rows=${queue.unknown_task_jobs} /></div>`}`;
}

// --- dead letters ---

function Dead({ name, live, filter, mayAct }) {
  const queues = (live.queues || []).filter((queue) => queue.dead > 0);
  if (!name) {
    return html`<h1>${t("page.dead")}</h1><div class="card">
      <${Table} label=${t("queues")} rows=${queues} none=${t("none.dead")} columns=${[[t("queue"), (queue) => link("dead", queue.name)], [t("dead"), (queue) => number(queue.dead), "n"]]} /></div>`;
  }
  return html`<${DeadOf} key=${name + filter} name=${name} offset=${Number(filter.get("offset") || 0)} mayAct=${mayAct} />`;
}

/** The dead letters of a queue by task and error. One group alone says no more than the list. */
function DeadGroups({ name, mayAct, then }) {
  const [found] = useAnswer(`dead-groups/${encodeURIComponent(name)}`);
  if (!found || found.groups.length < 2) return null;
  const columns = [
    [t("task"), (group) => html`<span class="mono">${group.task}</span>`],
    [t("error"), (group) => html`<div>${group.error || "?"}</div>${link("job", group.example, t("example"))}`],
    [t("jobs-so-far"), (group) => number(group.count), "n"],
    [t("died"), (group) => html`<span title=${time(group.last)}>${age(Math.max(0, found.now - group.last))}</span>`, "n"],
  ];
  if (mayAct) {
    columns.push([t("actions"), ({ key, count }) => html`<div class="row">
      <button onClick=${() => later({ action: "requeue_group", queue: name, names: [key] }, t("requeue.soon", { n: number(count) }), { then })}>${t("requeue")}</button>
      <${Careful} label=${t("remove")} question=${t("remove.all", { n: number(count), queue: name })} order=${{ action: "remove_group", queue: name, names: [key] }} then=${then} /></div>`, "n"]);
  }
  return html`<div class="card"><h2>${t("dead-groups")}</h2><${Table} label=${t("dead-groups")} columns=${columns} rows=${found.groups} />
    ${found.examined < found.of && html`<p class="quiet">${t("examined", { n: number(found.examined), of: number(found.of) })}</p>`}</div>`;
}

function DeadOf({ name, offset, mayAct }) {
  const [page, error, again] = useAnswer(`dead/${encodeURIComponent(name)}?offset=${offset}`);
  const [chosen, choose] = useState(new Set());
  if (!page) return html`<h1>${name}</h1><${Problem} error=${error} /><${Loading} answer=${page} error=${error} />`;
  const then = () => { choose(new Set()); again(); };
  const toggle = (id) => choose((old) => { const next = new Set(old); if (!next.delete(id)) next.add(id); return next; });
  const all = page.letters.every((letter) => chosen.has(letter.id)) && page.letters.length > 0;
  const box = html`<input type="checkbox" aria-label=${t("choose-all")} checked=${all} onChange=${() => choose(all ? new Set() : new Set(page.letters.map((letter) => letter.id)))} />`;
  const columns = [
    [t("job"), (letter) => html`<div class="mono">${link("job", letter.id)}</div><span class="quiet">${letter.tenant}</span>`],
    [t("reason"), (letter) => html`<details><summary>${letter.reason || "?"}</summary><pre tabindex="0">${letter.traceback || letter.body}</pre></details>`],
    [t("died"), (letter) => html`<span title=${time(letter.died)}>${age(Math.max(0, page.now - letter.died))}</span>`, "n"],
    [t("attempts"), (letter) => number(letter.attempts), "n"],
    [t("worker"), (letter) => html`<span class="mono">${letter.worker}</span>`],
  ];
  if (mayAct) columns.unshift([box, (letter) => html`<input type="checkbox" aria-label=${t("choose", { id: letter.id })} checked=${chosen.has(letter.id)} onChange=${() => toggle(letter.id)} />`, "tight"]);
  const ids = [...chosen], until = Math.floor(page.now * 1000);
  return html`
    <div class="head"><h1>${t("dead-of", { queue: name })}</h1><span class="quiet">${number(page.total)}</span>
      ${mayAct && html`<div class="rest">
        ${ids.length > 0 ? html`
          <button class="main" onClick=${() => later({ action: "requeue", ids }, t("requeue.soon", { n: ids.length }), { then })}>${t("requeue.n", { n: ids.length })}</button>
          <${Careful} label=${t("remove.n", { n: ids.length })} question=${t("remove.chosen", { n: ids.length })} order=${{ action: "remove", ids }} then=${then} />` : html`
          <button disabled=${!page.total} onClick=${() => later({ action: "requeue_all", queue: name, until }, t("requeue.soon", { n: number(page.total) }), { then })}>${t("requeue-all")}</button>
          <${Careful} label=${t("remove-all")} disabled=${!page.total} question=${t("remove.all", { n: number(page.total), queue: name })} order=${{ action: "remove_all", queue: name, until }} then=${then} />`}
      </div>`}</div>
    <${Problem} error=${error} />
    ${offset === 0 && html`<${DeadGroups} key=${page.total} name=${name} mayAct=${mayAct} then=${then} />`}
    <div class="card"><${Table} label=${t("page.dead")} columns=${columns} rows=${page.letters} none=${t("none.dead")} /></div>
    <div class="head">
      ${offset > 0 && html`<a href=${`#/dead/${encodeURIComponent(name)}?offset=${Math.max(0, offset - page.page)}`}>${t("newer")}</a>`}
      ${offset + page.page < page.total && html`<a href=${`#/dead/${encodeURIComponent(name)}?offset=${offset + page.page}`}>${t("older")}</a>`}
    </div>`;
}

// --- workers ---

const lease = (worker) => (worker.lease > 0 ? age(worker.lease) : html`<${Tag} state="bad">${t("lease-over")}<//>`);
const running = (worker) => html`${number(worker.held)}${worker.concurrency ? ` / ${number(worker.concurrency)}` : ""}
  ${worker.concurrency > 0 && html`<div class="bar" aria-hidden="true"><i style=${{ width: `${Math.min(100, (100 * worker.held) / worker.concurrency)}%` }}></i></div>`}`;
const jobsOf = (worker, queue) => html`<a href=${`#/jobs/${encodeURIComponent(queue)}?state=running&worker=${encodeURIComponent(worker)}`}>${queue}</a>`;

/** The workers of one queue. */
function WorkerTable({ workers, now }) {
  return html`<${Table} label=${t("workers")} none=${t("none.workers")} rows=${workers} by=${(worker) => worker.name + worker.since} columns=${[
    [t("worker"), (worker) => html`<span class="mono">${worker.name || t("program")}</span>`],
    [t("runs"), running],
    [t("release"), (worker) => html`<span class="mono">${worker.release}</span>`],
    [t("up"), (worker) => (worker.since ? age(Math.max(0, (now || Date.now() / 1000) - worker.since)) : ""), "n"],
    [t("lease"), lease, "n"],
  ]} />`;
}

/** One row for each process, whichever queues it serves. */
function byProcess(workers) {
  const found = new Map();
  for (const one of workers) {
    const key = one.name || `(${one.queue})`, old = found.get(key);
    found.set(key, old ? { ...old, held: old.held + one.held, lease: Math.max(old.lease, one.lease), since: Math.min(old.since ?? one.since, one.since ?? old.since), queues: [...old.queues, one.queue] }
      : { ...one, key, queues: [one.queue] });
  }
  return [...found.values()].sort((one, other) => other.held - one.held || one.key.localeCompare(other.key));
}

function Workers() {
  const [answer, error] = useAnswer("workers");
  const rows = answer && byProcess(answer.workers), hosts = rows && new Set(rows.filter((one) => one.name).map((one) => one.name.replace(/:\d+$/, "")));
  const none = teach(t("none.workers"), "penstock worker shop:app --processes 2");
  return html`<div class="head"><h1>${t("page.workers")}</h1>${rows?.length > 0 && html`<span class="quiet">${t("processes.n", { n: number(rows.length), hosts: number(hosts.size) })}</span>`}</div>
    <${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><${Table} label=${t("workers")} none=${none} rows=${rows} by=${(one) => one.key} columns=${[
      [t("worker"), (one) => html`<span class="mono">${one.name || t("program")}</span>`],
      [t("runs"), running],
      [t("queues"), (one) => html`${one.queues.map((queue, at) => html`${at > 0 && ", "}${jobsOf(one.name, queue)}`)}`],
      [t("release"), (one) => html`<span class="mono">${one.release}</span>`],
      [t("up"), (one) => (one.since ? html`<span title=${time(one.since)}>${age(Math.max(0, answer.now - one.since))}</span>` : ""), "n"],
      [t("lease"), lease, "n"],
    ]} /></div>`}`;
}

// --- locks ---

const owner = (one) => (one ? html`<span class="mono">${one.host ? `${one.host}:${one.pid}` : t("another-library")}</span>${one.age !== null && one.age !== undefined ? html` <span class="quiet">${age(one.age)}</span>` : ""}` : html`<span class="quiet">${t("nobody")}</span>`);
const owners = (some) => html`${some.slice(0, 5).map((one) => html`<div>${owner(one)}${one.permits > 1 ? ` × ${one.permits}` : ""}</div>`)}${some.length > 5 ? html`<span class="quiet">${t("and-more", { n: some.length - 5 })}</span>` : ""}`;
const waiters = (row) => (row.waiting ? html`<details><summary>${number(row.waiting)}</summary>${owners(row.waiters || row.candidates || [])}</details>` : "0");
const mono = (text) => html`<span class="mono">${text}</span>`;

function Locks({ mayAct }) {
  const [answer, error, again] = useAnswer("locks");
  const named = [t("name"), (row) => mono(row.name)];
  const waiting = [t("waiting"), waiters, "n"];
  const lockColumns = [named, [t("owner"), (row) => owner(row.holder)], [t("lease"), (row) => (row.holder?.left ? age(row.holder.left) : ""), "n"], [t("fence"), (row) => mono(row.fence ?? ""), "n"], waiting];
  if (mayAct) {
    lockColumns.push([t("actions"), (row) => html`<${Careful} label=${t("break")} disabled=${!row.holder} then=${again} order=${{ action: "break", names: [row.name] }}
      question=${t("break.lock", { name: row.name, owner: row.holder ? `${row.holder.host}:${row.holder.pid}` : "" })} />`, "n"]);
  }
  const parts = answer && [
    ["locks", lockColumns],
    ["semaphores", [named, [t("held"), (row) => html`${number(row.held)}${row.limit ? ` / ${row.limit}` : ""}`, "n"], [t("holders"), (row) => owners(row.holders)], waiting]],
    ["rwlocks", [named, [t("writer"), (row) => owner(row.writer)], [t("readers"), (row) => html`${number(row.reading)} ${owners(row.readers)}`], waiting]],
    ["elections", [named, [t("leader"), (row) => owner(row.leader)], [t("announced"), (row) => mono(row.leader?.value ?? "")], [t("term"), (row) => mono(row.term ?? ""), "n"], waiting]],
    ["latches", [named, [t("left"), (row) => `${number(row.left)} / ${number(row.count)}`, "n"], [t("waiting"), (row) => number(row.waiting), "n"]]],
    ["barriers", [named, [t("arrived"), (row) => `${number(row.waiting)} / ${number(row.parties)}`, "n"], [t("generation"), (row) => number(row.generation), "n"]]],
  ];
  return html`<h1>${t("page.locks")}</h1><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${parts && parts.filter(([kind]) => answer[kind].length || kind === "locks").map(([kind, columns]) => html`
      <div class="card"><h2>${t(kind)}</h2><${Table} label=${t(kind)} columns=${columns} rows=${answer[kind]} none=${teach(t("none.locks"), "with app.lock(\"invoice:7\") as held: ...")} /></div>`)}`;
}

// --- messages, files, directories ---

const seen = (now, at) => (at ? html`<span title=${time(at)}>${t("seen-ago", { age: age(Math.max(0, now - at)) })}</span>` : html`<span class="quiet">${t("never")}</span>`);

function Messages() {
  const [answer, error] = useAnswer("messages");
  return html`<h1>${t("page.messages")}</h1><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><h2>${t("mailboxes")}</h2><${Table} label=${t("mailboxes")} none=${teach(t("none.mailboxes"), 'app.mailbox("user:17").post({"text": "hi"})')} rows=${answer.mailboxes} columns=${[
      [t("name"), (row) => mono(row.name)], [t("unread"), (row) => number(row.unread), "n"], [t("claimed"), (row) => number(row.claimed), "n"],
      [t("dead"), (row) => (row.dead ? html`<${Tag} state="bad">${number(row.dead)}<//>` : "0"), "n"], [t("last-number"), (row) => number(row.last), "n"],
      [t("kept"), (row) => size(row.bytes), "n"], [t("pulled"), (row) => seen(answer.now, row.pulled)]]} /></div>
    <div class="card"><h2>${t("chats")}</h2><${Table} label=${t("chats")} none=${teach(t("none.chats"), 'app.chats.create(["ada", "bo"], id="ops")')} rows=${answer.chats} by=${(row) => row.chat.id} columns=${[
      [t("name"), (row) => mono(row.chat.id)], [t("members"), (row) => number(row.chat.readers), "n"],
      [t("kept-messages"), (row) => number(row.chat.last - row.chat.first + 1), "n"], [t("kept"), (row) => size(row.chat.bytes), "n"],
      [t("furthest-behind"), (row) => (row.last_reader?.unread ? html`${mono(row.last_reader.name)} <span class="quiet">${t("unread-n", { n: number(row.last_reader.unread) })}</span>` : t("nobody"))],
      [t("pulled"), (row) => (row.last_reader?.unread ? seen(answer.now, row.last_reader.seen) : "")]]} /></div>`}`;
}

function Receivers({ channel, now }) {
  return html`<${Table} label=${t("receivers")} rows=${channel.receivers} none=${t("none.receivers")} columns=${[
    [t("receiver"), (row) => mono(row.name)], [t("state"), (row) => t(`receiver.${row.state}`)],
    [t("behind"), (row) => t("records", { n: number(row.behind) }), "n"],
    [t("dead-files"), (row) => (row.dead_files ? html`<a href=${`#/deadfiles/${encodeURIComponent(channel.name)}?receiver=${encodeURIComponent(row.name)}`}>${number(row.dead_files)}</a>` : "0"), "n"], [t("process"), (row) => mono(row.holder)], [t("heard-of"), (row) => seen(now, row.seen)]]} />`;
}

function Files() {
  const [answer, error] = useAnswer("files", 2000);
  const [before, keep] = useState({});
  useEffect(() => {
    if (!answer) return;
    keep((old) => Object.fromEntries(answer.channels.map((channel) => {
      const last = old[channel.name], seconds = last ? answer.now - last.at : 0;
      const speed = seconds > 0 ? Math.max(0, (channel.last - last.last) / seconds) : 0;
      return [channel.name, { at: answer.now, last: channel.last, speed }];
    })));
  }, [answer]);
  return html`<h1>${t("page.files")}</h1><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && !answer.channels.length && html`<div class="card none">${teach(t("none.channels"), 'app.files("access").send(["access.log"], receivers=["agg-1"])')}</div>`}
    ${answer?.channels.map((channel) => html`<div class="card" key=${channel.name}>
      <div class="head"><h2 class="mono">${channel.name}</h2>
        <${Tag} state=${channel.closed ? "" : "good"}>${t(channel.closed ? "closed" : "open")}<//>
        <span class="quiet">${t("sending", { n: channel.sending })} · ${t("blocks-per-second", { n: rate(before[channel.name]?.speed) })}</span></div>
      <p>${t("window", { held: size(channel.bytes), limit: size(channel.limit), peak: size(channel.peak) })}</p>
      <div class="bar" role="img" aria-label=${t("window", { held: size(channel.bytes), limit: size(channel.limit), peak: size(channel.peak) })}><i style=${{ width: `${(100 * channel.bytes) / channel.limit}%` }}></i></div>
      <p></p><${Receivers} channel=${channel} now=${answer.now} /></div>`)}`;
}

/** The files that a receiver could not save. */
function DeadFiles({ name, filter, mayAct }) {
  const receiver = filter.get("receiver") || "", path = new URLSearchParams({ channel: name, receiver });
  const [answer, error, again] = useAnswer(`dead-files?${path}`);
  const order = (action, row) => ({ action, names: [name, receiver], ids: [row.id] });
  const columns = answer && [
    [t("file"), (row) => html`${mono(row.name || "?")}<div class="quiet">${row.source}</div>`],
    [t("reason"), (row) => html`<details><summary>${row.error}</summary><pre tabindex="0">${row.kept || t("not-kept")}</pre></details>`],
    [t("died"), (row) => seen(answer.now, row.died), "n"],
    [t("state"), (row) => (row.is_retried ? t("file-retried") : t(row.kept ? "file-kept" : "not-kept"))],
  ];
  if (columns && mayAct) {
    columns.push([t("actions"), (row) => html`<div class="row">
      <button disabled=${!row.kept || row.is_retried} onClick=${() => act(order("retry_files", row), { then: again })}>${t("retry-file")}</button>
      <${Careful} label=${t("remove")} question=${t("remove.file", { name: row.name })} order=${order("remove_files", row)} then=${again} /></div>`, "n"]);
  }
  return html`<div class="head"><h1>${t("dead-files-of", { receiver, channel: name })}</h1>${answer && html`<span class="quiet">${number(answer.total)}</span>`}<a href="#/files">${t("page.files")}</a></div>
    <${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><${Table} label=${t("dead-files")} columns=${columns} rows=${answer.files} none=${t("none.dead-files")} /></div>`}`;
}

function Directories() {
  const [answer, error] = useAnswer("directories", 15000);
  return html`<h1>${t("page.directories")}</h1><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && !answer.directories.length && html`<div class="card none">${teach(t("none.directories"), 'app.directory("guild:9").add("Ann")')}</div>`}
    ${answer?.directories.map((directory) => html`<${Directory} key=${directory.name} directory=${directory} />`)}`;
}

function Directory({ directory }) {
  const [text, type] = useState(""), [found, set] = useState([]), [error, fail] = useState("");
  useEffect(() => {
    let ended = false;
    if (!text) { set([]); return; }
    ask(`complete/${encodeURIComponent(directory.name)}?q=${encodeURIComponent(text)}`)
      .then((answer) => { if (!ended) { set(answer.entries); fail(""); } })
      .catch((problem) => { if (!ended) fail(problem.message); });
    return () => { ended = true; };
  }, [text]);
  return html`<div class="card"><div class="head"><h2 class="mono">${directory.name}</h2><span class="quiet">${t("names", { n: number(directory.names) })}</span></div>
    <input type="search" value=${text} placeholder=${t("complete")} aria-label=${t("complete-in", { name: directory.name })} onInput=${(event) => type(event.target.value)} />
    <${Problem} error=${error} />
    ${text && html`<p></p><${Table} label=${directory.name} none=${t("none.names")} rows=${found} columns=${[[t("name"), (row) => row.name], ["id", (row) => mono(row.id)]]} />`}</div>`;
}

// --- health ---

const LEVELS = { ok: "good", warn: "warn", fail: "bad" };

function Health() {
  const [answer, error, again] = useAnswer("doctor?without=keys", 0);
  const [slow, failed, againSlow] = useAnswer("doctor?topic=keys", 0); // it reads the names of all keys
  return html`<div class="head"><h1>${t("page.health")}</h1><div class="rest"><button onClick=${() => { again(); againSlow(); }}>${t("check-again")}</button></div></div>
    <p class="quiet">${t("health.what")}</p><${Problem} error=${error || failed} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><${Table} label=${t("page.health")} rows=${[...answer.checks, ...slow?.checks ?? []]} by=${(row) => row.topic + row.message} columns=${[
      [t("state"), (row) => html`<${Tag} state=${LEVELS[row.level]}>${t(`level.${row.level}`)}<//>`, "tight"], [t("topic"), (row) => row.topic],
      [t("found"), (row) => html`${row.message}${row.advice && html`<div class="quiet">${row.advice}</div>`}`]]} />
      <${Loading} answer=${slow} error=${failed} /></div>`}`;
}

export const PAGES = {
  overview: Overview, queue: Queue, job: Job, dead: Dead, workers: Workers, locks: Locks, messages: Messages, files: Files, deadfiles: DeadFiles,
  directories: Directories, health: Health, jobs: Jobs, schedules: Schedules,
};
