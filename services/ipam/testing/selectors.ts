import type { ComparisonType, MembershipType, Selector } from '../selectors/parser.js';

const OPERATORS: Record<ComparisonType | MembershipType, string> = {
  equals: '==',
  notEquals: '!=',
  contains: 'contains',
  startsWith: 'starts with',
  endsWith: 'ends with',
  in: 'in',
  notIn: 'not in',
};

/** The text of a selector, which parses to the same selector. */
export function formatSelector(selector: Selector): string {
  switch (selector.type) {
    case 'all':
    case 'global':
      return `${selector.type}()`;
    case 'has':
      return `has(${selector.key})`;
    case 'not':
      return `!${enclosed(selector.operand)}`;
    case 'and':
      return selector.operands.map(enclosed).join(' && ');
    case 'or':
      return selector.operands
        .map((operand) => (operand.type === 'or' ? enclosed(operand) : formatSelector(operand)))
        .join(' || ');
    case 'in':
    case 'notIn':
      return `${selector.key} ${OPERATORS[selector.type]} {${selector.values.map(quote).join(', ')}}`;
    case 'equals':
    case 'notEquals':
    case 'contains':
    case 'startsWith':
    case 'endsWith':
      return `${selector.key} ${OPERATORS[selector.type]} ${quote(selector.value)}`;
  }
}

function enclosed(selector: Selector): string {
  const text = formatSelector(selector);
  return selector.type === 'and' || selector.type === 'or' || selector.type === 'not' ? `(${text})` : text;
}

/** The language has no escapes, so a text contains at most one kind of quotes. */
function quote(text: string): string {
  return text.includes('"') ? `'${text}'` : `"${text}"`;
}
