// Where the reader is, as the part of the address behind #: every view has a link.

import { FILTERS } from "./model.js";

const VIEWS = ["fan-outs", "requests", "breaks"];

/** The place that the address names. */
export function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const filter = {};
  for (const [name, value] of new URLSearchParams(query ?? "")) {
    if (Object.hasOwn(FILTERS, name) && value) filter[name] = value;
  }
  const [view, id] = path.split("/", 2);
  if (view === "fan-out" && id) return { view, id: decode(id), filter };
  return { view: VIEWS.includes(view) ? view : "fan-outs", filter };
}

/** The address of a place. */
export function address({ view, id, filter }) {
  const query = new URLSearchParams(filter).toString();
  const path = view === "fan-out" ? `fan-out/${encodeURIComponent(id)}` : view;
  return `#/${path}${query ? `?${query}` : ""}`;
}

/** The same place with another filter; an empty value takes it away. */
export function withFilter(place, name, value) {
  const filter = { ...place.filter, [name]: value };
  if (!value) delete filter[name];
  return { ...place, filter };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
