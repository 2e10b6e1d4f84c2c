import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, test } from 'vitest';

import { journalEntry } from '../testing/journal-store-contract.js';
import { MemoryJournalStore } from '../testing/journal-store.js';
import { recordingLog } from '../testing/plugin.js';
import { createJournalApi } from './api.js';
import { JournalEvents } from './events.js';
import { Journal } from './journal.js';
import { Replay } from './replay.js';

test('tells what waits, what it met and whether it is safe; has it done at once, and gives one up', async () => {
  const clock = new ManualClock();
  const events = new JournalEvents(recordingLog().log);
  const store = new MemoryJournalStore();
  const journal = new Journal({ store, maxEntriesCount: 10, clock, events });
  let away = true;
  const replay = new Replay({
    journal,
    clock,
    random: () => 0.5,
    events,
    execute: async ({ attachment }) => {
      if (away) return { service: 'podwire-ipam', reason: 'podwire-ipam does not answer' };
      await journal.done(attachment);
      return undefined;
    },
  });
  const desk = createJournalApi({
    journal,
    replay,
    providersOf: () => ['host-local'],
    discard: async (attachment) => {
      const entry = journal.get(attachment);
      if (entry) await journal.discard(entry, []);
      return entry;
    },
  });
  await journal.load();
  expect(JSON.parse(desk.text())).toEqual({ entries: [], unreadable: [], fault: null });
  store.aside.set('net/other/eth0', '{');
  expect(JSON.parse(desk.text()).unreadable).toEqual([{ path: 'net/other/eth0', fault: expect.stringMatching(/./) }]);
  store.aside.clear();
  store.broken = 'full';
  const { action: todo, reason } = await journal.add(journalEntry('a'));
  const told = JSON.parse(desk.text());
  expect(told.entries).toEqual([
    {
      attachment: 'net/a/eth0',
      todo,
      order: 1,
      since: new Date(clock.nowMs()).toISOString(),
      reason,
      lastFault: null,
      givers: ['host-local'],
      held: [{ address: '10.65.0.7', sequenceNumber: '9223372036854775808' }],
    },
  ]);
  expect(told.fault).toContain('not stored');
  store.broken = 'no';
  await desk.retry();
  const { entries, fault } = JSON.parse(desk.text());
  expect([entries[0].lastFault, fault]).toEqual(['podwire-ipam does not answer', null]);
  await journal.add(journalEntry('b'));
  const given = JSON.parse(await desk.discard('{"attachment":"net/b/eth0"}', new AbortController()));
  expect(given).toMatchObject({ discarded: { attachment: 'net/b/eth0', givers: ['host-local'] }, fault: null });
  for (const [request, code] of [
    ['{"attachment":"net/b/eth0"}', 'ATTACHMENT_NOT_FOUND'],
    ['{"attachment":"net/b"}', 'INVALID_REQUEST'],
    ['{"attachment":"net/a/eth0","order":1}', 'INVALID_REQUEST'],
    ['net/a/eth0', 'INVALID_REQUEST'],
  ] as const)
    await expect(desk.discard(request, new AbortController())).rejects.toMatchObject({ code });
  expect(journal.entries()).toHaveLength(1);
  away = false;
  await desk.retry();
  expect(JSON.parse(desk.text())).toEqual({ entries: [], unreadable: [], fault: null });
  await replay.stop();
});
