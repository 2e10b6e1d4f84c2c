import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { ArchiveEncoder, readArchive, type ArchivedRecord, type ArchiveHeader } from './archive.js';

const HEADER: ArchiveHeader = { prefix: '/calico', store: 'etcd', revision: 42 };

function encode(records: readonly ArchivedRecord[], header = HEADER): Buffer {
  const encoder = new ArchiveEncoder();
  return Buffer.concat([
    encoder.header(header),
    ...records.map((record) => encoder.record(record)),
    encoder.trailer().line,
  ]);
}

async function* linesOf(bytes: Buffer): AsyncGenerator<Buffer> {
  if (bytes.length === 0) return;
  const text = bytes.toString('latin1');
  const lines = text.split('\n');
  for (const line of text.endsWith('\n') ? lines.slice(0, -1) : lines)
    yield await Promise.resolve(Buffer.from(line, 'latin1'));
}

async function read(bytes: Buffer) {
  const records: ArchivedRecord[] = [];
  let header: ArchiveHeader | undefined;
  for await (const part of readArchive(linesOf(bytes))) {
    if (part.type === 'header') header = part.header;
    if (part.type === 'record') records.push(part.record);
  }
  return { header, records: records.map(({ key, value }) => [key, Buffer.from(value).toString('hex')]) };
}

const SAMPLE = [
  { key: '/calico/a', value: Buffer.from('{"a":"ä"}') },
  { key: '/calico/b', value: Buffer.from([0xff, 0, 0x80]) },
  { key: '/calico/c', value: Buffer.alloc(0) },
];

test('a file returns its input, with any bytes', async () => {
  const record = fc.record({
    key: fc.string({ minLength: 1, unit: 'grapheme' }),
    value: fc.uint8Array({ maxLength: 50 }),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(record), async (records) => {
      const byKey = new Map(records.map((one) => [Buffer.from(one.key).toString(), one.value]));
      const sorted = [...byKey]
        .map(([key, value]) => ({ key, value }))
        .sort((a, b) => Buffer.compare(Buffer.from(a.key), Buffer.from(b.key)));
      const expected = sorted.map(({ key, value }) => [key, Buffer.from(value).toString('hex')]);
      await expect(read(encode(sorted))).resolves.toEqual({ header: HEADER, records: expected });
    }),
  );
});

test('text values are readable', () => {
  const [, text, binary, , trailer] = encode(SAMPLE).toString().split('\n');
  expect(text).toBe('{"key":"/calico/a","value":"{\\"a\\":\\"ä\\"}"}');
  expect(binary).toBe('{"key":"/calico/b","base64":"/wCA"}');
  expect(trailer).toMatch(/^{"records":3,"sha256":"[0-9a-f]{64}"}$/);
});

describe('a file is refused', () => {
  const whole = encode(SAMPLE);

  test('wherever it is cut off', async () => {
    for (let length = 0; length < whole.length - 1; length++)
      await expect(read(whole.subarray(0, length)), `${length} bytes`).rejects.toMatchObject({
        code: 'EXPORT_INVALID',
      });
  });

  test('with any changed byte', async () => {
    const outcomes: unknown[] = [];
    for (let at = 0; at < whole.length - 1; at++) {
      const changed = Buffer.from(whole);
      changed.writeUInt8(changed.readUInt8(at) ^ 1, at);
      outcomes.push(
        await read(changed).then(
          () => `byte ${at}`,
          (error: unknown) => (error instanceof Error && 'code' in error ? error.code : error),
        ),
      );
    }
    expect(new Set(outcomes)).toEqual(new Set(['EXPORT_INVALID']));
  });

  test.each<[string, Buffer, string]>([
    ['that is empty', Buffer.alloc(0), 'line 1 is missing'],
    ['that is not an export', Buffer.from('hello\n'), 'line 1 is not a header'],
    [
      'of another format',
      Buffer.from(whole.toString().replace('Datastore":1', 'Datastore":2')),
      'has format 2, but this release reads 1',
    ],
    ['with a key twice', encode([SAMPLE[0]!, SAMPLE[0]!]), 'line 3 has the key /calico/a after /calico/a'],
    ['with keys out of order', encode([SAMPLE[1]!, SAMPLE[0]!]), 'line 3 has the key /calico/a after /calico/b'],
    ['without its trailer', Buffer.from(whole.toString().replace(/\{"records.*\n/, '')), 'is not the trailer'],
    ['with something behind its trailer', Buffer.concat([whole, Buffer.from('{}\n')]), 'line 5 is not a record'],
    [
      'that lacks a record',
      Buffer.from(whole.toString().replace(/\{"key":"\/calico\/c.*\n/, '')),
      'counts 3 records, but the file has 2',
    ],
  ])('%s', async (_, bytes, message) => {
    await expect(read(bytes)).rejects.toThrow(message);
  });
});
