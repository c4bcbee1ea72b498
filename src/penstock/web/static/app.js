// The frame: navigation, the live connection, and the page that the address names.

import { html, render, useEffect, useRef, useState } from "./ui.js";
import { PAGES } from "./pages.js";
import { Toasts } from "./components.js";
import { LANGUAGES, chooseLanguage, language, number, t } from "./text.js";

/** Pages that belong to one of the navigation. */
const PARTS = { queue: "overview", job: "jobs", deadfiles: "files", chat: "messages", mailbox: "messages" };

const NAVIGATION = ["overview", "jobs", "tasks", "dead", "schedules", "workers", "locks", "rates", "messages", "files", "directories", "contacts", "health"];

/** After g, this key goes to the page. */
const KEYS = { overview: "o", jobs: "j", tasks: "t", dead: "d", schedules: "s", workers: "w", locks: "l", rates: "r", messages: "m", files: "f", directories: "i", contacts: "c", health: "h" };

const nameOf = (page) => t(`page.${page === "jobs" ? "find" : page}`);

/** The page, its argument and its filters: #/queue/mail?offset=50 */
function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/");
  return { page: PAGES[page] ? page : "overview", name: decodeURIComponent(rest.join("/")), filter: new URLSearchParams(query) };
}

function useAddress() {
  const [where, go] = useState(address());
  useEffect(() => {
    const changed = () => { go(address()); document.querySelector("main")?.focus(); };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return where;
}

/** The overview, live. Between two connections the last one stays, marked as old. */
function useLive() {
  const [live, set] = useState({});
  useEffect(() => {
    let events;
    const first = fetch("api/overview").then((answer) => answer.json());
    first.then((one) => set((old) => ({ ...old, ...one }))).catch(() => {});
    const open = () => {
      events = new EventSource("api/live");
      events.onmessage = (event) => {
        const one = JSON.parse(event.data);
        set((old) => (one.error ? { ...old, lost: one.error } : { ...old, ...one, lost: "" }));
      };
      events.onerror = () => set((old) => ({ ...old, lost: t("disconnected") }));
    };
    // A hidden page asks nothing.
    const look = () => { if (document.hidden) events.close(); else open(); };
    open();
    document.addEventListener("visibilitychange", look);
    return () => { events.close(); document.removeEventListener("visibilitychange", look); };
  }, []);
  return live;
}

/** Moves the focus to the first link of the next row, or of the one before. */
function focusRow(step) {
  const rows = [...document.querySelectorAll("main tbody tr")].map((row) => row.querySelector("a, button, summary")).filter(Boolean);
  const here = rows.findIndex((one) => one.closest("tr").contains(document.activeElement));
  rows[Math.max(0, Math.min(rows.length - 1, here < 0 ? 0 : here + step))]?.focus();
}

/** The search for a job, which is on the overview. */
function focusSearch() {
  const field = document.querySelector("#find");
  if (field) { field.focus(); return; }
  location.hash = "#/overview";
  const waits = new MutationObserver(() => {
    const found = document.querySelector("#find");
    if (found) { waits.disconnect(); found.focus(); }
  });
  waits.observe(document.body, { childList: true, subtree: true });
}

function useKeys() {
  const help = useRef();
  useEffect(() => {
    let before = "";
    const pressed = (event) => {
      if (event.target.closest("input, select, dialog, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = before === "g" && Object.keys(KEYS).find((name) => KEYS[name] === event.key);
      if (page) location.hash = `#/${page}`;
      else if (event.key === "/") { event.preventDefault(); focusSearch(); }
      else if (event.key === "?") help.current.showModal();
      else if (event.key === "j" || event.key === "k") focusRow(event.key === "j" ? 1 : -1);
      before = page ? "" : event.key;
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  const key = (name) => html`<kbd>${name}</kbd>`;
  return html`<dialog ref=${help} class="keys" aria-labelledby="keys"><h2 id="keys">${t("keys")}</h2>
    <dl><dt>${key("/")}</dt><dd>${t("keys.find")}</dd><dt>${key("j")} ${key("k")}</dt><dd>${t("keys.rows")}</dd>
      ${NAVIGATION.map((name) => html`<dt>${key("g")} ${key(KEYS[name])}</dt><dd>${nameOf(name)}</dd>`)}<dt>${key("?")}</dt><dd>${t("keys.help")}</dd></dl>
    <div class="row"><button onClick=${() => help.current.close()}>${t("close")}</button></div></dialog>`;
}

function toggleTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("penstock-theme", root.dataset.theme);
  dispatchEvent(new Event("theme"));
}

async function signOut() {
  await fetch("api/sign-out", { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  location.reload();
}

function Side({ page, live }) {
  // On a phone the navigation scrolls: show the part with this page.
  useEffect(() => {
    const here = document.querySelector(".side [aria-current]");
    if (here) here.parentElement.scrollLeft = here.offsetLeft - (here.parentElement.clientWidth - here.offsetWidth) / 2;
  }, [page]);
  const dead = (live.queues || []).reduce((sum, queue) => sum + queue.dead, 0);
  const counts = { dead: dead ? number(dead) : "", workers: live.workers ? number(live.workers) : "" };
  return html`<aside class="side">
    <a class="brand" href="#/overview"><img src="static/icon.svg" alt="" />Penstock</a>
    <nav aria-label=${t("pages")}>${NAVIGATION.map((name) => html`
      <a href=${`#/${name}`} aria-current=${page === name || PARTS[page] === name ? "page" : undefined}>
        <span>${nameOf(name)}</span><span class="quiet">${counts[name]}</span></a>`)}
    </nav>
    <div class="end">
      <div class="switches">
        <button onClick=${toggleTheme} aria-label=${t("theme")} title=${t("theme")}>◐</button>
        <select aria-label=${t("language")} value=${language} onChange=${(event) => chooseLanguage(event.target.value)}>
          ${Object.entries(LANGUAGES).map(([code, name]) => html`<option value=${code}>${name}</option>`)}
        </select>
      </div>
      <div class="quiet mono">${live.location}</div>
      ${live.may_act === false && html`<div class="quiet">${t("read-only")}</div>`}
      ${live.session && html`<button onClick=${signOut}>${t("sign-out")}</button>`}
    </div>
  </aside>`;
}

function App() {
  const where = useAddress(), live = useLive();
  const keys = useKeys();
  useEffect(() => { document.title = `${where.name || nameOf(where.page)} · Penstock`; }, [where]);
  const Page = PAGES[where.page];
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>${t("skip")}</a>
    <div class="frame"><${Side} page=${where.page} live=${live} />
    <main id="main" tabindex="-1">
      ${live.lost && html`<div class="card alarm" role="alert">${t("lost", { why: live.lost })}</div>`}
      <${Page} key=${where.page + where.name} live=${live} name=${where.name} filter=${where.filter} mayAct=${live.may_act} />
    </main></div>${keys}<${Toasts} />`;
}

render(html`<${App} />`, document.body);
