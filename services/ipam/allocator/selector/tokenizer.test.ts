import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { tokenize } from './tokenizer.js';

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
    ['a == "b', 5, 'a text without its end', 'a closing " behind it'],
    ['a == \'b"', 5, 'a text without its end', "a closing ' behind it"],
    ['a\n== "b"', 1, '"\\n"', 'a label key, an operator, a parenthesis or a text in quotes'],
    ['a == 🙂', 5, '"🙂"', 'a label key, an operator, a parenthesis or a text in quotes'],
  ])('of %j end with what is none', (input, offset, found, expected) => {
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
