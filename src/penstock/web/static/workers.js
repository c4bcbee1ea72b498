// Workers: the processes of all queues, and those of one queue.

import { html } from "./ui.js";
import { Careful, Choice, Loading, Menu, Problem, ShowAll, Table, Tag, act, onlyNamed, releaseLink, teach, useAnswer, workerLink } from "./components.js";
import { RunningJobs } from "./jobs.js";
import { age, number, size, t, time } from "./text.js";

const lease = (worker) => (worker.lease > 0 ? age(worker.lease) : html`<${Tag} state="bad">${t("lease-over")}<//>`);
const running = (worker) => html`${number(worker.held)}${worker.concurrency ? ` / ${number(worker.concurrency)}` : ""}
  ${worker.concurrency > 0 && html`<div class="bar" aria-hidden="true"><i style=${{ width: `${Math.min(100, (100 * worker.held) / worker.concurrency)}%` }}></i></div>`}`;
const jobsOf = (worker, queue) => html`<a href=${`#/jobs/${encodeURIComponent(queue)}?state=running&worker=${encodeURIComponent(worker)}`}>${queue}</a>`;

const memory = (worker) => (worker.memory ? size(worker.memory) : "");

/** The workers of one queue. */
export function WorkerTable({ workers, now }) {
  return html`<${Table} label=${t("workers")} none=${t("none.workers")} rows=${workers} by=${(worker) => worker.name + worker.since} columns=${[
    [t("worker"), (worker) => workerLink(worker.name) || t("program")],
    [t("runs"), running],
    [t("memory"), memory, "n"],
    [t("release"), (worker) => releaseLink(worker.release)],
    [t("up"), (worker) => (worker.since ? age(Math.max(0, (now || Date.now() / 1000) - worker.since)) : ""), "n"],
    [t("lease"), lease, "n"],
  ]} />`;
}

/** One row for each process, whichever queues it serves. */
function byProcess(workers) {
  const found = new Map();
  for (const one of workers) {
    const key = one.name || `(${one.queue})`, old = found.get(key);
    found.set(key, old ? { ...old, held: old.held + one.held, lease: Math.max(old.lease, one.lease), asked: old.asked || one.asked, memory: Math.max(old.memory, one.memory), since: Math.min(old.since ?? one.since, one.since ?? old.since), queues: [...old.queues, one.queue] }
      : { ...one, key, queues: [one.queue] });
  }
  return [...found.values()].sort((one, other) => other.held - one.held || one.key.localeCompare(other.key));
}

const ASKED = { quiet: "warn", stop: "warn" };

function State({ worker }) {
  if (worker.lease <= 0) return html`<${Tag} state="bad">${t("lease-over")}<//>`;
  if (worker.asked) return html`<${Tag} state=${ASKED[worker.asked]}>${t(`asked.${worker.asked}`)}<//>`;
  return worker.held ? html`<${Tag} state="good">${t("at-work")}<//>` : html`<${Tag}>${t("idle")}<//>`;
}

function WorkerMenu({ worker, again }) {
  const order = (action) => ({ action, names: [worker.name] });
  return html`<${Menu} name=${worker.name}>
    <${Choice} what=${t("quiet.what")}><button disabled=${worker.asked} onClick=${() => act(order("quiet_worker"), { then: again })}>${t("quiet")}</button><//>
    <${Choice} what=${t("stop.what")}><${Careful} label=${t("stop")} question=${t("stop.worker", { name: worker.name, n: number(worker.held) })} order=${order("stop_worker")} then=${again} /><//><//>`;
}

export function Workers({ mayAct, name, filter }) {
  const [answer, error, again] = useAnswer("workers");
  const release = filter.get("release");
  const rows = answer && onlyNamed(byProcess(answer.workers), name).filter((one) => !release || one.release === release), hosts = rows && new Set(rows.filter((one) => one.name).map((one) => one.name.replace(/:\d+$/, "")));
  const none = name || release ? t("none.of-name") : teach(t("none.workers"), "penstock worker shop:app --processes 2");
  const columns = [
    [t("worker"), (one) => workerLink(one.name) || t("program")],
    [t("state"), (one) => html`<${State} worker=${one} />`, "tight"],
    [t("runs"), running],
    [t("memory"), memory, "n"],
    [t("queues"), (one) => html`${one.queues.map((queue, at) => html`${at > 0 && ", "}${jobsOf(one.name, queue)}`)}`],
    [t("release"), (one) => releaseLink(one.release)],
    [t("up"), (one) => (one.since ? html`<span title=${time(one.since)}>${age(Math.max(0, answer.now - one.since))}</span>` : ""), "n"],
    [t("lease"), lease, "n"],
  ];
  if (mayAct) columns.push([t("actions"), (one) => one.name && one.lease > 0 && html`<${WorkerMenu} worker=${one} again=${again} />`, "n"]);
  return html`<div class="head"><h1>${t("page.workers")}</h1>${rows?.length > 0 && html`<span class="quiet">${t("processes.n", { n: number(rows.length), hosts: number(hosts.size) })}</span>`}</div>
    <${ShowAll} page="workers" name=${name || release} />
    <${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><${Table} label=${t("workers")} none=${none} rows=${rows} by=${(one) => one.key} columns=${columns} /></div>`}
    ${rows?.length > 0 && !release && html`<${RunningJobs} worker=${name} />`}`;
}
