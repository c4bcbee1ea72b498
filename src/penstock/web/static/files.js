// The channels of files, and the files that a receiver could not save.

import { html, useEffect, useState } from "./ui.js";
import { Careful, Loading, Problem, Table, Tag, act, mono, seen, teach, useAnswer } from "./components.js";
import { number, rate, size, t } from "./text.js";

function Receivers({ channel, now }) {
  return html`<${Table} label=${t("receivers")} rows=${channel.receivers} none=${t("none.receivers")} columns=${[
    [t("receiver"), (row) => mono(row.name)], [t("state"), (row) => t(`receiver.${row.state}`)],
    [t("behind"), (row) => t("records", { n: number(row.behind) }), "n"],
    [t("dead-files"), (row) => (row.dead_files ? html`<a href=${`#/deadfiles/${encodeURIComponent(channel.name)}?receiver=${encodeURIComponent(row.name)}`}>${number(row.dead_files)}</a>` : "0"), "n"], [t("process"), (row) => mono(row.holder)], [t("heard-of"), (row) => seen(now, row.seen)]]} />`;
}

export function Files() {
  const [answer, error] = useAnswer("files", 2000);
  const [before, keep] = useState({});
  useEffect(() => {
    if (!answer) return;
    keep((old) => Object.fromEntries(answer.channels.map((channel) => {
      const last = old[channel.name], seconds = last ? answer.now - last.at : 0;
      const speed = seconds > 0 ? Math.max(0, (channel.last - last.last) / seconds) : 0;
      return [channel.name, { at: answer.now, last: channel.last, speed }];
    })));
  }, [answer]);
  return html`<h1>${t("page.files")}</h1><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && !answer.channels.length && html`<div class="card none">${teach(t("none.channels"), 'app.files("access").send(["access.log"], receivers=["agg-1"])')}</div>`}
    ${answer?.channels.map((channel) => html`<div class="card" key=${channel.name}>
      <div class="head"><h2 class="mono">${channel.name}</h2>
        <${Tag} state=${channel.closed ? "" : "good"}>${t(channel.closed ? "closed" : "open")}<//>
        <span class="quiet">${t("sending", { n: channel.sending })} · ${t("blocks-per-second", { n: rate(before[channel.name]?.speed) })}</span></div>
      <p>${t("window", { held: size(channel.bytes), limit: size(channel.limit), peak: size(channel.peak) })}</p>
      <div class="bar" role="img" aria-label=${t("window", { held: size(channel.bytes), limit: size(channel.limit), peak: size(channel.peak) })}><i style=${{ width: `${(100 * channel.bytes) / channel.limit}%` }}></i></div>
      <p></p><${Receivers} channel=${channel} now=${answer.now} /></div>`)}`;
}

/** The files that a receiver could not save. */
export function DeadFiles({ name, filter, mayAct }) {
  const receiver = filter.get("receiver") || "", path = new URLSearchParams({ channel: name, receiver });
  const [answer, error, again] = useAnswer(`dead-files?${path}`);
  const order = (action, row) => ({ action, names: [name, receiver], ids: [row.id] });
  const columns = answer && [
    [t("file"), (row) => html`${mono(row.name || "?")}<div class="quiet">${row.source}</div>`],
    [t("reason"), (row) => html`<details><summary>${row.error}</summary><pre tabindex="0">${row.kept || t("not-kept")}</pre></details>`],
    [t("died"), (row) => seen(answer.now, row.died), "n"],
    [t("state"), (row) => (row.is_retried ? t("file-retried") : t(row.kept ? "file-kept" : "not-kept"))],
  ];
  if (columns && mayAct) {
    columns.push([t("actions"), (row) => html`<div class="row">
      <button disabled=${!row.kept || row.is_retried} onClick=${() => act(order("retry_files", row), { then: again })}>${t("retry-file")}</button>
      <${Careful} label=${t("remove")} question=${t("remove.file", { name: row.name })} order=${order("remove_files", row)} then=${again} /></div>`, "n"]);
  }
  return html`<div class="head"><h1>${t("dead-files-of", { receiver, channel: name })}</h1>${answer && html`<span class="quiet">${number(answer.total)}</span>`}<a href="#/files">${t("page.files")}</a></div>
    <${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && html`<div class="card"><${Table} label=${t("dead-files")} columns=${columns} rows=${answer.files} none=${t("none.dead-files")} /></div>`}`;
}
