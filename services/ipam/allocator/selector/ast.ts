/**
 * A selector of Calico's language, read: what has to be true of the labels of a node or a namespace. Immutable. A label that is
 * missing makes `notEquals` and `notIn` true, and every other comparison false.
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
  /** Of at least two operands. */
  | { readonly type: 'and' | 'or'; readonly operands: readonly Selector[] };

/** Comparisons of a label's value with a text: `==`, `!=`, `contains`, `starts with`, `ends with`. */
export type ComparisonType = 'equals' | 'notEquals' | 'contains' | 'startsWith' | 'endsWith';

/** Comparisons of a label's value with a set of texts: `in`, `not in`. */
export type MembershipType = 'in' | 'notIn';

/** Labels of a node or a namespace: values by keys. */
export type Labels = Readonly<Record<string, string>>;

/** Why a text is no selector, and where. */
export interface SelectorFault {
  /** Where the reading stopped, in UTF-16 code units from 0; the text's length when it ended too early. */
  readonly offset: number;
  /** What stands there, as it would be quoted in a message. */
  readonly found: string;
  /** What would be right there. */
  readonly expected: string;
}
