// What a job reports while it runs: its output, the newest chunks and earlier ones on demand; and its log.

import { html, useEffect, useRef, useState } from "./ui.js";
import { Table, Tag, ask } from "./components.js";
import { age, clock, number, t, time } from "./text.js";

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

/** Asks for what a job reports, and again for what comes behind the last part, until it has ended: `take` gets each answer. */
function useFollowed(path, job, take, fail) {
  const last = useRef(""), runs = job.status === "running";
  useEffect(() => {
    let ended = false, looked = last.current !== "", timer;
    const look = async () => {
      if (document.hidden && looked) { timer = setTimeout(look, LATER); return; }
      const query = new URLSearchParams({ ...(last.current && { after: last.current }), ...(runs && { follow: "" }) });
      let found, fault;
      try { found = await ask(`${path}?${query}`); } catch (error) { fault = error; }
      if (ended) return;
      if (fault) {
        fail();
        if (fault.status !== 404) timer = setTimeout(look, LATER); // 404: there is nothing any more
        return;
      }
      looked = true;
      const isFirst = !last.current;
      last.current = found.parts.at(-1)?.id ?? last.current;
      take(found, isFirst, runs && !found.ended);
      // Also if the job does not run any more: one answer may not hold all that it reported before its end.
      if (!found.ended) timer = setTimeout(look, runs || found.parts.length ? PAUSE : LATER);
    };
    look();
    return () => { ended = true; clearTimeout(timer); };
  }, [path, job.status, job.deliveries]);
}

/** The output of a job: { parts, earlier, follows }, and a function that fetches what comes before. */
function useOutput(job) {
  const [state, set] = useState({ parts: [], earlier: false, follows: false }), room = useRef(KEPT);
  const asks = useRef(false); // whether a request for earlier chunks is under way
  const path = `output/${encodeURIComponent(job.id)}`;
  const take = (found, isFirst, follows) => set((old) => {
    // What the earlier chunks are to be joined to must not go meanwhile.
    const all = joined(old.parts, found.parts), parts = newest(all, asks.current ? Infinity : room.current);
    return { parts, earlier: (isFirst ? found.earlier : old.earlier) || parts.length < all.length, follows };
  });
  useFollowed(path, job, take, () => set((old) => ({ ...old, follows: false })));
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

/** Lines that the page keeps while it follows, and those that it shows at first and shows more of at each click. */
const KEPT_LINES = 2000, SHOWN_LINES = 20;

/** What a job logs, the newest line first. */
export function Log({ job }) {
  const [{ lines, follows }, set] = useState({ lines: [], follows: false }), [shown, show] = useState(SHOWN_LINES);
  useFollowed(`log/${encodeURIComponent(job.id)}`, job, (found, isFirst, goesOn) => set((old) => ({ lines: [...old.lines, ...found.parts].slice(-KEPT_LINES), follows: goesOn })),
    () => set((old) => ({ ...old, follows: false })));
  if (!lines.length) return null;
  const rows = lines.slice(-shown).reverse();
  return html`<div class="card log"><div class="head"><h2>${t("log")}</h2>${follows && html`<${Tag} state="good">${t("output.follows")}<//>`}
      <span class="quiet">${t("log.kept")}</span></div>
    <${Table} label=${t("log")} rows=${rows} columns=${[[t("time"), (line) => html`<span title=${time(line.at)}>${clock(line.at)}</span>`, "tight"], [t("log.line"), (line) => html`<code>${line.text}</code>`]]} />
    ${lines.length > shown && html`<p><button onClick=${() => show(shown + 5 * SHOWN_LINES)}>${t("log.earlier", { n: number(lines.length - shown) })}</button></p>`}</div>`;
}
