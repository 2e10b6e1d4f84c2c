import { createNoopMeter, type BatchObservableCallback, type Meter, type Observable } from '@opentelemetry/api';
import { expect, test } from 'vitest';

import { observeUsage } from './usage-operations.js';
import type { Usage } from './usage.js';

const USAGE: Usage = {
  nodeUsages: [
    { poolName: 'p', nodeName: 'n1', blocks: 2, inUse: 5, borrowed: 1 },
    { poolName: 'p', nodeName: 'no_affinity', blocks: 1, inUse: 0, borrowed: 0 },
    { poolName: 'no_ippool', nodeName: 'unknown_node', blocks: 0, inUse: 3, borrowed: 3 },
  ],
  pools: [{ poolName: 'p', size: 256n, reserved: 4n, available: 248n }],
  cooling: 7,
};

/** A meter that returns the observed values when it is collected. */
class ShownMeter {
  readonly #callbacks = new Set<BatchObservableCallback>();
  readonly #names = new Map<Observable, string>();
  readonly meter: Meter = Object.assign(createNoopMeter(), {
    createObservableGauge: (name: string) => {
      const gauge: Observable = { addCallback: () => undefined, removeCallback: () => undefined };
      this.#names.set(gauge, name);
      return gauge;
    },
    addBatchObservableCallback: (callback: BatchObservableCallback) => void this.#callbacks.add(callback),
    removeBatchObservableCallback: (callback: BatchObservableCallback) => void this.#callbacks.delete(callback),
  });

  async collect(): Promise<string[]> {
    const lines: string[] = [];
    const observe = (gauge: Observable, value: number, attributes: object = {}): void => {
      lines.push([this.#names.get(gauge), ...Object.values(attributes), value].join(' '));
    };
    for (const callback of this.#callbacks) await callback({ observe });
    return lines;
  }
}

test('usage is counted at collection, with Calico’s metric names', async () => {
  const shown = new ShownMeter();
  const stop = observeUsage(shown.meter, () => Promise.resolve(USAGE));
  expect(await shown.collect()).toEqual([
    'podwire.ipam.allocations.in_use p n1 5',
    'podwire.ipam.allocations.borrowed p n1 1',
    'podwire.ipam.blocks p n1 2',
    'podwire.ipam.blocks p no_affinity 1',
    'podwire.ipam.allocations.in_use no_ippool unknown_node 3',
    'podwire.ipam.allocations.borrowed no_ippool unknown_node 3',
    'podwire.ipam.ippool.size p 256',
    'podwire.ipam.ippool.reserved p 4',
    'podwire.ipam.ippool.available p 248',
    'podwire.ipam.allocations.cooling 7',
  ]);
  stop();
  expect(await shown.collect()).toEqual([]);
});

test('no value is reported while the datastore is unavailable', async () => {
  const shown = new ShownMeter();
  observeUsage(shown.meter, () => Promise.reject(new Error('away')));
  expect(await shown.collect()).toEqual([]);
});
