import {
  context,
  createNoopMeter,
  metrics,
  ROOT_CONTEXT,
  type Attributes,
  type BatchObservableResult,
  type Context,
  type Counter,
  type Gauge,
  type Histogram,
  type Meter,
  type Observable,
  type UpDownCounter,
} from '@opentelemetry/api';
import { isTracingSuppressed, suppressTracing } from '@opentelemetry/core';

import { metricOf, type METRICS, type MetricName } from './metrics.js';

/**
 * Instruments of the catalog {@link METRICS}. They are made after telemetry has been started: one made earlier would stay
 * without effect.
 */

type NameOf<Kind extends string> = {
  [Name in MetricName]: (typeof METRICS)[Name]['kind'] extends Kind ? Name : never;
}[MetricName];

export type CounterName = NameOf<'counter'>;
export type GaugeName = NameOf<'gauge'>;
export type HistogramName = NameOf<'histogram'>;

/** Runs work without metrics and spans: instruments that it makes, or uses for the first time, have no effect. */
export function withoutTelemetry<Result>(work: () => Result): Result {
  return context.with(suppressTracing(context.active()), work);
}

const isSuppressed = (): boolean => isTracingSuppressed(context.active());

/** The context of a command, which has no caller in this process. It keeps {@link withoutTelemetry}. */
export function commandContext(): Context {
  return isSuppressed() ? context.active() : ROOT_CONTEXT;
}

/** An instrument of a module, which is loaded before telemetry is started. */
export function onFirstUse<Instrument>(make: () => Instrument): () => Instrument {
  let made: Instrument | undefined;
  return () => (isSuppressed() ? make() : (made ??= make()));
}

const meter = (): Meter => (isSuppressed() ? createNoopMeter() : metrics.getMeter('podwire'));

const optionsOf = (name: MetricName) => ({ unit: metricOf(name).unit, description: metricOf(name).about });

/** Counter with 0 for each combination of its label values, where they are all known. */
export function counter(name: CounterName): Counter {
  const made = meter().createCounter(name, optionsOf(name));
  for (const attributes of seriesOf(name)) made.add(0, attributes);
  return made;
}

/** A gauge that is changed by differences. */
export function upDownCounter(name: GaugeName): UpDownCounter {
  const made = meter().createUpDownCounter(name, optionsOf(name));
  for (const attributes of seriesOf(name)) made.add(0, attributes);
  return made;
}

export function histogram(name: HistogramName): Histogram {
  const { buckets } = metricOf(name);
  return meter().createHistogram(name, {
    ...optionsOf(name),
    advice: { explicitBucketBoundaries: [...(buckets ?? [])] },
  });
}

/** A gauge that is set. */
export function gauge(name: GaugeName): Gauge {
  return meter().createGauge(name, optionsOf(name));
}

/** Reports the value of one metric at a collection. */
export type Observe<Name extends MetricName> = (name: Name, value: number, labels?: Attributes) => void;

/**
 * Metrics that are read when they are collected.
 * @param read - must not throw
 * @returns a function that removes them
 */
export function observeMetrics<Name extends CounterName | GaugeName>(
  names: readonly Name[],
  read: (observe: Observe<Name>) => void | Promise<void>,
): () => void {
  const own = meter();
  const observables = new Map<Name, Observable>(names.map((name) => [name, observable(own, name)]));
  const all = [...observables.values()];
  const callback = (result: BatchObservableResult): void | Promise<void> =>
    read((name, value, labels) => {
      const observed = observables.get(name);
      if (observed) result.observe(observed, value, labels);
    });
  own.addBatchObservableCallback(callback, all);
  return () => own.removeBatchObservableCallback(callback, all);
}

function observable(own: Meter, name: CounterName | GaugeName): Observable {
  const { kind } = metricOf(name);
  return kind === 'counter'
    ? own.createObservableCounter(name, optionsOf(name))
    : own.createObservableGauge(name, optionsOf(name));
}

/**
 * The gauge `podwire.ready`.
 * @returns a function that removes it
 */
export function observeReadiness(isReady: () => boolean): () => void {
  return observeMetrics(['podwire.ready'], (observe) => observe('podwire.ready', isReady() ? 1 : 0));
}

/** @returns every combination of a metric's label values; none where they are not all known in advance */
function seriesOf(name: MetricName): Attributes[] {
  let series: Attributes[] = [{}];
  for (const [label, values] of Object.entries(metricOf(name).labels ?? {})) {
    if (typeof values === 'string') return [];
    series = series.flatMap((each) => values.map((value) => ({ ...each, [label]: value })));
  }
  return series;
}
