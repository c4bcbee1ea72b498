// Locks and the other means of coordination: who holds them, and who waits.

import { html } from "./ui.js";
import { Careful, Choice, Loading, Menu, Problem, ShowAll, Table, act, alone, mono, onlyNamed, teach, useAnswer, workerLink } from "./components.js";
import { age, number, t } from "./text.js";

const MOST_CHOICES = 20; // holders with a button of their own

const owner = (one) => (one ? html`${one.host ? workerLink(`${one.host}:${one.pid}`) : t("another-library")}${one.age !== null && one.age !== undefined ? html` <span class="quiet">${age(one.age)}</span>` : ""}` : html`<span class="quiet">${t("nobody")}</span>`);
const owners = (some) => html`${some.slice(0, 5).map((one) => html`<div>${owner(one)}${one.permits > 1 ? ` × ${one.permits}` : ""}</div>`)}${some.length > 5 ? html`<span class="quiet">${t("and-more", { n: some.length - 5 })}</span>` : ""}`;
export const waiters = (row) => (row.waiting ? html`<details><summary>${number(row.waiting)}</summary>${owners(row.waiters || row.candidates || [])}</details>` : "0");

const processOf = (one) => (one.host ? `${one.host}:${one.pid}` : t("another-library"));
const someNamed = (some) => [...some.slice(0, 5).map(processOf), ...(some.length > 5 ? [t("and-more", { n: number(some.length - 5) })] : [])].join(", ");

/** A button that takes what these processes hold away from them, after a question. */
const Break = ({ kind, row, some, again }) => html`<${Careful} label=${t("break")} disabled=${!some.length} then=${again} question=${t(`break.${kind}`, { name: row.name, owner: someNamed(some) })}
  order=${{ action: "break", kind, names: [row.name], ids: some.map((one) => one.token) }} />`;

/** What takes it from one of the holders, or from all that are shown. */
const breakChoices = (kind, row, some, again) => html`${some.slice(0, MOST_CHOICES).map((one) => html`
    <${Choice} key=${one.token} what=${t("break.one", { owner: processOf(one) })}><${Break} kind=${kind} row=${row} some=${[one]} again=${again} /><//>`)}
  ${some.length > 1 && html`<${Choice} what=${t("break.all", { n: number(some.length) })}><${Break} kind=${kind} row=${row} some=${some} again=${again} /><//>`}`;

function SemaphoreMenu({ row, again }) {
  const set = (event) => {
    event.preventDefault();
    act({ action: "limit_semaphore", names: [row.name], most: Number(event.target.elements.most.value) }, { then: again });
  };
  return html`<${Menu} name=${row.name}>
    <${Choice} what=${t("semaphore.limit")}><form onSubmit=${set}><input type="number" name="most" min="1" required defaultValue=${row.limit ?? row.held} aria-label=${t("limit")} /><button>${t("weigh")}</button></form><//>
    <${Choice} what=${t("semaphore.own")}><button disabled=${row.limit === null} onClick=${() => act({ action: "limit_semaphore", names: [row.name] }, { then: again })}>${t("remove")}</button><//>
    ${breakChoices("semaphore", row, row.holders, again)}<//>`;
}

/** What an operator may do with each kind, in the last column. */
const ACTIONS = {
  locks: (row, again) => html`<${Break} kind="lock" row=${row} some=${row.holder ? [row.holder] : []} again=${again} />`,
  semaphores: (row, again) => html`<${SemaphoreMenu} row=${row} again=${again} />`,
  rwlocks: (row, again) => html`<${Menu} name=${row.name}>${breakChoices("rwlock", row, row.writer ? [row.writer] : row.readers, again)}<//>`,
  elections: (row, again) => html`<${Break} kind="election" row=${row} some=${row.leader ? [row.leader] : []} again=${again} />`,
  latches: (row, again) => html`<${Careful} label=${t("latch.open")} disabled=${!row.left} then=${again} order=${{ action: "open_latch", names: [row.name] }}
    question=${t("open.latch", { name: row.name, n: number(row.left), of: number(row.count) })} />`,
  barriers: (row, again) => html`<${Careful} label=${t("break")} disabled=${!row.waiting} then=${again} order=${{ action: "break_barrier", names: [row.name] }}
    question=${t("break.barrier", { name: row.name, n: number(row.waiting) })} />`,
};

export function Locks({ mayAct, name }) {
  const [answer, error, again] = useAnswer("locks");
  const named = [t("name"), (row) => alone("locks", row.name)];
  const waiting = [t("waiting"), waiters, "n"];
  const parts = answer && [
    ["locks", [named, [t("owner"), (row) => owner(row.holder)], [t("lease"), (row) => (row.holder?.left ? age(row.holder.left) : ""), "n"], [t("fence"), (row) => mono(row.fence ?? ""), "n"], waiting]],
    ["semaphores", [named, [t("held"), (row) => number(row.held), "n"], [t("limit"), (row) => (row.limit === null ? html`<span class="quiet">${t("limit.own")}</span>` : number(row.limit)), "n"], [t("holders"), (row) => owners(row.holders)], waiting]],
    ["rwlocks", [named, [t("writer"), (row) => owner(row.writer)], [t("readers"), (row) => html`${number(row.reading)} ${owners(row.readers)}`], waiting]],
    ["elections", [named, [t("leader"), (row) => owner(row.leader)], [t("announced"), (row) => mono(row.leader?.value ?? "")], [t("term"), (row) => mono(row.term ?? ""), "n"], waiting]],
    ["latches", [named, [t("left"), (row) => `${number(row.left)} / ${number(row.count)}`, "n"], [t("waiting"), (row) => number(row.waiting), "n"]]],
    ["barriers", [named, [t("arrived"), (row) => `${number(row.waiting)} / ${number(row.parties)}`, "n"], [t("generation"), (row) => number(row.generation), "n"]]],
  ];
  if (parts && mayAct) {
    for (const [kind, columns] of parts) columns.push([t("actions"), (row) => ACTIONS[kind](row, again), "n"]);
  }
  const none = name ? t("none.of-name") : teach(t("none.locks"), "with app.lock(\"invoice:7\") as held: ...");
  return html`<h1>${t("page.locks")}</h1><${ShowAll} page="locks" name=${name} /><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${parts && parts.map(([kind, columns]) => [kind, columns, onlyNamed(answer[kind], name)]).filter(([kind, , rows]) => rows.length || (kind === "locks" && !(name && parts.some(([other]) => onlyNamed(answer[other], name).length)))).map(([kind, columns, rows]) => html`
      <div class="card"><h2>${t(kind)}</h2><${Table} label=${t(kind)} columns=${columns} rows=${rows} none=${none} /></div>`)}`;
}
