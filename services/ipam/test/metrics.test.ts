import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { createNoopMeter, metrics, type Meter, type Observable } from '@opentelemetry/api';
import { RpcEvents } from '@podwire/shared/rpc/rpc-events';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, expect, test } from 'vitest';

import { observeUsage } from '../audit/usage-operations.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { HistoryEvents } from '../history/expiry-operations.js';
import { ControllerEvents } from '../node-controller/controller-events.js';
import { startIpam } from '../testing/ipam.js';

afterEach(() => metrics.disable());

test('the README lists every metric, and no other', async () => {
  const names: string[] = [];
  const note = (name: string): void => void names.push(name);
  const observable: Observable = { addCallback: () => undefined, removeCallback: () => undefined };
  const meter: Meter = Object.assign(createNoopMeter(), {
    createCounter: (name: string) => {
      note(name);
      return { add: () => undefined };
    },
    createHistogram: (name: string) => {
      note(name);
      return { record: () => undefined };
    },
    createUpDownCounter: (name: string) => {
      note(name);
      return { add: () => undefined };
    },
    createObservableGauge: (name: string) => {
      note(name);
      return observable;
    },
  });
  metrics.setGlobalMeterProvider({ getMeter: () => meter });
  const { events } = await startIpam(new MemoryStore());
  new HistoryEvents(events);
  new ControllerEvents(events);
  const caller = { kind: 'certificate', role: 'node', name: 'worker-1' } as const;
  new RpcEvents({ log: events.log, clock: systemClock }).started(caller, 0);
  observeUsage(meter, () => Promise.reject(new Error('nothing is asked')));

  const section = readFileSync(join(import.meta.dirname, '../README.md'), 'utf8').split('## Metrics\n')[1]!;
  const listed = [...section.matchAll(/^\| `([^`]+)`/gm)].map(([, name]) => name);
  expect(listed.sort()).toEqual(names.sort());
});
