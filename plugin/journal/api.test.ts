import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, test } from 'vitest';

import { journalEntry } from '../testing/journal-store-contract.js';
import { MemoryJournalStore } from '../testing/journal-store.js';
import { recordingLog } from '../testing/plugin.js';
import { createJournalApi } from './api.js';
import { JournalEvents } from './events.js';
import { Journal } from './journal.js';
import { Replay } from './replay.js';

test('lists entries with age, error and durability, retries them at once, and discards one', async () => {
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
  const api = createJournalApi({
    journal,
    replay,
    providers: { typesOf: () => ['host-local'] },
    releases: {
      discard: async (attachment) => {
        const entry = journal.get(attachment);
        if (entry) await journal.discard(entry, []);
        return entry;
      },
    },
  });
  await journal.load();
  expect(JSON.parse(api.text())).toEqual({ entries: [], unreadable: [], fault: null });
  store.aside.set('net/other/eth0', '{');
  expect(JSON.parse(api.text()).unreadable).toEqual([{ path: 'net/other/eth0', fault: expect.stringMatching(/./) }]);
  store.aside.clear();
  store.broken = 'full';
  const { action, reason } = await journal.add(journalEntry('a'));
  const listed = JSON.parse(api.text());
  expect(listed.entries).toEqual([
    {
      attachment: 'net/a/eth0',
      action,
      order: 1,
      since: new Date(clock.nowMs()).toISOString(),
      reason,
      lastFault: null,
      providers: ['host-local'],
      held: [{ address: '10.65.0.7', sequenceNumber: '9223372036854775808' }],
    },
  ]);
  expect(listed.fault).toContain('not stored');
  store.broken = 'no';
  await api.retry();
  const { entries, fault } = JSON.parse(api.text());
  expect([entries[0].lastFault, fault]).toEqual(['podwire-ipam does not answer', null]);
  await journal.add(journalEntry('b'));
  const discarded = JSON.parse(await api.discard('{"attachment":"net/b/eth0"}', new AbortController()));
  expect(discarded).toMatchObject({ discarded: { attachment: 'net/b/eth0', providers: ['host-local'] }, fault: null });
  for (const [request, code] of [
    ['{"attachment":"net/b/eth0"}', 'ATTACHMENT_NOT_FOUND'],
    ['{"attachment":"net/b"}', 'INVALID_REQUEST'],
    ['{"attachment":"net/a/eth0","order":1}', 'INVALID_REQUEST'],
    ['net/a/eth0', 'INVALID_REQUEST'],
  ] as const)
    await expect(api.discard(request, new AbortController())).rejects.toMatchObject({ code });
  expect(journal.entries()).toHaveLength(1);
  away = false;
  await api.retry();
  expect(JSON.parse(api.text())).toEqual({ entries: [], unreadable: [], fault: null });
  await replay.stop();
});
