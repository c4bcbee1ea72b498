// The overview: is the system healthy, and if not, where does one click?

import { html, useState } from "./ui.js";
import { Chart, Fact, Loading, Spark, Table, Tag, link, teach, useAnswer } from "./components.js";
import { age, number, rate, t } from "./text.js";

/** States that a queue without limits, pauses, flows and durable jobs does not know: shown where there are jobs in them. */
export const SELDOM = [["sleeping", "sleeping"], ["parked", "parked"], ["dependent", "for-others"]];

/** A number of which most rows have none: nothing instead of 0, so that those that there are stand out. */
const some = (n) => (n ? number(n) : "");

const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);

/** The page that says more about a finding. */
const PLACES = { no_worker: "workers", lost: "workers", dead: "dead" };
const SHOWN = 8;

/** What the doctor and /healthz find as well, as sentences with links. */
export function Findings({ findings }) {
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

export function Charts({ rows }) {
  return html`<div class="two">
    <div class="card"><h2>${t("throughput")}</h2>
      <${Chart} rows=${rows} label=${t("throughput")} series=${[[t("in"), "in", 3], [t("out"), "out", 4], [t("failing"), "failing", 5]]} /></div>
    <div class="card"><h2>${t("backlog")}</h2>
      <${Chart} rows=${rows} label=${t("backlog")} whole=${true} series=${[[t("ready"), "ready", 1], [t("running-right"), "running", 2, true]]} /></div>
  </div>`;
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

const KINDS = { no_worker: "bad", lost: "bad", full: "bad", late: "warn", paused: "warn", unknown_task: "warn", failing: "warn", parked: "warn", dead: "bad" };

/** The most urgent finding about a queue; without one, whether something happens in it. */
export function State({ queue }) {
  if (queue.worst) return html`<${Tag} state=${KINDS[queue.worst]}>${t(`kind.${queue.worst}`)}<//>`;
  // A queue of short jobs may be empty at the moment at which it is looked at.
  return queue.running || queue.ready || queue.in > 0 || queue.out > 0 ? html`<${Tag} state="good">${t("at-work")}<//>` : html`<${Tag}>${t("idle")}<//>`;
}

export function Overview({ live }) {
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
    ...[["delayed", "delayed"], ...SELDOM].filter(([name]) => sum(queues, name)).map(([name, word]) => [t(word), (queue) => some(queue[name]), "n"]),
    [t("running"), (queue) => number(queue.running), "n"],
    [t("in-per-second"), (queue) => rate(queue.in), "n"],
    [t("out-per-second"), (queue) => rate(queue.out), "n"],
    [t("last-minutes"), (queue) => html`<${Spark} values=${sparks?.[queue.name]} color="out" label=${t("last-minutes")} />`, "tight wide"],
    [t("dead"), (queue) => (queue.dead ? html`<a href=${`#/dead/${encodeURIComponent(queue.name)}`}>${number(queue.dead)}</a>` : ""), "n"],
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
