/**
 * The language, from Calico's documentation and the behaviour of libcalico-go/lib/selector:
 *
 *     selector   = [ or ]                                    an empty one matches everything
 *     or         = and { "||" and }
 *     and        = term { "&&" term }
 *     term       = { "!" } ( function | comparison | "(" or ")" )
 *     function   = "all()" | "global()" | "has(" key ")"     no blank before the parenthesis
 *     comparison = key ( ( "==" | "!=" | "contains" | "starts with" | "ends with" ) text
 *                      | ( "in" | "not in" ) "{" [ text { "," text } [ "," ] ] "}" )
 *     key        = 1 to 512 of the letters, the digits and _ . / -
 *     text       = in ' or ", without escapes
 */

/**
 * Longest text that is parsed, in UTF-16 code units: longer than any that Calico's API accepts, so that stored
 * selectors can be evaluated.
 */
const LONGEST_TEXT = 65_536;

/** Deepest nesting of parentheses: the maximum that fits into the longest selector of Calico's API. */
const DEEPEST_NESTING = 512;

const LONGEST_KEY = 512;

export type ParsedSelector =
  { readonly ok: true; readonly selector: Selector } | { readonly ok: false; readonly fault: SelectorFault };

/** Parses a selector. Never throws for any text. */
export function parseSelector(input: string): ParsedSelector {
  if (input.length > LONGEST_TEXT) {
    const found = `a text of ${input.length} characters`;
    return { ok: false, fault: { offset: LONGEST_TEXT, found, expected: `at most ${LONGEST_TEXT}` } };
  }
  try {
    return { ok: true, selector: new Parser(input).parse() };
  } catch (error) {
    if (error instanceof ParseError) return { ok: false, fault: error.fault };
    throw error;
  }
}

/** Ends parsing at any depth. Caught by {@link parseSelector}. */
class ParseError extends Error {
  readonly fault: SelectorFault;

  constructor(fault: SelectorFault) {
    super(fault.expected);
    this.fault = fault;
  }
}

const COMPARISON_OPERATORS: Partial<Record<Token['type'], ComparisonType>> = { '==': 'equals', '!=': 'notEquals' };

/** Operators that are words; the blank within two of them may be missing. */
const WORD_OPERATORS: ReadonlyMap<string, ComparisonType | MembershipType> = new Map([
  ['contains', 'contains'],
  ['starts with', 'startsWith'],
  ['startswith', 'startsWith'],
  ['ends with', 'endsWith'],
  ['endswith', 'endsWith'],
  ['in', 'in'],
  ['not in', 'notIn'],
  ['notin', 'notIn'],
]);

/** First words of the operators that have two. */
const SECOND_WORDS: ReadonlyMap<string, string> = new Map([
  ['starts', 'with'],
  ['ends', 'with'],
  ['not', 'in'],
]);

const OPERATORS = '==, !=, in, not in, contains, starts with or ends with';

class Parser {
  readonly #tokens: readonly Token[];
  #index = 0;
  #depth = 0;

  constructor(input: string) {
    this.#tokens = tokenize(input);
  }

  parse(): Selector {
    if (this.#isAtEnd()) return { type: 'all' };
    const selector = this.#or();
    if (!this.#isAtEnd()) this.#fail('&&, || or the end of the selector');
    return selector;
  }

  get #current(): Token {
    const token = this.#tokens[this.#index];
    if (!token) throw new Error('the parser went past the last token');
    return token;
  }

  #isAtEnd(): boolean {
    return this.#current.type === 'end';
  }

