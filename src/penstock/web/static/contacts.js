// The contacts of users: the lists, and the names in one of them.

import { html, useState } from "./ui.js";
import { Careful, Loading, Problem, Table, link, teach, useAnswer } from "./components.js";
import { number, t } from "./text.js";

const Search = ({ words, set }) => html`<input type="search" placeholder=${words} aria-label=${words} onInput=${(event) => set(event.target.value)} />`;

export function Contacts({ name, mayAct }) {
  return name ? html`<${OneList} name=${name} mayAct=${mayAct} />` : html`<${Lists} />`;
}

function Lists() {
  const [text, type] = useState("");
  const [answer, error] = useAnswer(`contacts?q=${encodeURIComponent(text)}`, 15000);
  return html`<h1>${t("page.contacts")}</h1><${Problem} error=${error} />
    <div class="card"><${Search} words=${t("find-list")} set=${type} /><p></p><${Loading} answer=${answer} error=${error} />
    ${answer && html`<${Table} label=${t("page.contacts")} rows=${answer.names.map((one) => ({ name: one }))} columns=${[[t("name"), (row) => link("contacts", row.name)]]}
      none=${teach(t(text ? "none.lists" : "none.contacts"), text ? "" : 'app.contacts("user:17").touch("Zoë")')} />
    ${answer.total > answer.names.length && html`<p class="quiet">${t("and-more", { n: number(answer.total - answer.names.length) })}</p>`}`}</div>`;
}

function OneList({ name, mayAct }) {
  const [text, type] = useState("");
  const [answer, error, again] = useAnswer(`contacts/${encodeURIComponent(name)}?q=${encodeURIComponent(text)}`);
  const columns = [[t("name"), (row) => row.name]];
  if (mayAct) {
    columns.push([t("actions"), (row) => html`<${Careful} label=${t("remove")} then=${again} order=${{ action: "remove_contact", names: [name, row.name] }}
      question=${t("remove.contact", { name: row.name, list: name })} />`, "n"]);
  }
  return html`<div class="head"><h1>${name}</h1>${answer && html`<span class="quiet">${t("names", { n: number(answer.total) })}</span>`}<a href="#/contacts">${t("page.contacts")}</a></div>
    <${Problem} error=${error} />
    <div class="card"><${Search} words=${t("complete-in", { name })} set=${type} /><p></p><${Loading} answer=${answer} error=${error} />
    ${answer && html`<${Table} label=${name} rows=${answer.contacts.map((one) => ({ name: one }))} columns=${columns} none=${t("none.names")} />`}</div>`;
}
