import { parseSelector, type Labels, type ParsedSelector, type Selector, type SelectorFault } from './parser.js';

/** Longest selector that Calico's API accepts, in characters. */
export const LONGEST_SELECTOR = 1024;

/** Whether a selector matches, or why it is invalid. */
interface Match {
  /** False for an invalid selector. */
  readonly matches: boolean;
  /** Why the selector is invalid, with the position; undefined for a valid one. */
  readonly fault: string | undefined;
}

/** Whether a stored selector matches labels. Parsed selectors are cached, because pools rarely change them. */
export function matches(text: string, labels: Labels): Match {
  const parsed = parseCached(text);
  return parsed.ok
    ? { matches: evaluate(parsed.selector, labels), fault: undefined }
    : { matches: false, fault: describeFault(text, parsed.fault) };
}

/** Parses a stored selector; undefined for an invalid one. */
export function readSelector(text: string): Selector | undefined {
  const parsed = parseCached(text);
  return parsed.ok ? parsed.selector : undefined;
}

/**
 * Maximum number of cached selectors, each of at most {@link LONGEST_SELECTOR} code units; the oldest is evicted first.
 */
const MAX_CACHED_SELECTORS = 1024;

const cache = new Map<string, ParsedSelector>();

function parseCached(text: string): ParsedSelector {
  const known = cache.get(text);
  if (known) return known;
  const parsed = parseSelector(text);
  if (text.length > LONGEST_SELECTOR) return parsed;
  const [oldest] = cache.keys();
  if (cache.size === MAX_CACHED_SELECTORS && oldest !== undefined) cache.delete(oldest);
  cache.set(text, parsed);
  return parsed;
}

/** Why a text is not allowed as a pool's selector; undefined when it is. */
export function selectorFault(text: string): string | undefined {
  const length = Array.from(text).length;
  if (length > LONGEST_SELECTOR) return `is ${length} characters long; at most ${LONGEST_SELECTOR} are allowed`;
  const parsed = parseSelector(text);
  if (!parsed.ok) return `is not a valid selector: ${describeFault(text, parsed.fault)}`;
  return usesGlobal(parsed.selector)
    ? 'uses global(), which is only for policies; use all(), or leave the selector empty'
    : undefined;
}

/** Whether a selector is written as one that matches everything: empty, or `all()`. */
export function selectsAll(text: string): boolean {
  const parsed = parseCached(text);
  return parsed.ok && parsed.selector.type === 'all';
}

function usesGlobal(selector: Selector): boolean {
  if (selector.type === 'not') return usesGlobal(selector.operand);
  if (selector.type === 'and' || selector.type === 'or') return selector.operands.some(usesGlobal);
  return selector.type === 'global';
}

/** A fault in one line: `at character 8: "=" found, == expected`. Characters are counted from 1. */
function describeFault(text: string, { offset, found, expected }: SelectorFault): string {
  const character = Array.from(text.slice(0, offset)).length + 1;
  return `at character ${character}: ${found} found, ${expected} expected`;
}

/** Whether a selector holds for labels. */
export function evaluate(selector: Selector, labels: Labels): boolean {
  switch (selector.type) {
    case 'all':
    case 'global':
      return true;
    case 'has':
      return Object.hasOwn(labels, selector.key);
    case 'not':
      return !evaluate(selector.operand, labels);
    case 'and':
      return selector.operands.every((operand) => evaluate(operand, labels));
    case 'or':
      return selector.operands.some((operand) => evaluate(operand, labels));
    case 'equals':
    case 'notEquals':
    case 'contains':
    case 'startsWith':
    case 'endsWith':
    case 'in':
    case 'notIn':
      return compare(selector, Object.hasOwn(labels, selector.key) ? labels[selector.key] : undefined);
  }
}

type Comparison = Extract<Selector, { readonly value: string } | { readonly values: readonly string[] }>;

/** @param actual - the label's value; undefined when the label is missing */
function compare(selector: Comparison, actual: string | undefined): boolean {
  switch (selector.type) {
    case 'equals':
      return actual === selector.value;
    case 'notEquals':
      return actual !== selector.value;
    case 'contains':
      return actual?.includes(selector.value) ?? false;
    case 'startsWith':
      return actual?.startsWith(selector.value) ?? false;
    case 'endsWith':
      return actual?.endsWith(selector.value) ?? false;
    case 'in':
      return actual !== undefined && selector.values.includes(actual);
    case 'notIn':
      return actual === undefined || !selector.values.includes(actual);
  }
}
