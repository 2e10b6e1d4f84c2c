/** The values of a label; a text says which values there are where they are not known in advance. */
type LabelValues = readonly string[] | string;

export interface MetricEntry {
  readonly kind: 'counter' | 'gauge' | 'histogram';
  /** UCUM; annotations in braces name the counted thing. Prometheus appends `s` and `By` to the name as `_seconds` and `_bytes`. */
  readonly unit: string;
  /** One sentence without a full stop: Prometheus shows it as help. */
  readonly about: string;
  readonly labels?: Readonly<Record<string, LabelValues>>;
  /** When the metric exists; by default always. */
  readonly when?: string;
  /** Upper bounds of a histogram's buckets. */
  readonly buckets?: readonly number[];
}

type MetricDetails = Omit<MetricEntry, 'kind' | 'unit' | 'about'>;

const entryOf =
  <Kind extends MetricEntry['kind']>(kind: Kind) =>
  (unit: string, about: string, details: MetricDetails = {}) => ({ kind, unit, about, ...details });

export const counter = entryOf('counter');
export const gauge = entryOf('gauge');
export const histogram = entryOf('histogram');

export type MetricCatalog = Readonly<Record<string, MetricEntry>>;

/** Close together around the usual 10 ms of an ADD, up to the longest command. In seconds. */
export const FINE_SECONDS = [
  0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10,
  20, 60,
];

/** Bounds in seconds for metrics with many label values. */
export const COARSE_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60];
