import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { ByteWriter, sharedEnds } from '../../store/record/byte-writer.js';

const items = fc.array(fc.constantFrom('', 'a', 'bü', '"c,"', '€'), { maxLength: 8 });

describe('bytes that are put together', () => {
  const writer = new ByteWriter();

  test('property: have the texts of a list with commas between them, whichever it was before', () => {
    const property = fc.property(fc.array(items, { minLength: 1, maxLength: 6 }), (states) => {
      let before;
      let bytes: Buffer | undefined;
      let earlier: readonly string[] = [];
      for (const state of states) {
        writer.begin(bytes);
        writer.text('ü[');
        const shared = sharedEnds(earlier, state);
        before = writer.list(state, { before, shared, textOf: (item) => item });
        writer.text(']');
        bytes = writer.end();
        earlier = state;
        expect(bytes.toString()).toBe(`ü[${state.filter((item) => item !== '').join(',')}]`);
      }
    });
    fc.assert(property, { seed: 20261125, numRuns: 2000 });
  });

  test('have integers as JSON has them', () => {
    const values = [0, 7, 10, 99, 100, null, 4095, Number.MAX_SAFE_INTEGER];
    writer.begin(undefined);
    writer.integers(values);
    expect(`[${writer.end().toString()}]`).toBe(JSON.stringify(values));
  });

  test('are as many as there are, and stay as they are when others are put together', () => {
    const long = '€'.repeat(100_000);
    writer.begin(undefined);
    writer.text('a');
    writer.text(long);
    expect(writer.count).toBe(300_001);
    const first = writer.end();
    writer.begin(first);
    writer.copy(1, 300_001);
    writer.integers(Array.from({ length: 100_000 }, () => Number.MAX_SAFE_INTEGER));
    expect(writer.end().subarray(0, 300_000).toString()).toBe(long);
    expect(first.toString()).toBe(`a${long}`);
  });
});
