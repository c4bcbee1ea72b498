// The page of one queue: its findings, its past, and who waits and is served in it.

import { html, useState } from "./ui.js";
import { Limits } from "./jobs.js";
import { Charts, Findings, SELDOM, State } from "./overview.js";
import { WorkerTable } from "./workers.js";
import { Ask, Careful, Choice, Fact, Loading, Menu, Problem, Table, Tag, act, jobsLink, link, useAnswer } from "./components.js";
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

/** What an operator may do with a tenant. */
function TenantMenu({ tenant, queue, paused, again }) {
  const about = { queue: queue.name, tenant: tenant.name };
  const weigh = (event) => {
    event.preventDefault();
    act({ ...about, action: "weigh", weight: Number(event.target.elements.weight.value) }, { undo: { ...about, action: "weigh", weight: tenant.counts.weight }, then: again });
  };
  const pause = paused ? ["resume", "pause"] : ["pause", "resume"];
  return html`<${Menu} name=${tenant.name || t("no-tenant")}>
    <${Choice} what=${t(`tenant.${pause[0]}`)}><button onClick=${() => act({ ...about, action: pause[0] }, { undo: { ...about, action: pause[1] }, then: again })}>${t(pause[0])}</button><//>
    <${Choice} what=${t("tenant.weigh")}><form onSubmit=${weigh}><input type="number" name="weight" min="0.001" max="1000" step="any" required defaultValue=${tenant.counts.weight} aria-label=${t("weight")} /><button>${t("weigh")}</button></form><//>
    <${Choice} what=${t("tenant.purge", { n: number(waits(tenant)) })}><${Careful} label=${t("purge")} then=${again} disabled=${!waits(tenant)}
      question=${t("purge.tenant", { tenant: tenant.name, queue: queue.name, n: number(waits(tenant)) })}
      order=${{ ...about, action: "purge", most: waits(tenant) }} /><//><//>`;
}

const unfinished = (counts) => counts.ready + counts.delayed + counts.running + counts.parked + counts.dependent;

/** The bounds of the queue: how many unfinished jobs it takes, and each of its tenants. */
function Bound({ queue, again }) {
  const { counts } = queue, whole = (field) => (field.value === "" ? null : Number(field.value));
  const order = ({ jobs, tenant }) => ({ action: "bound", queue: queue.name, most: whole(jobs), per_tenant: whole(tenant), confirmed: true });
  const field = (name, word, value) => html`<label>${t(word)}<input type="number" name=${name} min="1" step="1" placeholder=${t("bound.none")} defaultValue=${value ?? ""} /></label>`;
  return html`<${Ask} label=${t("bound.set")} what=${t("bound.what", { n: number(unfinished(counts)) })} order=${order} then=${again}>
    ${field("jobs", "bound.jobs", counts.bound)}${field("tenant", "bound.tenant", counts.tenant_bound)}<//>`;
}

/** How much of the bounds is used, and how many jobs they have refused. */
function BoundFacts({ counts }) {
  if (!counts.bound && !counts.tenant_bound) return null;
  const used = unfinished(counts), refused = t("bound.refused", { n: number(counts.refused) });
  return html`${counts.bound && html`<${Fact} name=${t("bound.jobs")} value=${t("bound.of", { used: number(used), most: number(counts.bound) })} more=${refused} state=${used >= counts.bound ? "bad" : used >= 0.8 * counts.bound ? "warn" : ""} />`}
    ${counts.tenant_bound && html`<${Fact} name=${t("bound.tenant")} value=${number(counts.tenant_bound)} more=${counts.bound ? "" : refused} />`}`;
}

const ofBound = (used, most) => html`<span>${t("bound.of", { used: number(used), most: number(most) })} ${used >= most && html`<${Tag} state="bad">${t("kind.full")}<//>`}</span>`;

function Tenants({ queue, mayAct, again }) {
  const most = Math.max(1, ...queue.largest.map(waits));
  const paused = new Set(queue.pauses.filter((one) => one.tenant !== null && one.paused).map((one) => one.tenant));
  const competing = queue.largest.filter((tenant) => tenant.counts.ready || tenant.counts.running);
  const weights = competing.reduce((total, tenant) => total + tenant.counts.weight, 0);
  const share = (tenant) => (competing.includes(tenant) && weights && !paused.has(tenant.name) ? t("percent", { n: number(Math.round((100 * tenant.counts.weight) / weights)) }) : "");
  const columns = [
    [t("tenant"), (tenant) => html`${tenant.name ? jobsLink(queue.name, { tenant: tenant.name }) : t("no-tenant")} ${paused.has(tenant.name) && html`<${Tag} state="warn">${t("paused")}<//>`}`],
    [t("waits"), (tenant) => html`<div class="bar" aria-hidden="true"><i style=${{ width: `${(100 * waits(tenant)) / most}%` }}></i></div>`],
    [t("ready"), (tenant) => number(tenant.counts.ready), "n"],
    [t("oldest"), (tenant) => (tenant.counts.ready ? age(tenant.counts.oldest) : ""), "n"],
    [t("delayed"), (tenant) => number(tenant.counts.delayed), "n"],
    ...SELDOM.filter(([name]) => queue.largest.some((tenant) => tenant.counts[name])).map(([name, word]) => [t(word), (tenant) => number(tenant.counts[name]), "n"]),
    [t("served"), (tenant) => number(tenant.counts.running), "n"],
    ...(queue.counts.tenant_bound ? [[t("bound"), (tenant) => ofBound(unfinished(tenant.counts), queue.counts.tenant_bound), "n"]] : []),
    [t("weight"), (tenant) => rate(tenant.counts.weight), "n"],
    [t("share"), share, "n"],
    [t("dead"), (tenant) => number(tenant.counts.dead), "n"],
  ];
  if (mayAct) columns.push([t("actions"), (tenant) => html`<${TenantMenu} tenant=${tenant} queue=${queue} paused=${paused.has(tenant.name)} again=${again} />`, "n"]);
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
        <${Bound} queue=${queue} again=${again} />
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
      <${BoundFacts} counts=${counts} />
      <${Fact} name=${t("dead")} state=${counts.dead ? "bad" : ""} value=${link("dead", name, number(counts.dead))} />
    </div>
    <${Past} name=${name} flow=${flow} at=${live.at} />
    <${Tenants} queue=${queue} mayAct=${mayAct} again=${again} />
    <${Limits} queue=${name} mayAct=${mayAct} />
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
