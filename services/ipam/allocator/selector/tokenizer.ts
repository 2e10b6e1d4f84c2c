import type { SelectorFault } from './ast.js';

/** Punctuation of the language; the longer ones first, as `!=` is not `!` and something. */
const PUNCTUATION = ['==', '!=', '&&', '||', '!', '(', ')', '{', '}', ','] as const;

export type Punctuation = (typeof PUNCTUATION)[number];

/** Characters of label keys; operators such as `in` and functions such as `has` are words too, told apart by their place. */
const WORD = /[a-zA-Z0-9_./-]+/y;

/** What stands between tokens: blanks and tabs, but no line breaks, which Calico does not read either. */
const BLANKS = /[ \t]*/y;

export type Token = { readonly offset: number; /** Just behind it. */ readonly end: number } & (
  | { readonly type: 'word'; readonly word: string }
  /** A text in quotes, without them. The language has no escapes. */
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: Punctuation }
  | { readonly type: 'end' }
  /** Nothing is read behind it. */
  | { readonly type: 'fault'; readonly fault: SelectorFault }
);

/** Splits a selector into tokens. The last is always `end` or `fault`. */
export function tokenize(input: string): readonly Token[] {
  const tokens: Token[] = [];
  let offset = 0;
  for (;;) {
    offset += run(BLANKS, input, offset).length;
    const token = nextToken(input, offset);
    tokens.push(token);
    if (token.type === 'end' || token.type === 'fault') return tokens;
    offset = token.end;
  }
}

function nextToken(input: string, offset: number): Token {
  if (offset === input.length) return { type: 'end', offset, end: offset };
  const word = run(WORD, input, offset);
  if (word !== '') return { type: 'word', word, offset, end: offset + word.length };
  const punctuation = PUNCTUATION.find((mark) => input.startsWith(mark, offset));
  if (punctuation) return { type: punctuation, offset, end: offset + punctuation.length };
  const first = input.charAt(offset);
  return first === '"' || first === "'" ? textToken(input, offset, first) : strayToken(input, offset);
}

function textToken(input: string, offset: number, quote: string): Token {
  const close = input.indexOf(quote, offset + 1);
  if (close < 0) {
    const fault = { offset, found: 'a text without its end', expected: `a closing ${quote} behind it` };
    return { type: 'fault', offset, end: input.length, fault };
  }
  return { type: 'text', text: input.slice(offset + 1, close), offset, end: close + 1 };
}

/** Of the marks that are written twice, one alone is a likely slip. */
const HALVES: Readonly<Record<string, string>> = { '=': '==', '&': '&&', '|': '||' };

function strayToken(input: string, offset: number): Token {
  const character = String.fromCodePoint(input.codePointAt(offset) ?? 0);
  const expected = HALVES[character] ?? 'a label key, an operator, a parenthesis or a text in quotes';
  const fault = { offset, found: JSON.stringify(character), expected };
  return { type: 'fault', offset, end: offset + character.length, fault };
}

/** What a sticky expression finds at the offset; empty for nothing. */
function run(sticky: RegExp, input: string, offset: number): string {
  sticky.lastIndex = offset;
  return sticky.exec(input)?.[0] ?? '';
}
