import { describe, expect, test } from 'vitest';

import { journalEntry, journalStoreContract } from './journal-store-contract.js';
import { MemoryJournalStore } from './journal-store.js';

describe('a journal in memory', () => {
  journalStoreContract(() => {
    const store = new MemoryJournalStore();
    return {
      open: () => store,
      spoil: (text) => {
        for (const texts of [store.texts, store.aside]) for (const key of texts.keys()) texts.set(key, text);
      },
    };
  });

  test('can be full, and still returns what it has', async () => {
    const store = new MemoryJournalStore();
    await store.put(journalEntry('a'));
    store.broken = 'full';
    await expect(store.put(journalEntry('b'))).rejects.toMatchObject({ code: 'STATE_IO' });
    await store.remove(journalEntry('a').attachment);
    expect(await store.load()).toEqual({ entries: [], unreadable: [] });
  });
});
