import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import {
  createNoopMeter,
  metrics,
  type Attributes,
  type BatchObservableCallback,
  type Meter,
  type MetricOptions,
  type Observable,
} from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { CommandEvents, Duration } from './events.js';
import { JournalEvents } from './journal/events.js';
import { ProcessStopping } from './requests/request.js';
import { FdLimit } from './service.js';
import { Plugin, recordingLog } from './testing/plugin.js';

/** The descriptions of metrics, and what is recorded. */

const README = join(import.meta.dirname, 'README.md');
const PREFIX = 'podwire.plugin.';

interface Recorded {
  readonly name: string;
  readonly value: number;
  readonly labels: Attributes;
}

/** Metrics as an exporter reads them. */
class ReadMetrics {
  readonly names = new Set<string>();
  readonly all: Recorded[] = [];
  readonly histograms = new Map<string, MetricOptions>();
  readonly meter: Meter = Object.assign(createNoopMeter(), {
    createCounter: (name: string) => ({ add: this.#recorderOf(name) }),
    createUpDownCounter: (name: string) => ({ add: this.#recorderOf(name) }),
    createHistogram: (name: string, options: MetricOptions = {}) => {
      this.histograms.set(name.slice(PREFIX.length), options);
      return { record: this.#recorderOf(name) };
    },
    createObservableGauge: (name: string): Observable => {
      const observable = { addCallback: () => undefined, removeCallback: () => undefined };
      this.#recorders.set(observable, this.#recorderOf(name));
      return observable;
    },
    addBatchObservableCallback: (callback: BatchObservableCallback, observables: Observable[]) => {
      this.#batches.push({ callback, observables });
    },
  });

  readonly #recorders = new Map<Observable, (value: number, labels?: Attributes) => void>();
  readonly #batches: { callback: BatchObservableCallback; observables: Observable[] }[] = [];

  /** Reads the gauges that are observed together, as an export does. */
  async collect(): Promise<void> {
    for (const { callback } of this.#batches) {
      await callback({ observe: (observable, value, labels) => this.#recorders.get(observable)?.(value, labels) });
    }
  }

  #recorderOf(name: string) {
    expect(name.startsWith(PREFIX), name).toBe(true);
    const short = name.slice(PREFIX.length);
    this.names.add(short);
    return (value: number, labels: Attributes = {}): void => void this.all.push({ name: short, value, labels });
  }

  /** `label label` of each record of a metric, in order. */
  labels(name: string): string[] {
    return this.all.filter((one) => one.name === name).map(({ labels }) => Object.values(labels).join(' '));
  }

  values(name: string): number[] {
    return this.all.filter((one) => one.name === name).map(({ value }) => value);
  }
}

let read: ReadMetrics;
let plugin: Plugin;

beforeEach(async () => {
  read = new ReadMetrics();
  metrics.setGlobalMeterProvider({ getMeter: () => read.meter });
  plugin = await new Plugin({ timeoutMs: 2000 }).start();
});

afterEach(async () => {
  await plugin.end();
  metrics.disable();
});

test('each command is recorded with its result, and so are its phases', async () => {
  const arrivedNs = 1_700_000_000_000_000_000n;
  await plugin.run('ADD', { rest: { startedNs: arrivedNs - 40_500_000n, arrivedNs } });
  await plugin.run('DEL');
  await plugin.run('STATUS', { config: { cniVersion: '1.1.0' } });
  await plugin.run('GC', { config: { cniVersion: '1.1.0', 'cni.dev/valid-attachments': [] } });
  await plugin.run('ADD', { variables: { CNI_IFNAME: 'lo' } });
  await plugin.run('x'.repeat(100));
  expect(read.labels('command.duration')).toEqual([
    'ADD success',
    'DEL success',
    'STATUS success',
    'GC success',
    'ADD INVALID_ENVIRONMENT',
    'unknown INVALID_ENVIRONMENT',
  ]);
  const phases = read.labels('command.phase.duration');
  expect(phases.slice(0, 4).toSorted()).toEqual([
    'ADD plugin success',
    'ADD queue success',
    'ADD rpc success',
    'ADD shim success',
  ]);
  expect(phases).toContain('ADD plugin failure');
  expect(new Set(phases.map((labels) => labels.split(' ')[0]))).toEqual(
    new Set(['ADD', 'DEL', 'STATUS', 'GC', 'unknown']),
  );
  expect(read.values('command.phase.duration')).toContain(0.0405);
  expect(read.labels('commands.cut_off')).toEqual([]);
});

test('readiness is a gauge, and so is each reason why an ADD would fail, from the first STATUS on', async () => {
  await read.collect();
  expect(read.labels('ready')).toEqual([]);
  const status = () => plugin.run('STATUS', { config: { cniVersion: '1.1.0' } });
  await vi.waitFor(async () => expect(await status()).toMatchObject({ exitCode: 0 }), { timeout: 20_000 });
  await read.collect();
  const reasons = ['addresses', 'ipam', 'ipam-plugin', 'dataplane', 'journal'];
  expect([read.values('ready'), read.labels('add_blocked')]).toEqual([[1], reasons]);
  expect(read.values('add_blocked')).toEqual([0, 0, 0, 0, 0]);
  for (let count = 0; count < 64; count++) {
    plugin.ipam.put({ network: 'net', containerId: `c${count}`, interfaceName: 'eth0' });
  }
  await vi.waitFor(
    async () => {
      await status();
      read.all.length = 0;
      await read.collect();
      expect([read.values('ready'), read.values('add_blocked')]).toEqual([[1], [1, 0, 0, 0, 0]]);
    },
    { timeout: 20_000 },
  );
});

test('durations are in seconds, from the start of the shim, in buckets from STATUS to the longest ADD', () => {
  const clock = new ManualClock();
  const duration = new Duration({ startedNs: 1_000_000_000n, arrivedNs: 1_250_000_000n }, clock);
  clock.advance(500);
  new CommandEvents().ended('ADD', { result: 'success', duration, cutOff: undefined });
  expect([read.values('command.duration'), read.values('command.phase.duration')]).toEqual([[0.75], [0.5, 0.25]]);
  for (const name of ['command.duration', 'command.phase.duration']) {
    const { unit, advice } = read.histograms.get(name)!;
    expect([unit, advice?.explicitBucketBoundaries?.at(0), advice?.explicitBucketBoundaries?.at(-1)]).toEqual([
      's',
      0.001,
      60,
    ]);
  }
});

test('a command over its deadline is counted, with the phase that it waited in', async () => {
  plugin.script.hold('AttachPod');
  await plugin.run('ADD');
  expect(read.labels('command.phase.duration')).toContain('ADD rpc failure');
  expect(read.labels('command.duration')).toEqual(['ADD DEADLINE_EXCEEDED']);
  expect(read.labels('commands.cut_off')).toEqual(['ADD deadline']);
});

test('commands cut off by their caller and by a DEL are counted separately, and are in flight until then', async () => {
  const cancel = new AbortController();
  const letGo = plugin.script.hold('AttachPod');
  const first = plugin.run('ADD', { rest: { cancel } });
  await plugin.script.untilCalled('AttachPod');
  expect(read.labels('commands.in_flight')).toEqual(['ADD']);
  cancel.abort(new Failure('CANCELLED', 'the caller disconnected'));
  await first;
  const second = plugin.run('ADD');
  const deleting = plugin.run('DEL');
  letGo();
  await Promise.all([second, deleting]);
  expect(read.labels('commands.cut_off')).toEqual(['ADD caller', 'ADD overtaken']);
  expect(read.values('commands.in_flight')).toEqual([1, -1, 1, 1, -1, -1]);
});

test('a command cut off by the end of the process is not counted as the caller’s, nor is a superseded ADD', async () => {
  const cancel = new AbortController();
  plugin.script.hold('AttachPod');
  const first = plugin.run('ADD', { rest: { cancel } });
  await plugin.script.untilCalled('AttachPod');
  cancel.abort(new ProcessStopping());
  expect(await first).toMatchObject({ exitCode: 1, isForNextProcess: true });
  const late = new AbortController();
  const second = plugin.run('ADD', { rest: { cancel: late } });
  const deleting = plugin.run('DEL');
  late.abort(new ProcessStopping());
  expect(await second).not.toHaveProperty('isForNext');
  await deleting;
  expect(read.labels('commands.cut_off')).toEqual(['ADD stop', 'ADD overtaken']);
});

test('the README names every metric, and no other', () => {
  new CommandEvents();
  new FdLimit(recordingLog().log);
  new JournalEvents(recordingLog().log).observe(() => ({
    entries: 0,
    volatileEntries: 0,
    unreadableEntries: 0,
    oldestAgeMs: 0,
  }));
  const [, table = ''] = readFileSync(README, 'utf8').split('## Metrics');
  const named = [...table.split('\n##')[0]!.matchAll(/^\| `([a-z._]+)`/gm)].map(([, name]) => name ?? '');
  expect(named.sort()).toEqual([...read.names].sort());
});
