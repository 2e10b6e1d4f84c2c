import { createNoopMeter, type ObservableCallback } from '@opentelemetry/api';
import { expect, test } from 'vitest';

import { observeConditions } from './condition-gauge.js';

test('conditions are counted by reason when they are collected, and a reason that is over has no value', async () => {
  const callbacks = new Set<ObservableCallback>();
  const meter = Object.assign(createNoopMeter(), {
    createObservableGauge: () => ({
      addCallback: (callback: ObservableCallback) => void callbacks.add(callback),
      removeCallback: (callback: ObservableCallback) => void callbacks.delete(callback),
    }),
  });
  const collect = async (): Promise<string[]> => {
    const lines: string[] = [];
    const observe = (value: number, attributes: object = {}) =>
      void lines.push([...Object.values(attributes), value].join(' '));
    for (const callback of callbacks) await callback({ observe });
    return lines;
  };
  let reasons = ['NotOnLink', 'IpamUnreachable', 'NotOnLink'];
  const stop = observeConditions(meter, () => reasons.map((reason) => ({ reason, message: '' })));
  expect(await collect()).toEqual(['NotOnLink 2', 'IpamUnreachable 1']);
  reasons = ['IpamUnreachable'];
  expect(await collect()).toEqual(['IpamUnreachable 1']);
  stop();
  expect(await collect()).toEqual([]);
});
