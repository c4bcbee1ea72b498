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

export function chooseLanguage(name) {
  localStorage.setItem("penstock-language", name);
  location.reload();
}

const whole = new Intl.NumberFormat(locale);
const short = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });

export const number = (value) => whole.format(value ?? 0);
export const rate = (value) => (value >= 100 ? whole.format(Math.round(value)) : short.format(value || 0));

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return t(`age.${unit}`, { n: Math.round(seconds / size) });
  }
  return t("age.s", { n: seconds >= 10 ? Math.round(seconds) : short.format(Math.max(0, seconds)) });
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
