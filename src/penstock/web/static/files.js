// The channels of files, and the files that a receiver could not save.

import { html, useEffect, useState } from "./ui.js";
import { Careful, Choice, Loading, Menu, Problem, Table, Tag, act, mono, seen, teach, useAnswer } from "./components.js";
import { age, number, rate, size, t } from "./text.js";

/** What a receiver has got per second since the last answer, and how long the rest takes at that speed. */
function left(row, speed) {
  if (!row.behind) return t("nothing-left");
  return speed > 0 ? t("left-at", { n: rate(speed), age: age(row.behind / speed) }) : t("stands");
}

/** The files that a receiver has begun, each with its bytes, and how long the rest takes at the speed since the last answer. */
function Begun({ row, speeds }) {
  return row.files.map((file) => {
    const speed = speeds[`${row.name} ${file.name}`], rest = file.size - file.received;
    return html`<div><span class="mono">${file.name}</span> <span class="quiet">${file.size ? t("file-of", { n: size(file.received), of: size(file.size) }) : size(file.received)}${speed > 0 && html` · ${t("bytes-per-second", { n: size(speed) })}${rest > 0 && ` · ${t("due-in", { age: age(rest / speed) })}`}`}</span>
      ${file.size > 0 && html`<div class="bar" aria-hidden="true"><i style=${{ width: `${Math.min(100, (100 * file.received) / file.size)}%` }}></i></div>`}</div>`;
  });
}

function Receivers({ channel, now, speeds, mayAct, again }) {
  const columns = [
    [t("receiver"), (row) => mono(row.name)], [t("state"), (row) => t(`receiver.${row.state}`)],
    [t("behind"), (row) => t("records", { n: number(row.behind) }), "n"],
    [t("file"), (row) => html`<${Begun} row=${row} speeds=${speeds} />`],
    [t("remaining"), (row) => left(row, speeds[row.name]), "n"],
    [t("dead-files"), (row) => (row.dead_files ? html`<a href=${`#/deadfiles/${encodeURIComponent(channel.name)}?receiver=${encodeURIComponent(row.name)}`}>${number(row.dead_files)}</a>` : "0"), "n"], [t("process"), (row) => mono(row.holder)], [t("heard-of"), (row) => seen(now, row.seen)],
  ];
  if (mayAct) columns.push([t("actions"), (row) => html`<${Menu} name=${row.name}><${Choice} what=${t("receiver.remove")}><${Careful} label=${t("remove")} then=${again}
    question=${t("remove.receiver", { receiver: row.name, channel: channel.name, n: number(row.behind) })} order=${{ action: "remove_receiver", names: [channel.name, row.name] }} /><//><//>`, "n"]);
  return html`<${Table} label=${t("receivers")} rows=${channel.receivers} none=${t("none.receivers")} columns=${columns} />`;
}

/** How far the sender and each receiver of a channel are, to compare two answers. */
const places = (channel) => ({ "": channel.last, ...Object.fromEntries(channel.receivers.flatMap((row) => [[row.name, channel.last - row.behind], ...row.files.map((file) => [`${row.name} ${file.name}`, file.received])])) });

function speedsOf(channel, now, before) {
  const here = places(channel), seconds = before ? now - before.at : 0;
  const speeds = Object.fromEntries(Object.entries(here).map(([name, at]) => [name, seconds > 0 ? Math.max(0, (at - (before.here[name] ?? at)) / seconds) : 0]));
  return { at: now, here, speeds };
}

export function Files({ mayAct }) {
  const [answer, error, again] = useAnswer("files", 2000);
  const [before, keep] = useState({});
  useEffect(() => {
    if (answer) keep((old) => Object.fromEntries(answer.channels.map((channel) => [channel.name, speedsOf(channel, answer.now, old[channel.name])])));
  }, [answer]);
  return html`<h1>${t("page.files")}</h1><${Problem} error=${error} /><${Loading} answer=${answer} error=${error} />
    ${answer && !answer.channels.length && html`<div class="card none">${teach(t("none.channels"), 'app.files("access").send(["access.log"], receivers=["agg-1"])')}</div>`}
    ${answer?.channels.map((channel) => html`<div class="card" key=${channel.name}>
      <div class="head"><h2 class="mono">${channel.name}</h2>
        <${Tag} state=${channel.closed ? "" : "good"}>${t(channel.closed ? "closed" : "open")}<//>
        <span class="quiet">${t("sending", { n: channel.sending })} · ${t("blocks-per-second", { n: rate(before[channel.name]?.speeds[""]) })}</span></div>
      <p>${t("window", { held: size(channel.bytes), limit: size(channel.limit), peak: size(channel.peak) })}</p>
      <div class="bar" role="img" aria-label=${t("window", { held: size(channel.bytes), limit: size(channel.limit), peak: size(channel.peak) })}><i style=${{ width: `${(100 * channel.bytes) / channel.limit}%` }}></i></div>
      <p></p><${Receivers} channel=${channel} now=${answer.now} speeds=${before[channel.name]?.speeds ?? {}} mayAct=${mayAct} again=${again} /></div>`)}`;
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
