import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { formatSelector } from '../testing/selectors.js';
import { parseSelector, tokenize, type ComparisonType, type MembershipType, type Selector } from './parser.js';

const A: Selector = { type: 'equals', key: 'a', value: 'x' };
const B: Selector = { type: 'equals', key: 'b', value: 'y' };
const C: Selector = { type: 'has', key: 'c' };

describe('a selector', () => {
  test.each<[string, Selector]>([
    ['', { type: 'all' }],
    [' \t ', { type: 'all' }],
    ['all()', { type: 'all' }],
    ['all( )', { type: 'all' }],
    ['global()', { type: 'global' }],
    ['has(a)', { type: 'has', key: 'a' }],
    ['has( a\t)', { type: 'has', key: 'a' }],
    ['has(in)', { type: 'has', key: 'in' }],
    ['!has(a)', { type: 'not', operand: { type: 'has', key: 'a' } }],
    ['!!has(a)', { type: 'has', key: 'a' }],
    ['! ! !has(a)', { type: 'not', operand: { type: 'has', key: 'a' } }],
    ['a == "x"', A],
    ["a=='x'", A],
    ['a != ""', { type: 'notEquals', key: 'a', value: '' }],
    ['a contains "x"', { type: 'contains', key: 'a', value: 'x' }],
    ['a starts with "x"', { type: 'startsWith', key: 'a', value: 'x' }],
    ['a starts  with"x"', { type: 'startsWith', key: 'a', value: 'x' }],
    ['a startswith "x"', { type: 'startsWith', key: 'a', value: 'x' }],
    ['a ends\twith "x"', { type: 'endsWith', key: 'a', value: 'x' }],
    ['a endswith "x"', { type: 'endsWith', key: 'a', value: 'x' }],
    ['a in {"x", \'y\'}', { type: 'in', key: 'a', values: ['x', 'y'] }],
    ['a in{"x",}', { type: 'in', key: 'a', values: ['x'] }],
    ['a in {}', { type: 'in', key: 'a', values: [] }],
    ['a not in {"x"}', { type: 'notIn', key: 'a', values: ['x'] }],
    ['a notin{"x"}', { type: 'notIn', key: 'a', values: ['x'] }],
    // The position of a word decides its meaning, so each of them can be a label's key.
    ['in in {"x"}', { type: 'in', key: 'in', values: ['x'] }],
    ['has == "x"', { type: 'equals', key: 'has', value: 'x' }],
    ['all == "x"', { type: 'equals', key: 'all', value: 'x' }],
    ['not not in {}', { type: 'notIn', key: 'not', values: [] }],
    ['starts starts with "x"', { type: 'startsWith', key: 'starts', value: 'x' }],
    ['projectcalico.org/name == "\\n"', { type: 'equals', key: 'projectcalico.org/name', value: String.raw`\n` }],
    ['a=="x"&&b=="y"', { type: 'and', operands: [A, B] }],
    ['a=="x"||b=="y"&&has(c)', { type: 'or', operands: [A, { type: 'and', operands: [B, C] }] }],
    ['(a=="x"||b=="y")&&has(c)', { type: 'and', operands: [{ type: 'or', operands: [A, B] }, C] }],
    ['!a=="x"&&b=="y"', { type: 'and', operands: [{ type: 'not', operand: A }, B] }],
    ['!(a=="x"&&b=="y")', { type: 'not', operand: { type: 'and', operands: [A, B] } }],
    ['((a=="x"))', A],
  ])('%j is read', (text, selector) => {
    expect(parseSelector(text)).toEqual({ ok: true, selector });
  });

  test.each([
    [
      'a',
      1,
      'the end of the selector',
      'an operator after "a": ==, !=, in, not in, contains, starts with or ends with',
    ],
    ['a b', 2, '"b"', 'an operator after "a": ==, !=, in, not in, contains, starts with or ends with'],
    ['a ==', 4, 'the end of the selector', 'a text in quotes'],
    ['a == b', 5, '"b"', 'a text in quotes'],
    ['a = "b"', 2, '"="', '=='],
    ['a == "b', 5, 'a text without its end', 'a closing " after it'],
    ['a starts "b"', 9, 'the text "b"', '"with", as in "starts with"'],
    ['a not "b"', 6, 'the text "b"', '"in", as in "not in"'],
    ['a in "b"', 5, 'the text "b"', '"{" and texts in quotes'],
    ['a in {b}', 6, '"b"', 'a text in quotes or "}"'],
    ['a in {"b" "c"}', 10, 'the text "c"', '"," or "}"'],
    ['a in {"b",,}', 10, '","', 'a text in quotes or "}"'],
    ['a in {"b"', 9, 'the end of the selector', '"," or "}"'],
    ['has(', 4, 'the end of the selector', 'a label key'],
    ['has()', 4, '")"', 'a label key'],
    ['has("a")', 4, 'the text "a"', 'a label key'],
    ['has(a b)', 6, '"b"', '")" after the label key'],
    ['has (a)', 4, '"("', 'an operator after "has": ==, !=, in, not in, contains, starts with or ends with'],
    ['all(a)', 4, '"a"', '")", as all() takes no arguments'],
    ['global(a)', 7, '"a"', '")", as global() takes no arguments'],
    ['all() &&', 8, 'the end of the selector', 'a label key, has(…), all(), "!" or "("'],
    ['&& all()', 0, '"&&"', 'a label key, has(…), all(), "!" or "("'],
    ['!', 1, 'the end of the selector', 'a label key, has(…), all(), "!" or "("'],
    ['()', 1, '")"', 'a label key, has(…), all(), "!" or "("'],
    ['(all()', 6, 'the end of the selector', '&&, || or ")"'],
    ['all())', 5, '")"', '&&, || or the end of the selector'],
    ['all() all()', 6, '"all"', '&&, || or the end of the selector'],
    ['all() has(a)', 6, '"has"', '&&, || or the end of the selector'],
  ])('%j is refused with the position and the expected token', (text, offset, found, expected) => {
    expect(parseSelector(text)).toEqual({ ok: false, fault: { offset, found, expected } });
  });

  test('reports its first fault, even before a character that is a fault itself', () => {
    expect(parseSelector('a == b && "')).toMatchObject({ ok: false, fault: { offset: 5 } });
  });

  test.each([
    ['longest key', `${'k'.repeat(512)} == "x"`, true],
    ['longer key', `${'k'.repeat(513)} == "x"`, false],
    ['longer key in has', `has(${'k'.repeat(513)})`, false],
    ['deepest nesting', `${'('.repeat(512)}all()${')'.repeat(512)}`, true],
    ['deeper nesting', `${'('.repeat(513)}all()${')'.repeat(513)}`, false],
    ['open parentheses', '('.repeat(65_536), false],
    ['negations', `${'!'.repeat(65_531)}all()`, true],
    ['negated parentheses', '!('.repeat(32_768), false],
    ['longer text', ' '.repeat(65_537), false],
    ['long chain', Array(8_000).fill('has(a)').join('||'), true],
  ])('with the %s is bounded', (_, text, ok) => {
    expect(parseSelector(text).ok).toBe(ok);
  });

  test('never throws and points into the text, for any text', () => {
    const pieces = [
      'a',
      ' ',
      '(',
      ')',
      '{',
      '}',
      '!',
      '==',
      '!=',
      '&&',
      '||',
      ',',
      '"x"',
      "'",
      'has(',
      'all()',
      'in',
      'not',
    ];
    const texts = fc.oneof(
      fc.array(fc.constantFrom(...pieces)).map((parts) => parts.join('')),
      fc.string({ unit: 'binary' }),
    );
    fc.assert(
      fc.property(texts, (text) => {
        const parsed = parseSelector(text);
        if (parsed.ok) return;
        expect(parsed.fault.offset).toBeGreaterThanOrEqual(0);
        expect(parsed.fault.offset).toBeLessThanOrEqual(text.length);
      }),
      { numRuns: 2_000 },
    );
  });
});

