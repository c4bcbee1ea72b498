// Texts in the chosen language, and numbers, ages and times as people read them.

export const LANGUAGES = { en: "English", zh: "中文" };
const first = navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
export const language = localStorage.getItem("penstock-language") || first;
document.documentElement.lang = language;

/** The browser's own form of this language, such as en-GB: its dates and its 24 hours. */
export const locale = navigator.languages.find((one) => one.split("-")[0].toLowerCase() === language) ?? language;

const texts = await (await fetch(`text/${language}.json`)).json();

/** The text of this key, with {name} replaced by values. */
export function t(key, values = {}) {
  return (texts[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

const FIELDS = { "": ".+?", "#": "[\\d.,]+", "@": "\\S+?" };

/** Sentences of the server: the English one, in which {1} stands for anything, {#1} for a number and {@1} for one word; and the own one. */
const sentences = Object.entries(texts.sentences ?? {}).map(([english, own]) => {
  const form = english.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replace(/\{([#@]?)\d\}/g, (_, kind) => `(${FIELDS[kind]})`);
  const places = [...english.matchAll(/\{[#@]?(\d)\}/g)].map((found) => found[1]);
  return { pattern: new RegExp(`^${form}$`, "s"), places, own, fixed: english.replace(/\{[#@]?\d\}/g, "").length };
}).sort((one, other) => other.fixed - one.fixed);

/** A sentence of the server in the language of the page. What is inserted is put into words as well; what is unknown stays. */
export function say(text) {
  if (!text || !sentences.length) return text;
  for (const { pattern, places, own } of sentences) {
    const found = pattern.exec(text);
    if (found) return own.replace(/\{(\d)\}/g, (_, n) => say(found[places.indexOf(n) + 1]));
  }
  const parts = text.split("; ");
  if (parts.length > 1) return parts.map(say).join(";");
  const named = /^(\S+): (.+)$/s.exec(text);
  return named ? `${named[1]}: ${say(named[2])}` : text;
}

export function chooseLanguage(name) {
  localStorage.setItem("penstock-language", name);
  location.reload();
}

const whole = new Intl.NumberFormat(locale);
const short = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
const precise = new Intl.NumberFormat(locale, { maximumFractionDigits: 9 });

export const number = (value) => whole.format(value ?? 0);
export const rate = (value) => (value >= 100 ? whole.format(Math.round(value)) : short.format(value || 0));

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return t(`age.${unit}`, { n: Math.round(seconds / size) });
  }
  return t("age.s", { n: seconds >= 10 ? Math.round(seconds) : short.format(Math.max(0, seconds)) });
}

/** A duration that was set by a person, and is not rounded. */
export function exactly(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size && seconds % size === 0) return t(`age.${unit}`, { n: number(seconds / size) });
  }
  return t("age.s", { n: precise.format(seconds) });
}

/** A duration that may be short: in ms below a second. */
export const duration = (seconds) => (seconds < 1 ? t("age.ms", { n: whole.format(Math.round(1000 * seconds)) }) : age(seconds));

export function size(bytes) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (bytes < 1000 || unit === "GiB") return `${short.format(bytes)} ${unit}`;
    bytes /= 1024;
  }
}

export const time = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString(locale) : "");

/** The time of a day, to the second. */
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString(locale);
