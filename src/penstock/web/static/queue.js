// The page of one queue: its findings, its past, and who waits and is served in it.

import { html, useState } from "./ui.js";
import { Limits } from "./jobs.js";
import { Charts, Findings, SELDOM, State } from "./overview.js";
import { WorkerTable } from "./workers.js";
import { Careful, Fact, Loading, Problem, Table, act, link, useAnswer } from "./components.js";
import { age, number, rate, t } from "./text.js";

const waits = ({ counts }) => counts.ready + counts.delayed + counts.sleeping + counts.parked;

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

export function Queue({ name, live, mayAct }) {
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