describe('a selector that is written as text', () => {
  const key = fc.string({
    unit: fc.constantFrom('a', 'b', 'Z', '0', '9', '_', '.', '/', '-'),
    minLength: 1,
    maxLength: 8,
  });
  const odd = fc.constantFrom('in', 'not', 'has', 'all', 'global', 'starts', 'ends', 'contains', 'with');
  const keys = fc.oneof(key, odd);
  const value = fc
    .string({ unit: 'binary', maxLength: 8 })
    .filter((text) => !(text.includes('"') && text.includes("'")));
  const comparison = fc.constantFrom<ComparisonType>('equals', 'notEquals', 'contains', 'startsWith', 'endsWith');
  const membership = fc.constantFrom<MembershipType>('in', 'notIn');
  const { selector } = fc.letrec<{ selector: Selector }>((tie) => ({
    selector: fc.oneof(
      { depthSize: 'small' },
      fc.record({ type: fc.constantFrom('all', 'global') }),
      fc.record({ type: fc.constant('has'), key: keys }),
      fc.record({ type: comparison, key: keys, value }),
      fc.record({ type: membership, key: keys, values: fc.array(value, { maxLength: 3 }) }),
      fc.record({ type: fc.constant('not'), operand: tie('selector') }),
      fc.record({
        type: fc.constantFrom('and', 'or'),
        operands: fc.array(tie('selector'), { minLength: 2, maxLength: 3 }),
      }),
    ),
  }));

  test('reads back as itself', () => {
    fc.assert(
      fc.property(selector, (written) => {
        expect(parseSelector(formatSelector(written))).toEqual({ ok: true, selector: written });
      }),
      { numRuns: 1_000 },
    );
  });
});

