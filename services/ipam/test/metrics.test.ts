import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { createNoopMeter, metrics, type Meter, type Observable } from '@opentelemetry/api';
import { createLogger } from '@podwire/shared/runtime/log';
import { afterEach, expect, test } from 'vitest';

import { observeUsage } from '../audit/usage-metrics.js';
import { Events } from '../engine/events.js';

afterEach(() => metrics.disable());

test('the README lists every metric, and no other', () => {
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
    createObservableGauge: (name: string) => {
      note(name);
      return observable;
    },
  });
  metrics.setGlobalMeterProvider({ getMeter: () => meter });
  new Events(createLogger({ service: 'test', level: 'fatal' }));
  observeUsage(meter, () => Promise.reject(new Error('nothing is asked')));

  const section = readFileSync(join(import.meta.dirname, '../README.md'), 'utf8').split('## Metrics\n')[1]!;
  const listed = [...section.matchAll(/^\| `([^`]+)`/gm)].map(([, name]) => name);
  expect(listed.sort()).toEqual(names.sort());
});
