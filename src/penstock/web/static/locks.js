// Locks and the other means of coordination: who holds them, and who waits.

import { html } from "./ui.js";
import { Careful, Choice, Loading, Menu, Problem, ShowAll, Table, act, alone, mono, onlyNamed, teach, useAnswer, workerLink } from "./components.js";
import { age, number, t } from "./text.js";

const owner = (one) => (one ? html`${one.host ? workerLink(`${one.host}:${one.pid}`) : t("another-library")}${one.age !== null && one.age !== undefined ? html` <span class="quiet">${age(one.age)}</span>` : ""}` : html`<span class="quiet">${t("nobody")}</span>`);
const owners = (some) => html`${some.slice(0, 5).map((one) => html`<div>${owner(one)}${one.permits > 1 ? ` × ${one.permits}` : ""}</div>`)}${some.length > 5 ? html`<span class="quiet">${t("and-more", { n: some.length - 5 })}</span>` : ""}`;
export const waiters = (row) => (row.waiting ? html`<details><summary>${number(row.waiting)}</summary>${owners(row.waiters || row.candidates || [])}</details>` : "0");

function SemaphoreMenu({ row, again }) {
  const set = (event) => {
    event.preventDefault();
    act({ action: "limit_semaphore", names: [row.name], most: Number(event.target.elements.most.value) }, { then: again });
  };
  return html`<${Menu} name=${row.name}>
    <${Choice} what=${t("semaphore.limit")}><form onSubmit=${set}><input type="number" name="most" min="1" required defaultValue=${row.limit ?? row.held} aria-label=${t("limit")} /><button>${t("weigh")}</button></form><//>
    <${Choice} what=${t("semaphore.own")}><button disabled=${row.limit === null} onClick=${() => act({ action: "limit_semaphore", names: [row.name] }, { then: again })}>${t("remove")}</button><//><//>`;
}

export function Locks({ mayAct, name }) {
  const [answer, error, again] = useAnswer("locks");
  const named = [t("name"), (row) => alone("locks", row.name)];
  const waiting = [t("waiting"), waiters, "n"];
  const lockColumns = [named, [t("owner"), (row) => owner(row.holder)], [t("lease"), (row) => (row.holder?.left ? age(row.holder.left) : ""), "n"], [t("fence"), (row) => mono(row.fence ?? ""), "n"], waiting];
  if (mayAct) {
    lockColumns.push([t("actions"), (row) => html`<${Careful} label=${t("break")} disabled=${!row.holder} then=${again} order=${{ action: "break", names: [row.name] }}
      question=${t("break.lock", { name: row.name, owner: row.holder ? `${row.holder.host}:${row.holder.pid}` : "" })} />`, "n"]);
  }
  const parts = answer && [
    ["locks", lockColumns],
    ["semaphores", [named, [t("held"), (row) => number(row.held), "n"], [t("limit"), (row) => (row.limit === null ? html`<span class="quiet">${t("limit.own")}</span>` : number(row.limit)), "n"], [t("holders"), (row) => owners(row.holders)], waiting,
      ...(mayAct ? [[t("actions"), (row) => html`<${SemaphoreMenu} row=${row} again=${again} />`, "n"]] : [])]],
    ["rwlocks", [named, [t("writer"), (row) => owner(row.writer)], [t("readers"), (row) => html`${number(row.reading)} ${owners(row.readers)}`], waiting]],
    ["elections", [named, [t("leader"), (row) => owner(row.leader)], [t("announced"), (row) => mono(row.leader?.value ?? "")], [t("term"), (row) => mono(row.term ?? ""), "n"], waiting]],
    ["latches", [named, [t("left"), (row) => `${number(row.left)} / ${number(row.count)}`, "n"], [t("waiting"), (row) => number(row.waiting), "n"]]],
    ["barriers", [named, [t("arrived"), (row) => `${number(row.waiting)} / ${number(row.parties)}`, "n"], [t("generation"), (row) => number(row.generation), "n"]]],
  ];
  const none = name ? t("none.of-name") : teach(t("none.locks"), "with app.lock(\"invoice:7\") as held: ...");
  return html`<h1>${t("page.locks")}</h1><${ShowAll} page="locks" name=${name} /><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${parts && parts.map(([kind, columns]) => [kind, columns, onlyNamed(answer[kind], name)]).filter(([kind, , rows]) => rows.length || (kind === "locks" && !(name && parts.some(([other]) => onlyNamed(answer[other], name).length)))).map(([kind, columns, rows]) => html`
      <div class="card"><h2>${t(kind)}</h2><${Table} label=${t(kind)} columns=${columns} rows=${rows} none=${none} /></div>`)}`;
}
