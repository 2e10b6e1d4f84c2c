/** One query of a panel. */
export interface Query {
  /** PromQL, or TraceQL where the panel shows traces. */
  readonly expression: string;
  /** Grafana's legend format; by default the series' labels. */
  readonly legend?: string;
}

export interface Panel {
  readonly title: string;
  /** Meaning of the panel, and the remedy for a bad value. */
  readonly description: string;
  /** Default: `lines`. */
  readonly kind?: 'lines' | 'stack' | 'heatmap' | 'table' | 'traces';
  /** Unit of Grafana: `s`, `percentunit`, `bytes`. Default: `short`. */
  readonly unit?: string;
  /** Width of the dashboard's 24 columns. Default: 12. */
  readonly width?: 8 | 12 | 16;
  readonly queries: readonly Query[];
  /** Shows exemplars, which lead to traces. */
  readonly hasExemplars?: boolean;
}

export interface Row {
  readonly title: string;
  readonly panels: readonly Panel[];
}

export interface DashboardDefinition {
  readonly uid: string;
  readonly title: string;
  readonly rows: readonly Row[];
}

/** The variable of the nodes that are shown, in a selector. */
export const NODES = 'instance=~"$instance"';

export function query(expression: string, legend: string): Query {
  return { expression, legend };
}

/** Percentiles of a histogram, as queries. */
export function percentiles(series: string, selector: string): readonly Query[] {
  return [0.5, 0.9, 0.99].map((share) => query(percentile(share, series, selector), `p${share * 100}`));
}

/** @param labels - by which it is grouped */
export function percentile(share: number, series: string, selector: string, labels: readonly string[] = []): string {
  const grouping = [...labels, 'le'].join(', ');
  return `histogram_quantile(${share}, sum by (${grouping}) (rate(${series}_bucket{${selector}}[$__rate_interval])))`;
}
