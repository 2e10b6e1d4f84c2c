import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import type { Setting } from '@podwire/shared/settings/config-reader';
import { expect, test } from 'vitest';

import { PLUGIN_SETTINGS } from './settings.js';

test('the shim waits for the longest command and its undoing, however long it waited for the socket', () => {
  const header = readFileSync(join(import.meta.dirname, 'shim/src/protocol.h'), 'utf8');
  const shimMs = (name: string) => Number(new RegExp(`#define ${name} (\\d+)`).exec(header)?.[1]);
  const { addTimeoutMs, cleanUpTimeoutMs } = PLUGIN_SETTINGS;
  const largestMs = ({ variable, about, schema }: Setting<number>) => {
    const text = /1 to (\d+)/.exec(about)?.[1] ?? '';
    expect(schema.safeParse(String(Number(text) + 1)).success, variable).toBe(false);
    return schema.parse(text);
  };
  const longestMs = largestMs(addTimeoutMs) + largestMs(cleanUpTimeoutMs);
  expect(shimMs('PODWIRE_CONNECT_WINDOW_MS') + longestMs).toBeLessThan(shimMs('PODWIRE_OVERALL_DEADLINE_MS'));
});
