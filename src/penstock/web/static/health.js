// What `penstock doctor` finds.

import { html } from "./ui.js";
import { Loading, Problem, Table, Tag, useAnswer } from "./components.js";
import { say, t } from "./text.js";

const LEVELS = { ok: "good", warn: "warn", fail: "bad" };

export function Health() {
  const [answer, error, again] = useAnswer("doctor?without=keys", 0);
  const [slow, failed, againSlow] = useAnswer("doctor?topic=keys", 0); // it reads the names of all keys
  return html`<div class="head"><h1>${t("page.health")}</h1><div class="rest"><button onClick=${() => { again(); againSlow(); }}>${t("check-again")}</button></div></div>
    <p class="quiet">${t("health.what")}</p><${Problem} error=${error || failed} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><${Table} label=${t("page.health")} rows=${[...answer.checks, ...slow?.checks ?? []]} by=${(row) => row.topic + row.message} columns=${[
      [t("state"), (row) => html`<${Tag} state=${LEVELS[row.level]}>${t(`level.${row.level}`)}<//>`, "tight"], [t("topic"), (row) => t(`topic.${row.topic}`), "tight"],
      [t("found"), (row) => html`${say(row.message)}${row.advice && html`<div class="quiet">${say(row.advice)}</div>`}`]]} />
      <${Loading} answer=${slow} error=${failed} /></div>`}`;
}
