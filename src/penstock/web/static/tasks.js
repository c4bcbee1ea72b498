// Tasks: how many of their jobs ended lately, and how long these waited and ran.

import { html, useState } from "./ui.js";
import { Ask, Loading, Problem, Table, Tag, link, seen, teach, useAnswer } from "./components.js";
import { age, duration, number, t } from "./text.js";

const SPANS = [["", "all-kept"], [900, "last-quarter"], [3600, "last-hour"], [86400, "last-day"]];

const jobs = (row, state, text) => html`<a href=${`#/jobs/${encodeURIComponent(row.queue)}?${new URLSearchParams({ state, ...(row.task ? { task: row.task } : {}) })}`}>${text}</a>`;

/** How long the runs took, as bars: each stands for about three times the duration of the one before it. */
function Histogram({ counts, edges }) {
  const most = Math.max(...counts);
  if (!most) return null;
  const first = counts.findIndex((n) => n), last = counts.length - 1 - [...counts].reverse().findIndex((n) => n);
  const span = (at) => (at === edges.length ? t("longer-than", { age: duration(edges.at(-1)) }) : t("up-to", { age: duration(edges[at]) }));
  const label = counts.map((n, at) => (n ? `${span(at)}: ${number(n)}` : "")).filter(Boolean).join("; ");
  return html`<svg class="histogram of-running" viewBox=${`0 0 ${8 * counts.length} 24`} role="img" aria-label=${label}>
    <title>${label}</title><path class="ground" d=${`M0 23.5H${8 * counts.length}`} />
    ${counts.map((n, at) => at >= first && at <= last && html`<rect x=${8 * at + 1} width="6" y=${n ? 23 - Math.max(2, (22 * n) / most) : 23} height=${n ? Math.max(2, (22 * n) / most) : 0}><title>${span(at)}: ${number(n)}</title></rect>`)}</svg>`;
}

const percentiles = (name, word) => ["p50", "p95", "p99"].map((one) => [
  html`${t(word)}<br />${t(one)}`, (row) => (row[name][one] === null ? "" : duration(row[name][one])), "n", `${t(word)} ${t(one)}`]);

/** A call of one of the app's tasks. A dashboard without an app knows none. */
const NewJob = ({ tasks, again }) => html`<${Ask} label=${t("new-job")} what=${t("new-job.what")} then=${again}
  order=${({ task, text, tenant }) => ({ action: "enqueue", names: [task.value], text: text.value, tenant: tenant.value, confirmed: true })}>
  <label>${t("task")}<select name="task">${tasks.map((one) => html`<option key=${one}>${one}</option>`)}</select></label>
  <label>${t("arguments")}<textarea name="text" required spellcheck=${false} defaultValue="{}"></textarea></label>
  <label>${t("tenant")}<input name="tenant" /></label><//>`;

export function Tasks({ mayAct }) {
  const [since, choose] = useState("");
  const [answer, error, again] = useAnswer(`tasks${since && `?since=${since}`}`, 10000);
  const none = teach(t("none.tasks"), "@app.task(queue=\"mail\")\nasync def send(to: str) -> None: ...\n\nsend.enqueue(\"ada@example.com\")");
  const columns = answer && [
    [t("task"), (row) => html`<b class="mono">${jobs(row, "ended", row.task || t("values"))}</b>`],
    [t("queue"), (row) => link("queue", row.queue)],
    [t("total.completed"), (row) => jobs(row, "completed", number(row.completed)), "n"],
    [t("total.failed"), (row) => (row.failed ? html`<${Tag} state="bad">${jobs(row, "failed", number(row.failed))}<//>` : "0"), "n"],
    [t("total.retried"), (row) => number(row.retries), "n"],
    [t("durations"), (row) => html`<${Histogram} counts=${row.histogram} edges=${answer.edges} />`, "tight"],
    ...percentiles("duration", "ran"), ...percentiles("waiting", "waited"),
    [t("last"), (row) => seen(answer.now, row.last), "n"],
  ];
  const earliest = answer?.tasks.length ? Math.min(...answer.tasks.map((one) => one.since)) : 0;
  return html`<div class="head"><h1>${t("page.tasks")}</h1>
      <div class="rest" role="group" aria-label=${t("span")}>
        ${SPANS.map(([one, word]) => html`<button aria-pressed=${one === since} onClick=${() => choose(one)}>${t(word)}</button>`)}
        ${mayAct && answer?.declared.length > 0 && html`<${NewJob} tasks=${answer.declared} again=${again} />`}</div></div>
    <${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><${Table} label=${t("page.tasks")} columns=${columns} rows=${answer.tasks} by=${(row) => `${row.queue} ${row.task}`} none=${none} />
      ${earliest > 0 && html`<p class="quiet">${t("tasks.from", { n: number(answer.examined), age: age(Math.max(0, answer.now - earliest)) })}</p>`}</div>`}`;
}
