import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { formatJson, parseJson } from './json.js';

const seed = 20261121;
const text = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.constantFrom('\u0001', '\u00011755842000123456789', '\\u0001', '"', '\\"'),
);
const { value } = fc.letrec((tie) => ({
  value: fc.oneof(
    { maxDepth: 4 },
    fc.constantFrom(null, true, false),
    text,
    fc.maxSafeInteger(),
    fc.double({ noNaN: true, noDefaultInfinity: true, max: 1e15, min: -1e15 }).map((number) => number + 0),
    fc.bigInt({ min: 2n ** 53n, max: 2n ** 64n - 1n }),
    fc.bigInt({ min: -(2n ** 63n), max: -(2n ** 53n) }),
    fc.array(tie('value'), { maxLength: 5 }),
    fc.dictionary(text, tie('value'), { maxKeys: 5, noNullPrototype: true }),
  ),
}));

/** The output of JSON.stringify with bigints as integers. */
function oracle(json: unknown): string {
  if (typeof json === 'bigint') return String(json);
  if (Array.isArray(json)) return `[${json.map(oracle).join()}]`;
  if (typeof json !== 'object' || json === null) return JSON.stringify(json);
  return `{${Object.entries(json)
    .map(([key, item]) => `${JSON.stringify(key)}:${oracle(item)}`)
    .join()}}`;
}

describe('JSON with exact integers', () => {
  it('reads written records, with any strings', () => {
    fc.assert(
      fc.property(value, (json) => {
        const written = oracle(json);
        expect(formatJson(parseJson(written))).toBe(written);
      }),
      { seed, numRuns: 2000 },
    );
  });

  it('reads like JSON.parse where no integer is large', () => {
    fc.assert(
      fc.property(
        fc.json().filter((source) => !/\d{16}/.test(source)),
        (source) => {
          expect(parseJson(source)).toEqual(JSON.parse(source));
        },
      ),
      { seed, numRuns: 500 },
    );
  });

  it.each([
    ['9007199254740991', 9007199254740991],
    ['9007199254740992', 9007199254740992n],
    ['[ 18446744073709551615 ,\n-9223372036854775808]', [18446744073709551615n, -9223372036854775808n]],
    ['{"a":1755842000123456789}', { a: 1755842000123456789n }],
    ['"1755842000123456789"', '1755842000123456789'],
    ['["a\\\\",1755842000123456789,"\\""]', ['a\\', 1755842000123456789n, '"']],
    ['1755842000123456789.5', 1755842000123456800],
    ['0.1755842000123456789', 0.17558420001234568],
    ['1e1755842000123456789', Infinity],
  ])('reads %s', (source, expected) => {
    expect(parseJson(source)).toEqual(expected);
  });

  it.each(['', '{', '01755842000123456789', '"', '[1755842000123456789', '"a'])('refuses %j', (source) => {
    expect(() => parseJson(source)).toThrow(SyntaxError);
  });
});
