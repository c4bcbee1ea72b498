// Mailboxes, chats, and the names of directories.

import { html, useEffect, useState } from "./ui.js";
import { Loading, Problem, ShowAll, Table, Tag, alone, ask, link, mono, onlyNamed, seen, teach, useAnswer } from "./components.js";
import { number, size, t } from "./text.js";

export function Messages() {
  const [answer, error] = useAnswer("messages");
  return html`<h1>${t("page.messages")}</h1><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><h2>${t("mailboxes")}</h2><${Table} label=${t("mailboxes")} none=${teach(t("none.mailboxes"), 'app.mailbox("user:17").post({"text": "hi"})')} rows=${answer.mailboxes} columns=${[
      [t("name"), (row) => link("mailbox", row.name)], [t("unread"), (row) => number(row.unread), "n"], [t("claimed"), (row) => number(row.claimed), "n"],
      [t("dead"), (row) => (row.dead ? html`<${Tag} state="bad">${number(row.dead)}<//>` : "0"), "n"], [t("last-number"), (row) => number(row.last), "n"],
      [t("kept"), (row) => size(row.bytes), "n"], [t("pulled"), (row) => seen(answer.now, row.pulled)]]} /></div>
    <div class="card"><h2>${t("chats")}</h2><${Table} label=${t("chats")} none=${teach(t("none.chats"), 'app.chats.create(["ada", "bo"], id="ops")')} rows=${answer.chats} by=${(row) => row.chat.id} columns=${[
      [t("name"), (row) => link("chat", row.chat.id)], [t("members"), (row) => number(row.chat.readers), "n"],
      [t("kept-messages"), (row) => number(row.chat.last - row.chat.first + 1), "n"], [t("kept"), (row) => size(row.chat.bytes), "n"],
      [t("furthest-behind"), (row) => (row.last_reader?.unread ? html`${mono(row.last_reader.name)} <span class="quiet">${t("unread-n", { n: number(row.last_reader.unread) })}</span>` : t("nobody"))],
      [t("pulled"), (row) => (row.last_reader?.unread ? seen(answer.now, row.last_reader.seen) : "")]]} /></div>`}`;
}

export function Directories({ name }) {
  const [answer, error] = useAnswer("directories", 15000);
  return html`<h1>${t("page.directories")}</h1><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    <${ShowAll} page="directories" name=${name} />
    ${answer && name && !onlyNamed(answer.directories, name).length && html`<div class="card none">${t("none.of-name")}</div>`}
    ${answer && !name && !answer.directories.length && html`<div class="card none">${teach(t("none.directories"), 'app.directory("guild:9").add("Ann")')}</div>`}
    ${answer && onlyNamed(answer.directories, name).map((directory) => html`<${Directory} key=${directory.name} directory=${directory} />`)}`;
}

function Directory({ directory }) {
  const [text, type] = useState(""), [found, set] = useState([]), [error, fail] = useState("");
  useEffect(() => {
    let ended = false;
    if (!text) { set([]); return; }
    ask(`complete/${encodeURIComponent(directory.name)}?q=${encodeURIComponent(text)}`)
      .then((answer) => { if (!ended) { set(answer.entries); fail(""); } })
      .catch((problem) => { if (!ended) fail(problem.message); });
    return () => { ended = true; };
  }, [text]);
  return html`<div class="card"><div class="head"><h2>${alone("directories", directory.name)}</h2><span class="quiet">${t("names", { n: number(directory.names) })}</span></div>
    <input type="search" value=${text} placeholder=${t("complete")} aria-label=${t("complete-in", { name: directory.name })} onInput=${(event) => type(event.target.value)} />
    <${Problem} error=${error} />
    ${text && html`<p></p><${Table} label=${directory.name} none=${t("none.names")} rows=${found} columns=${[[t("name"), (row) => row.name], ["id", (row) => mono(row.id)]]} />`}</div>`;
}
