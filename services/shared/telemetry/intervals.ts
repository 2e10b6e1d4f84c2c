import { context, createContextKey, type Context } from '@opentelemetry/api';

import type { Clock } from '../runtime/clock.js';
import { PHASES, type Interval, type Phase } from './phases.js';

/** A server returns at most this many intervals of a call; a call of a pod has about ten. */
const RETURNED_MAX = 100;

const US_PER_MS = 1000;

interface OpenInterval {
  readonly name: string;
  readonly phase: Phase;
  readonly startMs: number;
  /** Duration; undefined until its end. */
  durationMs: number | undefined;
  readonly inside: OpenInterval[];
}

/** Records where the time of one command, or of one call of it in a service, goes. */
export class IntervalRecorder {
  readonly #clock: Pick<Clock, 'monotonicMs'>;
  readonly #originMs: number;
  readonly #top: OpenInterval[] = [];
  #endMs: number | undefined;

  /** @param beforeMs - time of the command before this moment, in milliseconds */
  constructor(clock: Pick<Clock, 'monotonicMs'>, beforeMs = 0) {
    this.#clock = clock;
    this.#originMs = clock.monotonicMs() - beforeMs;
  }

  /** Time from the start of the command until its end or now, in milliseconds. */
  get elapsedMs(): number {
    return this.#endMs ?? this.#clock.monotonicMs() - this.#originMs;
  }

  get isEnded(): boolean {
    return this.#endMs !== undefined;
  }

  /** Ends the command. Work that continues in its context records nothing more. Idempotent. */
  end(): void {
    this.#endMs ??= this.elapsedMs;
  }

  /** Begins an interval of the command itself, or inside another one. {@link IntervalRecorder.close} ends it. */
  open(name: string, phase: Phase, inside?: OpenInterval): OpenInterval {
    const opened = { name, phase, startMs: this.elapsedMs, durationMs: undefined, inside: [] };
    (inside?.inside ?? this.#top).push(opened);
    return opened;
  }

  /** Idempotent. */
  close(interval: OpenInterval): void {
    interval.durationMs ??= this.elapsedMs - interval.startMs;
  }

  /** Adds an interval of which start and duration are known. */
  add(name: string, phase: Phase, { startMs, durationMs }: Pick<Interval, 'startMs' | 'durationMs'>): void {
    this.#top.push({ name, phase, startMs, durationMs, inside: [] });
  }

  /**
   * Begins a call of podwire-ipam inside its client's interval. The clock of podwire-ipam is another one, so its time is
   * placed in the middle of the call.
   * @returns a function that ends the call, with the text of {@link IntervalRecorder.encode}; it ignores anything else
   */
  callService(client: OpenInterval, name: string): (text: string | undefined) => void {
    const sentMs = this.elapsedMs;
    return (text) => {
      const returned = decode(text);
      if (!returned) return;
      const startMs = sentMs + Math.max(0, this.elapsedMs - sentMs - returned.durationMs) / 2;
      const service: OpenInterval = { name, phase: 'ipam', startMs, durationMs: returned.durationMs, inside: [] };
      client.inside.push(service);
      const path = [service];
      for (const { depth, ...interval } of returned.intervals) {
        const inside: OpenInterval = { ...interval, startMs: startMs + interval.startMs, inside: [] };
        path.length = Math.min(path.length, depth + 1);
        path.at(-1)?.inside.push(inside);
        path.push(inside);
      }
    };
  }

  /** All intervals, each before those inside it. Open intervals last until now. */
  intervals(): Interval[] {
    const nowMs = this.elapsedMs;
    const list: Interval[] = [];
    const visit = (intervals: readonly OpenInterval[], depth: number): void => {
      for (const { name, phase, startMs, durationMs = nowMs - startMs, inside } of intervals) {
        list.push({ name, phase, startMs, durationMs, depth });
        visit(inside, depth + 1);
      }
    };
    visit(this.#top, 0);
    return list;
  }

  /** The intervals and the time until now as a header's value, in whole microseconds: `4120;datastore,podwire.store.commit,350,2900,0`. */
  encode(): string {
    const us = (ms: number): string => Math.round(ms * US_PER_MS).toFixed();
    const intervals = this.intervals()
      .slice(0, RETURNED_MAX)
      .map(({ name, phase, startMs, durationMs, depth }) =>
        [phase, name, us(startMs), us(durationMs), depth].join(','),
      );
    return [us(this.elapsedMs), ...intervals].join(';');
  }
}

function decode(text: string | undefined): { durationMs: number; intervals: Interval[] } | undefined {
  const [total, ...parts] = text?.split(';') ?? [];
  const durationMs = Number(total) / US_PER_MS;
  if (!Number.isFinite(durationMs) || durationMs < 0) return undefined;
  const intervals = parts.slice(0, RETURNED_MAX).flatMap((part): Interval[] => {
    const [phaseName, name, start, duration, depth] = part.split(',');
    const phase = PHASES.find((known) => known === phaseName);
    const [startMs, lastedMs, level] = [Number(start) / US_PER_MS, Number(duration) / US_PER_MS, Number(depth)];
    const isValid = startMs >= 0 && lastedMs >= 0 && Number.isInteger(level) && level >= 0;
    return phase && name && isValid ? [{ name, phase, startMs, durationMs: lastedMs, depth: level }] : [];
  });
  return { durationMs, intervals };
}

/** The recorder of the work in a context, and the interval that the work belongs to. */
class Recording {
  readonly recorder: IntervalRecorder;
  readonly inside: OpenInterval | undefined;

  constructor(recorder: IntervalRecorder, inside: OpenInterval | undefined) {
    this.recorder = recorder;
    this.inside = inside;
  }
}

const RECORDING = createContextKey('podwire intervals');

function recordingOf(from: Context): Recording | undefined {
  const value = from.getValue(RECORDING);
  return value instanceof Recording && !value.recorder.isEnded ? value : undefined;
}

/** The context in which {@link recordInterval} records. */
export function withRecorder(from: Context, recorder: IntervalRecorder): Context {
  return from.setValue(RECORDING, new Recording(recorder, undefined));
}

/** Runs `work`, and records its time if the active context has a recorder. */
export async function recordInterval<Result>(name: string, phase: Phase, work: () => Promise<Result>): Promise<Result> {
  const active = context.active();
  const recording = recordingOf(active);
  if (!recording) return work();
  const { recorder, inside } = recording;
  const interval = recorder.open(name, phase, inside);
  try {
    return await context.with(active.setValue(RECORDING, new Recording(recorder, interval)), work);
  } finally {
    recorder.close(interval);
  }
}

/**
 * Begins an interval in a context that is not the active one, such as of one of several requests that share work.
 * @returns a function that ends it; idempotent
 */
export function beginInterval(from: Context, name: string, phase: Phase): () => void {
  const recording = recordingOf(from);
  if (!recording) return () => undefined;
  const { recorder, inside } = recording;
  const interval = recorder.open(name, phase, inside);
  return () => recorder.close(interval);
}

/**
 * Begins a call of podwire-ipam in the active interval.
 * @returns {@link IntervalRecorder.callService}; undefined where no interval is recorded
 */
export function recordService(name: string): ReturnType<IntervalRecorder['callService']> | undefined {
  const { recorder, inside } = recordingOf(context.active()) ?? {};
  return inside && recorder?.callService(inside, name);
}
