import { expect, test } from 'vitest';

import { ManualClock } from '../testing/manual-clock.js';
import { recordingLog } from '../testing/server.js';
import { RpcEvents } from './rpc-events.js';

test('refusals of a caller are logged once a minute, with its name', () => {
  const { log, lines } = recordingLog();
  const clock = new ManualClock();
  const events = new RpcEvents({ log, clock });
  const refuse = (name: string): void => {
    for (let count = 0; count < 100; count++) events.refused(`node "${name}"`, 'node', 'requests');
  };

  refuse('worker-1');
  refuse('worker-2');
  clock.advance(59_000);
  refuse('worker-1');
  clock.advance(1000);
  refuse('worker-1');

  expect(lines.map((line) => line['podwire.caller'])).toEqual([
    'node "worker-1"',
    'node "worker-2"',
    'node "worker-1"',
  ]);
  expect(lines[0]).toMatchObject({ level: 'warn', reason: 'requests' });
});
