import { attachments } from '@podwire/shared/testing/attachments';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { journalEntry } from '../testing/journal-store-contract.js';
import { decodeEntry, encodeEntry, RELEASE_ACTIONS, type JournalEntry } from './entry.js';

const entries: fc.Arbitrary<JournalEntry> = fc.record({
  attachment: attachments,
  action: fc.constantFrom(...RELEASE_ACTIONS),
  held: fc.option(
    fc.array(
      fc.record({
        address: fc.constantFrom('10.65.0.7', 'fd65::7'),
        sequenceNumber: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
      }),
    ),
    { nil: undefined },
  ),
  netns: fc.constantFrom('/run/netns/pod', undefined),
  refused: fc.constantFrom(true, undefined),
  reason: fc.string(),
  order: fc.nat(),
  sinceMs: fc.nat(),
});

test('an entry is read back as it was written', () => {
  fc.assert(
    fc.property(entries, (entry) => {
      expect(decodeEntry(encodeEntry(entry))).toEqual({ ok: true, entry });
    }),
    { seed: 20_261_121 },
  );
});

const stored = () => JSON.parse(encodeEntry(journalEntry('a')));

test('a field of a later release is ignored', () => {
  const text = JSON.stringify({ ...stored(), colour: 'blue' });
  expect(decodeEntry(text)).toEqual({ ok: true, entry: journalEntry('a') });
});

test('an error names the attachment of the entry, where that can be read', () => {
  const text = JSON.stringify({ ...stored(), version: 2 });
  expect(decodeEntry(text)).toEqual({ ok: false, fault: expect.stringMatching(/^of net\/a\/eth0: version: /) });
});

test.each<readonly [string, string, string]>([
  ['nothing', '', 'the file'],
  ['the first half of an entry', encodeEntry(journalEntry('a')).slice(0, 100), 'the file'],
  ['a later version', JSON.stringify({ ...stored(), version: 2 }), 'version'],
  ['a relative path of a namespace', JSON.stringify({ ...stored(), netns: 'pod' }), 'netns'],
  ['an unknown action', JSON.stringify({ ...stored(), action: 'dance' }), 'action'],
  ['a bad sequence number', JSON.stringify({ ...stored(), held: [{ address: 'a', sequenceNumber: '-1' }] }), 'held.0'],
  [
    'no attachment',
    JSON.stringify({ ...stored(), attachment: { network: '../x', containerId: 'a', interfaceName: 'eth0' } }),
    'attachment',
  ],
])('%s is an error that names the place', (_, text, where) => {
  expect(decodeEntry(text)).toEqual({ ok: false, fault: expect.stringContaining(where) });
});

test('any file content is an entry or an error', () => {
  fc.assert(
    fc.property(fc.oneof(fc.string(), fc.json()), (text) => {
      expect(decodeEntry(text).ok).toBe(false);
    }),
    { seed: 20_261_121 },
  );
});
