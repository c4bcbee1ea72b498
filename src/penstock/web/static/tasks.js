// Tasks: how many of their jobs ended lately, and how long these waited and ran.

import { html, useState } from "./ui.js";
import { Loading, Problem, Table, Tag, link, seen, teach, useAnswer } from "./components.js";
import { age, duration, number, t } from "./text.js";

const SPANS = [["", "all-kept"], [900, "last-quarter"], [3600, "last-hour"], [86400, "last-day"]];

const jobs = (row, state, text) => html`<a href=${`#/jobs/${encodeURIComponent(row.queue)}?${new URLSearchParams({ state, ...(row.task ? { task: row.task } : {}) })}`}>${text}</a>`;

const percentiles = (name, word) => ["p50", "p95", "p99"].map((one) => [
  html`${t(word)}<br />${t(one)}`, (row) => (row[name][one] === null ? "" : duration(row[name][one])), "n", `${t(word)} ${t(one)}`]);

export function Tasks() {
  const [since, choose] = useState("");
  const [answer, error] = useAnswer(`tasks${since && `?since=${since}`}`, 10000);
  const none = teach(t("none.tasks"), "@app.task(queue=\"mail\")\nasync def send(to: str) -> None: ...\n\nsend.enqueue(\"ada@example.com\")");
  const columns = answer && [
    [t("task"), (row) => html`<b class="mono">${jobs(row, "ended", row.task || t("values"))}</b>`],
    [t("queue"), (row) => link("queue", row.queue)],
    [t("total.completed"), (row) => jobs(row, "completed", number(row.completed)), "n"],
    [t("total.failed"), (row) => (row.failed ? html`<${Tag} state="bad">${jobs(row, "failed", number(row.failed))}<//>` : "0"), "n"],
    [t("total.retried"), (row) => number(row.retries), "n"],
    ...percentiles("duration", "ran"), ...percentiles("waiting", "waited"),
    [t("last"), (row) => seen(answer.now, row.last), "n"],
  ];
  const earliest = answer?.tasks.length ? Math.min(...answer.tasks.map((one) => one.since)) : 0;
  return html`<div class="head"><h1>${t("page.tasks")}</h1>
      <div class="rest" role="group" aria-label=${t("span")}>
        ${SPANS.map(([one, word]) => html`<button aria-pressed=${one === since} onClick=${() => choose(one)}>${t(word)}</button>`)}</div></div>
    <${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><${Table} label=${t("page.tasks")} columns=${columns} rows=${answer.tasks} by=${(row) => `${row.queue} ${row.task}`} none=${none} />
      ${earliest > 0 && html`<p class="quiet">${t("tasks.from", { n: number(answer.examined), age: age(Math.max(0, answer.now - earliest)) })}</p>`}</div>`}`;
}
