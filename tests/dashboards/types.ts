// What a dashboard and its provisioning may say: Grafana's own schema, held to the panels that are used here.
//
// The schema leaves `options`, `custom` and `targets` open, since any plugin may bring its own; here they are those
// of the panels' own schemas. It also names string enums where a file has strings: `Written` is a type as a file
// writes it.

import type {
  Dashboard, DataSourceRef, FieldConfigSource, GraphFieldConfig, Panel, RowPanel, TableFieldOptions,
} from "@grafana/schema";
import type { Options as StatOptions } from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type { Options as TableOptions } from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type { Options as TimeSeriesOptions } from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

type Written<T> = T extends string ? `${T}`
  : T extends readonly (infer Item)[] ? Written<Item>[]
  : T extends object ? { [Key in keyof T]: Written<T[Key]> }
  : T;

type Source = DataSourceRef & { type: "prometheus"; uid: string };

// A query to Prometheus; its schema is not part of the package.
interface Query {
  refId: string;
  datasource: Source;
  expr: string;
  legendFormat?: string;
  range: boolean;
  instant: boolean;
  format?: "table";
}

type Closed<Custom> = Omit<FieldConfigSource, "defaults"> & {
  defaults: Omit<FieldConfigSource["defaults"], "custom"> & { unit: string; custom?: Custom };
};

type Drawn<Type extends string, Options, Custom> =
  Omit<Panel, "type" | "options" | "fieldConfig" | "targets" | "description" | "datasource"> & {
    type: Type;
    description: string;
    datasource: Source;
    options: Options;
    fieldConfig: Closed<Custom>;
    targets: Query[];
  };

type AnyPanel =
  | RowPanel
  | Drawn<"timeseries", TimeSeriesOptions, GraphFieldConfig>
  | Drawn<"stat", StatOptions, never>
  | Drawn<"table", TableOptions, TableFieldOptions>;

// A query whose results are marked in every panel; this part of Prometheus' schema is not in the package either.
interface PrometheusAnnotation {
  name: string;
  enable: boolean;
  hide: boolean;
  iconColor: string;
  datasource: Source;
  expr: string;
  step: string;
  titleFormat: string;
  textFormat: string;
  tagKeys: string;
}

type Row = Omit<RowPanel, "panels"> & { panels: Exclude<AnyPanel, RowPanel>[] };

export type WrittenPanel = Written<Exclude<AnyPanel, RowPanel> | Row>;
export type WrittenDashboard = Written<Omit<Dashboard, "panels" | "annotations">> & {
  annotations: { list: PrometheusAnnotation[] };
  panels: WrittenPanel[];
};

// Provisioning, as Grafana's manual describes it.
export interface Datasources {
  apiVersion: 1;
  datasources: {
    name: string;
    uid: string;
    type: "prometheus";
    access: "proxy";
    url: `http${string}`;
    isDefault?: boolean;
    jsonData?: { timeInterval?: string };
  }[];
}

export interface Providers {
  apiVersion: 1;
  providers: {
    name: string;
    type: "file";
    folder?: string;
    allowUiUpdates?: boolean;
    updateIntervalSeconds?: number;
    options: { path: string };
  }[];
}