describe('tokens', () => {
  test('are words, texts and punctuation, each with its place', () => {
    expect(tokenize(`has(a.b/c_d-9) &&\t!x!="y'" `)).toEqual([
      { type: 'word', word: 'has', offset: 0, end: 3 },
      { type: '(', offset: 3, end: 4 },
      { type: 'word', word: 'a.b/c_d-9', offset: 4, end: 13 },
      { type: ')', offset: 13, end: 14 },
      { type: '&&', offset: 15, end: 17 },
      { type: '!', offset: 18, end: 19 },
      { type: 'word', word: 'x', offset: 19, end: 20 },
      { type: '!=', offset: 20, end: 22 },
      { type: 'text', text: "y'", offset: 22, end: 26 },
      { type: 'end', offset: 27, end: 27 },
    ]);
  });

  test.each([
    ['a = "b"', 2, '"="', '=='],
    ['a & b', 2, '"&"', '&&'],
    ['a | b', 2, '"|"', '||'],
    ['a == "b', 5, 'a text without its end', 'a closing " after it'],
    ['a == \'b"', 5, 'a text without its end', "a closing ' after it"],
    ['a\n== "b"', 1, '"\\n"', 'a label key, an operator, a parenthesis or a text in quotes'],
    ['a == 🙂', 5, '"🙂"', 'a label key, an operator, a parenthesis or a text in quotes'],
  ])('of %j end with a fault', (input, offset, found, expected) => {
    expect(tokenize(input).at(-1)).toMatchObject({ type: 'fault', offset, fault: { offset, found, expected } });
  });

  test('follow each other, with blanks alone between them, whatever the text', () => {
    const texts = fc.oneof(
      fc.string({ unit: fc.constantFrom('a', '.', '(', '}', '!', '=', '&', '|', ',', '"', "'", ' ', '\t') }),
      fc.string({ unit: 'binary' }),
    );
    fc.assert(
      fc.property(texts, (input) => {
        let behind = 0;
        for (const { offset, end } of tokenize(input)) {
          expect(input.slice(behind, offset)).toMatch(/^[ \t]*$/);
          expect(end).toBeGreaterThanOrEqual(offset);
          behind = end;
        }
      }),
    );
  });
});
