import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import type { Labels } from './parser.js';
import { LONGEST_SELECTOR, matches, selectorFault, selectsAll } from './selector.js';

const LABELS: Labels = { zone: 'eu-1', rack: '' };

describe('a selector matches', () => {
  test.each([
    ['', true],
    ['all()', true],
    ['global()', true],
    ['!all()', false],
    ['has(zone)', true],
    ['has(rack)', true],
    ['has(missing)', false],
    ['!has(missing)', true],
    ['zone == "eu-1"', true],
    ['zone == "EU-1"', false],
    ['zone == "eu"', false],
    ['rack == ""', true],
    ['missing == ""', false],
    ['zone != "eu-1"', false],
    ['zone != "us"', true],
    ['missing != ""', true],
    ['missing != "x"', true],
    ['zone in {"us", "eu-1"}', true],
    ['zone in {}', false],
    ['missing in {""}', false],
    ['zone not in {"us", "eu-1"}', false],
    ['zone not in {}', true],
    ['missing not in {"x"}', true],
    ['missing not in {""}', true],
    ['zone contains "-"', true],
    ['zone contains ""', true],
    ['missing contains ""', false],
    ['zone starts with "eu"', true],
    ['zone starts with "1"', false],
    ['missing starts with ""', false],
    ['zone ends with "1"', true],
    ['zone ends with "eu"', false],
    ['missing ends with ""', false],
    ['!(missing contains "x")', true],
    // Labels are the node's, not the properties of every object.
    ['has(constructor)', false],
    ['toString != "x"', true],
    ['has(__proto__)', false],
  ])('%j: %s', (text, expected) => {
    expect(matches(text, LABELS)).toEqual({ matches: expected, fault: undefined });
    expect(matches(text, LABELS), 'also when it is remembered').toEqual({ matches: expected, fault: undefined });
  });

  test('nothing when it cannot be read, with the reason', () => {
    const fault = 'at character 10: "=" found, == expected';
    expect(matches('a == "b" = c', {})).toEqual({ matches: false, fault });
    expect(matches('a == "b" = c', {}), 'also when it is remembered').toEqual({ matches: false, fault });
    expect(matches('a == "🙂" = c', {}), 'counts characters').toEqual({ matches: false, fault });
  });

  test('also after more texts than are cached', () => {
    for (let index = 0; index < 3_000; index++)
      expect(matches(`zone == "eu-${index}"`, LABELS).matches).toBe(index === 1);
    expect(matches('zone == "eu-1"', LABELS).matches).toBe(true);
  });
});

/** A selector's text, and its meaning, expressed without the language: the two are composed side by side. */
interface Told {
  readonly text: string;
  readonly holds: (labels: Labels) => boolean;
  /** How tightly the text's outermost operator binds: 2 a term, 1 `&&`, 0 `||`. */
  readonly binding: 0 | 1 | 2;
}

const keys = fc.constantFrom('a', 'b', 'in', 'x.y/z-1_2');
const values = fc.constantFrom('', 'p', 'pq', 'q', "it's", 'r "s"');
const blanks = fc.constantFrom('', ' ', '\t', '  ');
const one = fc.constantFrom(' ', '\t ');

function quoted(text: string): string {
  return text.includes('"') ? `'${text}'` : `"${text}"`;
}

/** Every part of a text that has the length. */
function parts(text: string, length: number): string[] {
  return Array.from(text, (_, start) => text.substring(start, start + length)).concat(length === 0 ? [''] : []);
}

const comparisons: readonly (readonly [string, (actual: string | undefined, wanted: string) => boolean])[] = [
  ['==', (actual, wanted) => actual === wanted],
  ['!=', (actual, wanted) => !(actual === wanted)],
  ['contains', (actual, wanted) => actual !== undefined && parts(actual, wanted.length).includes(wanted)],
  ['starts with', (actual, wanted) => actual?.substring(0, wanted.length) === wanted],
  ['ends with', (actual, wanted) => actual?.slice(Math.max(0, actual.length - wanted.length)) === wanted],
];

