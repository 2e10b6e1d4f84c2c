import { createLogger } from '@podwire/shared/runtime/log';
import { expect, test } from 'vitest';

import { Events } from './events.js';

test.each([
  [999, []],
  [1000, ['requests waited 1000 ms for the datastore (commit)']],
])('a datastore that took %d ms is warned of from one second on', (durationMs, warned) => {
  const lines: string[] = [];
  const destination = { write: (line: string) => void lines.push(line) };
  new Events(createLogger({ service: 'test', level: 'warn', destination })).storeCallEnded({
    operation: 'commit',
    durationMs,
  });
  expect(lines.map((line): unknown => JSON.parse(line).msg)).toEqual(warned);
});
