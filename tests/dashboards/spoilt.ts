// The types catch what they are there for: each of these is refused, or the compiler says that it was not.

import type { Datasources, WrittenDashboard, WrittenPanel } from "./types.js";

const datasource = { type: "prometheus", uid: "any" } as const;
const query = { refId: "A", datasource, expr: "up", range: true, instant: false };
const legend = { displayMode: "list", placement: "bottom", showLegend: true, calcs: [] as string[] } as const;
const fine = {
  id: 1, type: "timeseries", title: "", description: "", datasource, targets: [query],
  gridPos: { x: 0, y: 0, w: 12, h: 8 },
  fieldConfig: { defaults: { unit: "s", custom: { drawStyle: "line" } }, overrides: [] },
  options: { legend, tooltip: { mode: "multi", sort: "desc" } },
} as const;

export const taken: WrittenPanel = { ...fine, targets: [query], fieldConfig: { ...fine.fieldConfig, overrides: [] }, options: { ...fine.options, legend: { ...legend, calcs: [] } } };

// @ts-expect-error a misspelt key of the dashboard
export const top: WrittenDashboard = { schemaVersion: 39, panels: [], titel: "" };
// @ts-expect-error a panel of a kind that does not exist
export const kind: WrittenPanel = { ...taken, type: "timeserie" };
// @ts-expect-error a place in words
export const place: WrittenPanel = { ...taken, gridPos: { x: 0, y: 0, w: "twelve", h: 8 } };
// @ts-expect-error a panel without a unit
export const unit: WrittenPanel = { ...taken, fieldConfig: { defaults: {}, overrides: [] } };
// @ts-expect-error a draw style that does not exist
export const style: WrittenPanel = { ...taken, fieldConfig: { defaults: { unit: "s", custom: { drawStyle: "lines" } }, overrides: [] } };
// @ts-expect-error a tooltip mode that does not exist
export const tooltip: WrittenPanel = { ...taken, options: { legend: { ...legend, calcs: [] }, tooltip: { mode: "many", sort: "desc" } } };
// @ts-expect-error a query without an expression
export const asked: WrittenPanel = { ...taken, targets: [{ refId: "A", datasource, range: true, instant: false }] };
// @ts-expect-error another version
export const source: Datasources = { apiVersion: 2, datasources: [] };
