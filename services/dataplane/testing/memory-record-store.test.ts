import { describe, expect, test } from 'vitest';

import { MemoryRecordStore } from './memory-record-store.js';
import { recordStoreContract, storedRecord } from './record-store-contract.js';

describe('records in memory', () => {
  recordStoreContract(() => {
    const store = new MemoryRecordStore();
    return {
      open: () => store,
      corrupt: (text) => [...store.texts.keys()].forEach((key) => store.texts.set(key, text)),
    };
  });

  test('can be full', async () => {
    const store = new MemoryRecordStore();
    store.isFull = true;
    await expect(store.put(storedRecord('a'))).rejects.toMatchObject({ code: 'STATE_IO' });
  });
});
