// Dead letters: of all queues, of one queue, and of that by task and error.

import { html, useState } from "./ui.js";
import { Careful, Loading, Problem, Table, jobsLink, later, link, shortId, useAnswer, workerLink } from "./components.js";
import { age, number, t, time } from "./text.js";

export function Dead({ name, live, filter, mayAct }) {
  const queues = (live.queues || []).filter((queue) => queue.dead > 0);
  if (!name) {
    return html`<h1>${t("page.dead")}</h1><div class="card">
      <${Table} label=${t("queues")} rows=${queues} none=${t("none.dead")} columns=${[[t("queue"), (queue) => link("dead", queue.name)], [t("dead"), (queue) => number(queue.dead), "n"]]} /></div>
      ${queues.slice(0, MOST_GROUPED).map((queue) => html`<${DeadGroups} key=${queue.name} name=${queue.name} least=${1} mayAct=${mayAct} then=${() => {}} />`)}`;
  }
  return html`<${DeadOf} key=${name + filter} name=${name} offset=${Number(filter.get("offset") || 0)} mayAct=${mayAct} />`;
}

/** Queues whose dead letters are grouped beside each other: each of them costs a question. */
const MOST_GROUPED = 10;

/** The dead letters of a queue by task and error. `least`: beside the list, one group alone would say no more than that. */
function DeadGroups({ name, mayAct, then, least = 2 }) {
  const [found] = useAnswer(`dead-groups/${encodeURIComponent(name)}`, 10000);
  if (!found || found.groups.length < least) return null;
  const columns = [
    [t("task"), (group) => jobsLink(name, { state: "dead", task: group.task })],
    [t("error"), (group) => html`<div>${group.error || "?"}</div>${link("job", group.example, t("example"))}`],
    [t("dead"), (group) => number(group.count), "n"],
    [t("died"), (group) => html`<span title=${time(group.last)}>${age(Math.max(0, found.now - group.last))}</span>`, "n"],
  ];
  if (mayAct) {
    columns.push([t("actions"), ({ key, count }) => html`<div class="row">
      <button onClick=${() => later({ action: "requeue_group", queue: name, names: [key] }, t("requeue.soon", { n: number(count) }), { then })}>${t("requeue")}</button>
      <${Careful} label=${t("remove")} question=${t("remove.all", { n: number(count), queue: name })} order=${{ action: "remove_group", queue: name, names: [key] }} then=${then} /></div>`, "n"]);
  }
  return html`<div class="card"><h2>${least < 2 && html`${link("dead", name)} · `}${t("dead-groups")}</h2><${Table} label=${t("dead-groups")} columns=${columns} rows=${found.groups} />
    ${found.examined < found.of && html`<p class="quiet">${t("examined", { n: number(found.examined), of: number(found.of) })}</p>`}</div>`;
}

function DeadOf({ name, offset, mayAct }) {
  const [page, error, again] = useAnswer(`dead/${encodeURIComponent(name)}?offset=${offset}`);
  const [chosen, choose] = useState(new Set());
  if (!page) return html`<h1>${name}</h1><${Problem} error=${error} /><${Loading} answer=${page} error=${error} />`;
  const then = () => { choose(new Set()); again(); };
  const toggle = (id) => choose((old) => { const next = new Set(old); if (!next.delete(id)) next.add(id); return next; });
  const all = page.letters.every((letter) => chosen.has(letter.id)) && page.letters.length > 0;
  const box = html`<input type="checkbox" aria-label=${t("choose-all")} checked=${all} onChange=${() => choose(all ? new Set() : new Set(page.letters.map((letter) => letter.id)))} />`;
  const columns = [
    [t("job"), (letter) => html`<div class="mono">${link("job", letter.id, shortId(letter.id))}</div><span class="row start">${letter.task && jobsLink(name, { state: "dead", task: letter.task })} ${letter.tenant && jobsLink(name, { state: "dead", tenant: letter.tenant })}</span>`],
    [t("reason"), (letter) => html`<details><summary>${letter.reason || "?"}</summary><pre tabindex="0">${letter.traceback || letter.body}</pre></details>`],
    [t("died"), (letter) => html`<span title=${time(letter.died)}>${age(Math.max(0, page.now - letter.died))}</span>`, "n"],
    [t("attempts"), (letter) => number(letter.attempts), "n"],
    [t("worker"), (letter) => workerLink(letter.worker)],
  ];
  if (mayAct) columns.unshift([box, (letter) => html`<input type="checkbox" aria-label=${t("choose", { id: letter.id })} checked=${chosen.has(letter.id)} onChange=${() => toggle(letter.id)} />`, "tight"]);
  const ids = [...chosen], until = Math.floor(page.now * 1000);
  return html`
    <div class="head"><h1>${t("dead-of", { queue: name })}</h1><span class="quiet">${number(page.total)}</span>
      ${mayAct && html`<div class="rest">
        ${ids.length > 0 ? html`
          <button class="main" onClick=${() => later({ action: "requeue", ids }, t("requeue.soon", { n: ids.length }), { then })}>${t("requeue.n", { n: ids.length })}</button>
          <${Careful} label=${t("remove.n", { n: ids.length })} question=${t("remove.chosen", { n: ids.length })} order=${{ action: "remove", ids }} then=${then} />` : html`
          <button disabled=${!page.total} onClick=${() => later({ action: "requeue_all", queue: name, until }, t("requeue.soon", { n: number(page.total) }), { then })}>${t("requeue-all")}</button>
          <${Careful} label=${t("remove-all")} disabled=${!page.total} question=${t("remove.all", { n: number(page.total), queue: name })} order=${{ action: "remove_all", queue: name, until }} then=${then} />`}
      </div>`}</div>
    <${Problem} error=${error} />
    ${offset === 0 && html`<${DeadGroups} key=${page.total} name=${name} mayAct=${mayAct} then=${then} />`}
    <div class="card"><${Table} label=${t("page.dead")} columns=${columns} rows=${page.letters} none=${t("none.dead")} /></div>
    <div class="head">
      ${offset > 0 && html`<a href=${`#/dead/${encodeURIComponent(name)}?offset=${Math.max(0, offset - page.page)}`}>${t("newer")}</a>`}
      ${offset + page.page < page.total && html`<a href=${`#/dead/${encodeURIComponent(name)}?offset=${offset + page.page}`}>${t("older")}</a>`}
    </div>`;
}
