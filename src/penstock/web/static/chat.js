// One chat: its latest messages, and which readers have read each of them.

import { html } from "./ui.js";
import { Fact, Loading, Problem, Table, Tag, mono, seen, teach, useAnswer } from "./components.js";
import { number, size, t, time } from "./text.js";

const named = (reader) => (reader.device ? `${reader.name} · ${reader.device}` : reader.name);
const hasRead = (reader, message) => reader.read >= message.number || reader.name === message.sender;

/** Who has read a message, and who has not, behind a summary that counts them. */
function Readers({ message, readers }) {
  const parts = [["not-read", readers.filter((one) => !hasRead(one, message))], ["has-read", readers.filter((one) => hasRead(one, message))]];
  return html`<details><summary>${t("read-by", { n: number(message.read_by), of: number(readers.length) })}</summary>
    ${parts.filter(([, some]) => some.length).map(([word, some]) => html`<p><span class="quiet">${t(word)}</span> ${mono(some.slice(0, 100).map(named).join(", "))}
      ${some.length > 100 && html` <span class="quiet">${t("and-more", { n: number(some.length - 100) })}</span>`}</p>`)}</details>`;
}

/** What a message says; a long one behind a summary. */
export function body(message) {
  if (message.event || message.redacted) return html`<${Tag} state="warn">${t(`message.${message.event || "redacted"}`)}<//>`;
  const line = message.body.replace(/\s+/g, " ");
  return html`${message.edited && html`<${Tag}>${t("message.edited")}<//> `}${line.length > 80 ? html`<details><summary class="mono">${line.slice(0, 80)} …</summary><pre tabindex="0">${message.body}</pre></details>` : mono(line)}`;
}

export function Chat({ name }) {
  const [answer, error] = useAnswer(`chats/${encodeURIComponent(name)}`);
  const { chat, readers, messages, now } = answer ?? {};
  return html`<div class="head"><h1>${name}</h1><a href="#/messages">${t("page.messages")}</a></div>
    <${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="facts">
      <${Fact} name=${t("members")} value=${number(chat.readers)} /><${Fact} name=${t("last-number")} value=${number(chat.last)} />
      <${Fact} name=${t("kept-messages")} value=${number(chat.last - chat.first + 1)} more=${size(chat.bytes)} />
      <${Fact} name=${t("behind")} value=${number(readers.filter((one) => one.unread).length)} more=${t("of-readers", { n: number(readers.length) })} /></div>
    <div class="card"><h2>${t("messages")}</h2><${Table} label=${t("messages")} rows=${messages} none=${teach(t("none.messages"), `app.chats.get("${name}").send("ada", {"text": "hi"})`)} columns=${[
      [t("number"), (row) => number(row.number), "n tight"], [t("sender"), (row) => mono(row.sender), "tight"], [t("sent"), (row) => html`<span title=${time(row.at)}>${seen(now, row.at)}</span>`, "tight"],
      [t("message"), body], [t("readers"), (row) => html`<${Readers} message=${row} readers=${readers} />`]]} /></div>
    <div class="card"><h2>${t("readers")}</h2><${Table} label=${t("readers")} rows=${readers} by=${named} columns=${[
      [t("name"), (row) => mono(named(row))], [t("read-up-to"), (row) => number(row.read), "n"], [t("unread"), (row) => number(row.unread), "n"], [t("pulled"), (row) => seen(now, row.seen)]]} /></div>`}`;
}
