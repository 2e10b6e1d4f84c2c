import type { RequestPolicy } from '../../records/request-policy.js';
import { readSelector } from '../../selectors/selector.js';
import type { Labels, Selector } from '../selector/ast.js';
import { evaluate } from '../selector/evaluate.js';

/** The label that Kubernetes gives every namespace: its name. Nobody can set it to anything else. */
export const NAME_LABEL = 'kubernetes.io/metadata.name';

/** A pod's namespace, as far as it is known. */
export interface Namespace {
  readonly name: string;
  /** Empty when they are not known: a namespace has its name at least. */
  readonly labels: Labels;
}

/** The labels of a namespace with the one that is always known. */
export function knownLabels({ name, labels }: Namespace): Labels {
  return { ...labels, [NAME_LABEL]: name };
}

/** Whether a policy is about a namespace; `unknown` when that depends on labels that are not known. */
export type Concern = 'yes' | 'no' | 'unknown';

export function concernOf({ namespaces, namespaceSelector }: RequestPolicy, namespace: Namespace): Concern {
  if (namespaces.includes(namespace.name)) return 'yes';
  if (namespaceSelector === '') return namespaces.length === 0 ? 'yes' : 'no';
  const selector = readSelector(namespaceSelector);
  // What is stored was checked, or its record cannot be read. To bind by what cannot be told is the safe side all the same.
  if (!selector) return 'unknown';
  if (isUnknown(namespace)) return byNameAlone(selector, namespace.name);
  return evaluate(selector, knownLabels(namespace)) ? 'yes' : 'no';
}

function isUnknown({ labels }: Namespace): boolean {
  return Object.keys(labels).every((key) => key === NAME_LABEL);
}

/** What a selector says of a namespace of which the name alone is known (Kleene's three values). */
export function byNameAlone(selector: Selector, name: string): Concern {
  switch (selector.type) {
    case 'all':
    case 'global':
      return 'yes';
    case 'not':
      return OPPOSITE[byNameAlone(selector.operand, name)];
    case 'and':
      return weakest(selector.operands.map((operand) => byNameAlone(operand, name)));
    case 'or':
      return OPPOSITE[weakest(selector.operands.map((operand) => OPPOSITE[byNameAlone(operand, name)]))];
    case 'has':
    case 'equals':
    case 'notEquals':
    case 'contains':
    case 'startsWith':
    case 'endsWith':
    case 'in':
    case 'notIn':
      if (selector.key !== NAME_LABEL) return 'unknown';
      return evaluate(selector, { [NAME_LABEL]: name }) ? 'yes' : 'no';
  }
}

const OPPOSITE: Readonly<Record<Concern, Concern>> = { yes: 'no', no: 'yes', unknown: 'unknown' };

function weakest(concerns: readonly Concern[]): Concern {
  if (concerns.includes('no')) return 'no';
  return concerns.includes('unknown') ? 'unknown' : 'yes';
}
