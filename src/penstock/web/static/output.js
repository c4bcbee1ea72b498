// What a job emits: the newest chunks, further ones while it runs, and earlier ones on demand.

import { html, useEffect, useRef, useState } from "./ui.js";
import { Tag, ask } from "./components.js";
import { age, number, t } from "./text.js";

const KEPT = 200000; // characters that the page keeps while it follows
const PAUSE = 250; // ms between two answers, however fast chunks come

const began = (part) => part.id.split("-")[1];

/** Both in order. What belongs to an earlier job with this id goes. */
const joined = (old, fresh) => (old.length && fresh.length && began(old[0]) !== began(fresh[0]) ? fresh : [...old, ...fresh]);

/** The last parts, of at most `room` characters. */
function newest(parts, room) {
  let first = parts.length;
  while (first > 0 && (first === parts.length || room >= parts[first - 1].text.length)) room -= parts[--first].text.length;
  return first > 0 ? parts.slice(first) : parts;
}

/** The output of a job: { parts, earlier, follows }, and a function that fetches what comes before. */
function useOutput(job) {
  const [state, set] = useState({ parts: [], earlier: false, follows: false }), room = useRef(KEPT), last = useRef("");
  const path = `output/${encodeURIComponent(job.id)}`, runs = job.status === "running";
  useEffect(() => {
    let ended = false, timer;
    const look = async () => {
      if (document.hidden && last.current) { timer = setTimeout(look, 2000); return; }
      const query = new URLSearchParams({ ...(last.current && { after: last.current }), ...(runs && { follow: "" }) });
      let found;
      try { found = await ask(`${path}?${query}`); } catch { found = null; }
      if (ended) return;
      if (!found) { set((old) => ({ ...old, follows: false })); return; } // there is no output any more
      const isFirst = !last.current;
      last.current = found.parts.at(-1)?.id ?? last.current;
      set((old) => {
        const all = joined(old.parts, found.parts), parts = newest(all, room.current);
        return { parts, earlier: (isFirst ? found.earlier : old.earlier) || parts.length < all.length, follows: runs && !found.ended };
      });
      if (runs && !found.ended) timer = setTimeout(look, PAUSE);
    };
    look();
    return () => { ended = true; clearTimeout(timer); };
  }, [path, runs, job.deliveries]);
  const earlier = async () => {
    const found = await ask(`${path}?before=${state.parts[0].id}`).catch(() => ({ parts: [], earlier: false }));
    room.current += found.parts.reduce((total, part) => total + part.text.length, 0);
    set((old) => ({ ...old, parts: [...found.parts, ...old.parts], earlier: found.earlier }));
  };
  return [state, earlier];
}

/** The chunks of one run. Its end stays in view while more comes, unless somebody scrolls up. */
function Run({ parts }) {
  const place = useRef(), isAtEnd = useRef(true);
  useEffect(() => { if (isAtEnd.current) place.current.scrollTop = place.current.scrollHeight; }, [parts]);
  const scrolled = ({ target }) => { isAtEnd.current = target.scrollTop + target.clientHeight >= target.scrollHeight - 8; };
  return html`<pre class="output" tabindex="0" ref=${place} onScroll=${scrolled}>${parts.map((part) => html`${part.missed > 0 && html`<i class="quiet">${t("output.missed", { n: number(part.missed) })}</i>\n`}${part.text}`)}</pre>`;
}

export function Output({ job }) {
  const [{ parts, earlier, follows }, fetchEarlier] = useOutput(job);
  if (!parts.length) return null;
  const runs = [];
  for (const part of parts) {
    if (runs.at(-1)?.attempt !== part.attempt) runs.push({ attempt: part.attempt, parts: [] });
    runs.at(-1).parts.push(part);
  }
  const last = runs.pop(), latest = last.parts.at(-1).at;
  return html`<div class="card"><div class="head"><h2>${t("output")}</h2>
      ${follows && html`<${Tag} state="good">${t("output.follows")}<//>`}
      <span class="quiet">${t("output.latest", { age: age(Math.max(0, job.now - latest)) })}</span>
      ${earlier && html`<div class="rest"><button onClick=${fetchEarlier}>${t("output.earlier")}</button></div>`}</div>
    ${runs.map((run) => html`<details key=${run.attempt} class="run"><summary>${t("output.attempt", { n: number(run.attempt) })}</summary><${Run} parts=${run.parts} /></details>`)}
    <p>${t("output.attempt", { n: number(last.attempt) })} ${last.attempt > 1 && html`<${Tag}>${t("output.newest")}<//>`}</p>
    <${Run} key=${last.attempt} parts=${last.parts} /></div>`;
}
