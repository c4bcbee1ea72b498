// One mailbox: its latest messages, and which of them its owner has read.

import { html } from "./ui.js";
import { body } from "./chat.js";
import { Fact, Loading, Problem, Table, Tag, mono, seen, teach, useAnswer } from "./components.js";
import { number, size, t, time } from "./text.js";

export function Mailbox({ name }) {
  const [answer, error] = useAnswer(`mailboxes/${encodeURIComponent(name)}`);
  const { mailbox, messages, now } = answer ?? {};
  return html`<div class="head"><h1>${name}</h1><a href="#/messages">${t("page.messages")}</a></div>
    <${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="facts">
      <${Fact} name=${t("unread")} value=${number(mailbox.unread)} /><${Fact} name=${t("claimed")} value=${number(mailbox.claimed)} />
      <${Fact} name=${t("dead")} value=${number(mailbox.dead)} state=${mailbox.dead ? "bad" : ""} />
      <${Fact} name=${t("last-number")} value=${number(mailbox.last)} more=${size(mailbox.bytes)} />
      <${Fact} name=${t("pulled")} value=${seen(now, mailbox.pulled)} /></div>
    <div class="card"><h2>${t("messages")}</h2><${Table} label=${t("messages")} rows=${messages} none=${teach(t("none.messages"), `app.mailbox("${name}").post({"text": "hi"})`)} columns=${[
      [t("number"), (row) => number(row.number), "n tight"], [t("sender"), (row) => mono(row.sender), "tight"], [t("sent"), (row) => html`<span title=${time(row.at)}>${seen(now, row.at)}</span>`, "tight"],
      [t("message"), body], [t("state"), (row) => html`<${Tag} state=${row.read_by ? "" : "warn"}>${t(row.read_by ? "message.read" : "message.unread")}<//>`, "tight"]]} /></div>`}`;
}