  #or(): Selector {
    return this.#series('or', '||', () => this.#series('and', '&&', () => this.#term()));
  }

  #series(type: 'and' | 'or', mark: Punctuation, operand: () => Selector): Selector {
    const first = operand();
    const operands = [first];
    while (this.#accept(mark)) operands.push(operand());
    return operands.length === 1 ? first : { type, operands };
  }

  #term(): Selector {
    let negated = false;
    while (this.#accept('!')) negated = !negated;
    const operand = this.#positiveTerm();
    return negated ? { type: 'not', operand } : operand;
  }

  #positiveTerm(): Selector {
    const token = this.#current;
    if (token.type === '(') return this.#parenthesized();
    if (token.type !== 'word') return this.#fail('a label key, has(…), all(), "!" or "("');
    this.#index++;
    const opens = this.#current.type === '(' && this.#current.offset === token.end;
    if (opens && token.word === 'has') return this.#has();
    if (opens && (token.word === 'all' || token.word === 'global')) {
      this.#index++;
      this.#require(')', `")", as ${token.word}() takes no arguments`);
      return { type: token.word };
    }
    this.#checkKey(token);
    return this.#comparison(token.word);
  }

  #parenthesized(): Selector {
    if (this.#depth === DEEPEST_NESTING) this.#fail(`at most ${DEEPEST_NESTING} nested parentheses`);
    this.#depth++;
    this.#index++;
    const selector = this.#or();
    this.#require(')', '&&, || or ")"');
    this.#depth--;
    return selector;
  }

  #has(): Selector {
    this.#index++;
    const token = this.#current;
    if (token.type !== 'word') return this.#fail('a label key');
    this.#checkKey(token);
    this.#index++;
    this.#require(')', '")" after the label key');
    return { type: 'has', key: token.word };
  }

  #checkKey({ word, offset }: Token & { type: 'word' }): void {
    if (word.length <= LONGEST_KEY) return;
    throw new ParseError({
      offset,
      found: `a label key of ${word.length} characters`,
      expected: `one of at most ${LONGEST_KEY}`,
    });
  }

  #comparison(key: string): Selector {
    const type = COMPARISON_OPERATORS[this.#current.type] ?? this.#wordOperator();
    if (!type) return this.#fail(`an operator after "${key}": ${OPERATORS}`);
    this.#index++;
    return type === 'in' || type === 'notIn'
      ? { type, key, values: this.#values() }
      : { type, key, value: this.#text() };
  }

  /** The operator at the current token; for an operator of two words, advances to the second. */
  #wordOperator(): ComparisonType | MembershipType | undefined {
    const token = this.#current;
    if (token.type !== 'word') return undefined;
    const second = SECOND_WORDS.get(token.word);
    if (second === undefined) return WORD_OPERATORS.get(token.word);
    this.#index++;
    if (this.#current.type !== 'word' || this.#current.word !== second)
      this.#fail(`"${second}", as in "${token.word} ${second}"`);
    return WORD_OPERATORS.get(`${token.word} ${second}`);
  }

  #text(): string {
    const token = this.#current;
    if (token.type !== 'text') return this.#fail('a text in quotes');
    this.#index++;
    return token.text;
  }

  #values(): string[] {
    this.#require('{', '"{" and texts in quotes');
    const values: string[] = [];
    while (this.#current.type === 'text') {
      values.push(this.#text());
      if (this.#accept(',')) continue;
      this.#require('}', '"," or "}"');
      return values;
    }
    this.#require('}', 'a text in quotes or "}"');
    return values;
  }

  #accept(mark: Punctuation): boolean {
    const found = this.#current.type === mark;
    if (found) this.#index++;
    return found;
  }

  #require(mark: Punctuation, expected: string): void {
    if (!this.#accept(mark)) this.#fail(expected);
  }

  #fail(expected: string): never {
    const token = this.#current;
    if (token.type === 'fault') throw new ParseError(token.fault);
    throw new ParseError({ offset: token.offset, found: describe(token), expected });
  }
}

function describe(token: Exclude<Token, { type: 'fault' }>): string {
  if (token.type === 'end') return 'the end of the selector';
  if (token.type === 'text') return `the text ${JSON.stringify(token.text.slice(0, 40))}`;
  return `"${token.type === 'word' ? token.word.slice(0, 40) : token.type}"`;
}

/**
 * A parsed selector of Calico's language: a condition on the labels of a node or a namespace. Immutable. A missing
 * label makes `notEquals` and `notIn` true, and every other comparison false.
 */
export type Selector =
  /** `all()`, and the empty selector: matches everything. */
  | { readonly type: 'all' }
  /** `global()`: matches everything, as in Calico. It means "no namespace" in its policies; a pool's selectors may not use it. */
  | { readonly type: 'global' }
  | { readonly type: 'has'; readonly key: string }
  | { readonly type: ComparisonType; readonly key: string; readonly value: string }
  | { readonly type: MembershipType; readonly key: string; readonly values: readonly string[] }
  | { readonly type: 'not'; readonly operand: Selector }
  /** Conjunction or disjunction of at least two operands. */
  | { readonly type: 'and' | 'or'; readonly operands: readonly Selector[] };

