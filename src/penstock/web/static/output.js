// What a job emits: the newest chunks, further ones until it has ended, and earlier ones on demand.

import { html, useEffect, useRef, useState } from "./ui.js";
import { Tag, ask } from "./components.js";
import { age, number, t } from "./text.js";

const KEPT = 200000; // characters that the page keeps while it follows
const PAUSE = 250; // ms between two answers, however fast chunks come
const LATER = 2000; // ms until the page looks again: after a failure, while nobody sees it, and while the job waits

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
  const asks = useRef(false); // whether a request for earlier chunks is under way
  const path = `output/${encodeURIComponent(job.id)}`, runs = job.status === "running";
  useEffect(() => {
    let ended = false, looked = last.current !== "", timer;
    const look = async () => {
      if (document.hidden && looked) { timer = setTimeout(look, LATER); return; }
      const query = new URLSearchParams({ ...(last.current && { after: last.current }), ...(runs && { follow: "" }) });
      let found, fault;
      try { found = await ask(`${path}?${query}`); } catch (error) { fault = error; }
      if (ended) return;
      if (fault) {
        set((old) => ({ ...old, follows: false }));
        if (fault.status !== 404) timer = setTimeout(look, LATER); // 404: there is no output any more
        return;
      }
      looked = true;
      const isFirst = !last.current;
      last.current = found.parts.at(-1)?.id ?? last.current;
      set((old) => {
        // What the earlier chunks are to be joined to must not go meanwhile.
        const all = joined(old.parts, found.parts), parts = newest(all, asks.current ? Infinity : room.current);
        return { parts, earlier: (isFirst ? found.earlier : old.earlier) || parts.length < all.length, follows: runs && !found.ended };
      });
      // Also if the job does not run any more: one answer may not hold all that it emitted before its end.
      if (!found.ended) timer = setTimeout(look, runs || found.parts.length ? PAUSE : LATER);
    };
    look();
    return () => { ended = true; clearTimeout(timer); };
  }, [path, job.status, job.deliveries]);
  const earlier = async () => {
    if (asks.current) return;
    asks.current = true;
    const first = state.parts[0].id;
    let found;
    try {
      found = await ask(`${path}?before=${first}`);
    } catch (error) {
      if (error.status === 404) found = { parts: [], earlier: false }; // else the button stays, to be tried again
    }
    asks.current = false;
    if (!found) return;
    set((old) => {
      if (old.parts[0].id !== first) return old; // a click on what was drawn before these came, or a new job of this id
      room.current += found.parts.reduce((total, part) => total + part.text.length, 0);
      return { ...old, parts: [...found.parts, ...old.parts], earlier: found.earlier };
    });
  };
  return [state, earlier];
}

/** The chunks of one run. Its end stays in view while more comes, unless somebody scrolls up. */
function Run({ parts }) {
  const place = useRef(), isAtEnd = useRef(true);
  useEffect(() => { if (isAtEnd.current) place.current.scrollTop = place.current.scrollHeight; }, [parts]);
  const scrolled = ({ target }) => { isAtEnd.current = target.scrollTop + target.clientHeight >= target.scrollHeight - 8; };
  return html`<pre class="output" tabindex="0" ref=${place} onScroll=${scrolled}>${parts.map((part) => html`${part.missed > 0 && html`<i class="quiet">${t("output.missed", { n: number(part.missed) })}</i>${"\n"}`}${part.text}`)}</pre>`;
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
