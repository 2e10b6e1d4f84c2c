import type { Labels, Selector } from './ast.js';

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

/** @param actual - the label's value; undefined when there is no such label */
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