/** Comparisons of a label's value with a text: `==`, `!=`, `contains`, `starts with`, `ends with`. */
export type ComparisonType = 'equals' | 'notEquals' | 'contains' | 'startsWith' | 'endsWith';

/** Comparisons of a label's value with a set of texts: `in`, `not in`. */
export type MembershipType = 'in' | 'notIn';

/** Labels of a node or a namespace: values by keys. */
export type Labels = Readonly<Record<string, string>>;

/** Why and where a text is not a valid selector. */
export interface SelectorFault {
  /** Where parsing failed, in UTF-16 code units from 0; the text's length if it ended too early. */
  readonly offset: number;
  /** The text found there, as quoted in a message. */
  readonly found: string;
  /** The text expected there. */
  readonly expected: string;
}

/** Punctuation of the language; the longer ones first, so that `!=` is not read as `!`. */
const PUNCTUATION = ['==', '!=', '&&', '||', '!', '(', ')', '{', '}', ','] as const;

type Punctuation = (typeof PUNCTUATION)[number];

/**
 * Characters of label keys; operators such as `in` and functions such as `has` are words too, distinguished by
 * position.
 */
const WORD = /[a-zA-Z0-9_./-]+/y;

/** Blanks between tokens: spaces and tabs. Like Calico, line breaks are not accepted. */
const BLANKS = /[ \t]*/y;

type Token = { readonly offset: number; /** Just after it. */ readonly end: number } & (
  | { readonly type: 'word'; readonly word: string }
  /** A text in quotes, without them. The language has no escapes. */
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: Punctuation }
  | { readonly type: 'end' }
  /** Nothing is read after it. */
  | { readonly type: 'fault'; readonly fault: SelectorFault }
);

/** Splits a selector into tokens. The last is always `end` or `fault`. */
export function tokenize(input: string): readonly Token[] {
  const tokens: Token[] = [];
  let offset = 0;
  for (;;) {
    offset += matchAt(BLANKS, input, offset).length;
    const token = nextToken(input, offset);
    tokens.push(token);
    if (token.type === 'end' || token.type === 'fault') return tokens;
    offset = token.end;
  }
}

function nextToken(input: string, offset: number): Token {
  if (offset === input.length) return { type: 'end', offset, end: offset };
  const word = matchAt(WORD, input, offset);
  if (word !== '') return { type: 'word', word, offset, end: offset + word.length };
  const punctuation = PUNCTUATION.find((mark) => input.startsWith(mark, offset));
  if (punctuation) return { type: punctuation, offset, end: offset + punctuation.length };
  const first = input.charAt(offset);
  return first === '"' || first === "'" ? textToken(input, offset, first) : unexpectedToken(input, offset);
}

function textToken(input: string, offset: number, quote: string): Token {
  const close = input.indexOf(quote, offset + 1);
  if (close < 0) {
    const fault = { offset, found: 'a text without its end', expected: `a closing ${quote} after it` };
    return { type: 'fault', offset, end: input.length, fault };
  }
  return { type: 'text', text: input.slice(offset + 1, close), offset, end: close + 1 };
}

/** A single `=`, `&` or `|` is a likely typo. */
const HALF_OPERATORS: Readonly<Record<string, string>> = { '=': '==', '&': '&&', '|': '||' };

function unexpectedToken(input: string, offset: number): Token {
  const character = String.fromCodePoint(input.codePointAt(offset) ?? 0);
  const expected = HALF_OPERATORS[character] ?? 'a label key, an operator, a parenthesis or a text in quotes';
  const fault = { offset, found: JSON.stringify(character), expected };
  return { type: 'fault', offset, end: offset + character.length, fault };
}

/** The match of a sticky expression at the offset; empty without a match. */
function matchAt(sticky: RegExp, input: string, offset: number): string {
  sticky.lastIndex = offset;
  return sticky.exec(input)?.[0] ?? '';
}