const comparison = fc
  .tuple(keys, fc.constantFrom(...comparisons), values, one, blanks)
  .map(([key, [operator, compare], value, before, behind]): Told => ({
    text: `${key}${before}${operator}${behind}${quoted(value)}`,
    holds: (labels) => compare(labels[key], value),
    binding: 2,
  }));

const membership = fc
  .tuple(keys, fc.boolean(), fc.array(values, { maxLength: 3 }), one, blanks)
  .map(([key, negative, set, before, behind]): Told => ({
    text: `${key}${before}${negative ? `not${before}in` : 'in'}${behind}{${set.map(quoted).join(`${behind},`)}}`,
    holds: (labels) => set.some((value) => value === labels[key]) !== negative,
    binding: 2,
  }));

const presence = fc
  .tuple(keys, blanks)
  .map(([key, blank]): Told => ({ text: `has(${blank}${key})`, holds: (labels) => key in labels, binding: 2 }));

const all = fc.constant<Told>({ text: 'all()', holds: () => true, binding: 2 });

/** Text in parentheses where precedence requires it, and sometimes where it does not. */
function enclosed({ text, binding }: Told, around: number, spare: boolean): string {
  return binding < around || spare ? `(${text})` : text;
}

const { told } = fc.letrec<{ told: Told }>((tie) => ({
  told: fc.oneof(
    { depthSize: 'small' },
    comparison,
    membership,
    presence,
    all,
    fc.tuple(tie('told'), fc.boolean(), blanks).map(([operand, spare, blank]): Told => ({
      text: `!${blank}${enclosed(operand, 2, spare)}`,
      holds: (labels) => !operand.holds(labels),
      binding: 2,
    })),
    fc.tuple(tie('told'), tie('told'), fc.boolean(), blanks).map(([left, right, spare, blank]): Told => ({
      text: `${enclosed(left, 1, spare)}${blank}&&${blank}${enclosed(right, 1, spare)}`,
      holds: (labels) => left.holds(labels) && right.holds(labels),
      binding: 1,
    })),
    fc.tuple(tie('told'), tie('told'), fc.boolean(), blanks).map(([left, right, spare, blank]): Told => ({
      text: `${enclosed(left, 0, spare)}${blank}||${blank}${enclosed(right, 0, spare)}`,
      holds: (labels) => left.holds(labels) || right.holds(labels),
      binding: 0,
    })),
  ),
}));

test('any selector matches the labels of its meaning', () => {
  const labels = fc.dictionary(keys, values, { noNullPrototype: true });
  fc.assert(
    fc.property(told, labels, ({ text, holds }, of) => {
      expect(matches(text, of)).toEqual({ matches: holds(of), fault: undefined });
    }),
    { numRuns: 3_000 },
  );
});

describe("a pool's selector", () => {
  test.each([
    ['', undefined],
    ['all()', undefined],
    ['has(a) && b == "c"', undefined],
    ['global()', 'uses global(), which is only for policies; use all(), or leave the selector empty'],
    ['has(a) || !(b == "c" && !global())', expect.stringMatching(/^uses global\(\)/)],
    ['a ==', 'is not a valid selector: at character 5: the end of the selector found, a text in quotes expected'],
    [`a == "${'x'.repeat(LONGEST_SELECTOR - 7)}"`, undefined],
    [`a == "${'x'.repeat(LONGEST_SELECTOR - 6)}"`, 'is 1025 characters long; at most 1024 are allowed'],
    // Characters are counted as code points, not as UTF-16 units.
    [`a == "${'🙂'.repeat(LONGEST_SELECTOR - 7)}"`, undefined],
  ])('%j is validated', (text, fault) => {
    expect(selectorFault(text)).toEqual(fault);
  });

  test.each([
    ['', true],
    [' ', true],
    [' all( ) ', true],
    ['(all())', true],
    ['!!all()', true],
    ['global()', false],
    ['has(a) || all()', false],
    ['all(', false],
  ])('%j selects all by its form: %s', (text, expected) => {
    expect(selectsAll(text)).toBe(expected);
  });
});
