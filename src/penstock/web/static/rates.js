// Rate limits, and the rates of queues: what is left of them, and when the next unit comes.

import { html } from "./ui.js";
import { Careful, Loading, Problem, Table, link, mono, teach, useAnswer } from "./components.js";
import { waiters } from "./locks.js";
import { age, exactly, number, t } from "./text.js";

const most = (row, limit) => (row.per === null ? "" : t("per-time", { n: number(limit), age: exactly(row.per) }));
const next = (seconds) => (seconds ? t("due-in", { age: age(seconds) }) : t("allowed-now"));

/** How much of a limit is left, as a number and as a part of what a pause restores. */
const left = (rest, of) => (rest === null || rest === undefined ? "" : html`<div>${number(rest)} / ${number(of)}<div class="bar" aria-hidden="true"><i style=${{ width: `${Math.min(100, (100 * rest) / of)}%` }}></i></div></div>`);

function OfQueues({ queues }) {
  const rows = queues.flatMap(({ queue, rates }) => rates.flatMap((limit) => (limit.keys.length ? limit.keys : [{}]).map((key) => ({ ...limit, ...key, limit: limit.name, queue }))));
  const when = (row) => (row.held_for ? t("closed-for", { age: age(row.held_for) }) : row.next_in === undefined ? "" : row.next_in === null ? t("after-starts") : next(row.next_in));
  return html`<${Table} label=${t("rates.queues")} rows=${rows} by=${(row) => `${row.queue} ${row.limit} ${row.key}`}
    none=${teach(t("none.queue-rates"), '@app.task(queue="mail", limit=Rate(100, per=60, key="{account}"))\nasync def send(account: str) -> None: ...')} columns=${[
    [t("queue"), (row) => link("queue", row.queue)], [t("limit"), (row) => mono(row.limit)], [t("at-most"), (row) => most(row, row.most)],
    [t("key"), (row) => (row.key === undefined ? html`<span class="quiet">${t("no-key-waits")}</span>` : mono(row.key))],
    [t("left"), (row) => left(row.left, row.burst), "n"], [t("next"), when, "n"], [t("parked"), (row) => number(row.parked), "n"]]} />`;
}

export function Rates({ mayAct }) {
  const [answer, error, again] = useAnswer("rates");
  const columns = [
    [t("name"), (row) => mono(row.name)], [t("at-most"), (row) => html`<div>${most(row, row.limit)}${row.burst !== null && row.burst !== row.limit && html`<div class="quiet">${t("at-once", { n: number(row.burst) })}</div>`}</div>`, "tight"],
    [t("left"), (row) => left(row.left, row.burst ?? row.limit), "n"], [t("next"), (row) => next(row.next_in), "n"], [t("waiting"), waiters, "n"],
  ];
  if (mayAct) {
    columns.push([t("actions"), (row) => html`<${Careful} label=${t("reset")} then=${again} order=${{ action: "reset_rate", names: [row.name] }}
      question=${t("reset.rate", { name: row.name, n: number(row.burst ?? row.limit) })} />`, "n"]);
  }
  return html`<h1>${t("page.rates")}</h1><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><h2>${t("rates.limits")}</h2><${Table} label=${t("rates.limits")} columns=${columns} rows=${answer.limits} by=${(row) => `${row.kind} ${row.name}`}
      none=${teach(t("none.rates"), 'with app.rate_limit("api:acme", limit=100, per=60): ...')} /></div>
    <div class="card"><h2>${t("rates.queues")}</h2><${OfQueues} queues=${answer.queues} /></div>`}`;
}
