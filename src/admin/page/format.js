// Numbers, times and names as people read them.

const LOCALE = "en-US";
const whole = new Intl.NumberFormat(LOCALE);
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const year = { day: "numeric", month: "short", year: "numeric", timeZoneName: "short" };
const date = new Intl.DateTimeFormat("en-GB", { ...year, hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const UNKNOWN = "unknown";

/** Characters that are not seen, or that change the order of those around them: the same as in `report/figures.rs`. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\u{e0000}-\u{e0fff}]/gu;

/** Marks that are drawn over the character before them, of which there may be any number. */
const COMBINING = /[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]/gu;

/** A name that somebody else chose: every character of it is visible, and there are not too many. */
export function name(text, most = 60) {
  const visible = String(text).replace(UNSEEN, escaped).replace(COMBINING, escaped);
  const letters = [...visible];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : visible;
}

function escaped(character) {
  const code = character.codePointAt(0).toString(16);
  return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
}

export function count(number) {
  return number === undefined || number === null ? UNKNOWN : whole.format(Math.round(number));
}

/** Dollars, with as many digits as a sum of this size needs: the same as in the terminal. */
export function usd(dollars) {
  if (dollars === undefined || dollars === null || Number.isNaN(dollars)) return UNKNOWN;
  const size = Math.abs(dollars);
  const digits = Math.round(size * 1e4) < 1e5 ? 4 : 2;
  const text = size.toLocaleString(LOCALE, { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const isZero = Number(size.toFixed(digits)) === 0;
  return `${dollars < 0 && !isZero ? "−" : ""}$${text}`;
}

/** A part of a whole in per cent: all of it only if nothing is missing. Nothing is said about a whole of nothing. */
export function percent(part, of) {
  if (!(of > 0)) return UNKNOWN;
  const share = (100 * part) / of;
  const tenths = share > 99 ? Math.floor(10 * share) : Math.round(10 * Math.abs(share));
  const hasTenths = (tenths !== 0 && tenths < 10) || (share > 99.5 && share < 100);
  const text = hasTenths ? (tenths / 10).toFixed(1) : Math.abs(share).toFixed(0);
  return `${share < 0 && Number(text) !== 0 ? "−" : ""}${text} %`;
}

export function duration(ms) {
  if (ms === undefined || ms === null) return UNKNOWN;
  if (Math.round(ms) < 1000) return `${Math.round(ms)} ms`;
  if (Math.round(ms / 10) < 1000) return `${(ms / 1000).toFixed(2)} s`;
  if (Math.round(ms / 100) < 600) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A duration in whole seconds or more, of things that last. */
export const age = (ms) => (ms < 60_000 ? `${Math.max(Math.floor(ms / 1000), 0)} s` : duration(ms).replace(/ \d+ s$/, ""));

export function bytes(number) {
  if (number < 1000) return `${number} B`;
  return Math.round(number / 100) < 10_000 ? `${(number / 1e3).toFixed(1)} kB` : `${(number / 1e6).toFixed(1)} MB`;
}

/** The time of day, and the day where it is another than today. */
export function moment(ms, now) {
  const [at, today] = [new Date(ms), new Date(now)];
  const time = clock.format(at);
  return at.toDateString() === today.toDateString() ? time : `${day.format(at)} ${time}`;
}

/** A moment for readers elsewhere, and at another time. */
export const dateTime = (ms) => date.format(new Date(ms));

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
