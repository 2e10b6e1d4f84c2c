import { z } from 'zod';

/** Labels of a pod or of a namespace. */
export type Labels = Readonly<Record<string, string>>;

export const labelsSchema = z
  .record(z.string(), z.string())
  .nullish()
  .transform((labels) => labels ?? {});

interface Requirement {
  readonly key: string;
  readonly operator: (typeof OPERATORS)[number];
  /** Sorted, without duplicates; empty where the operator takes none. */
  readonly values: readonly string[];
}

/** A label selector of Kubernetes: every requirement has to hold. Sorted, so that equal selectors have equal texts. */
export type LabelSelector = readonly Requirement[];

const OPERATORS = ['In', 'NotIn', 'Exists', 'DoesNotExist'] as const;

export const EVERYTHING: LabelSelector = [];

/** A label that has one of no values. */
const NOTHING: LabelSelector = [{ key: '', operator: 'In', values: [] }];

const expressionSchema = z.strictObject({
  key: z.string().min(1),
  operator: z.enum(OPERATORS),
  values: z
    .array(z.string())
    .nullish()
    .transform((values) => values ?? []),
});

const selectorSchema = z.strictObject({
  matchLabels: labelsSchema,
  matchExpressions: z.array(expressionSchema).nullish(),
});

/** @returns a selector that matches nothing if the object is none, or has an unknown operator; the fault is added */
export function readLabelSelector(object: unknown, field: string, faults: string[]): LabelSelector {
  const { data, error } = selectorSchema.safeParse(object);
  if (!data) {
    const causes = error.issues.map(({ path, message }) => `${z.core.toDotPath(path)}: ${message}`);
    faults.push(`${field} is not a label selector that this release knows: ${causes.join(', ')}`);
    return NOTHING;
  }
  const labels = Object.entries(data.matchLabels).map(([key, value]): Requirement => ({
    key,
    operator: 'In',
    values: [value],
  }));
  const expressions = (data.matchExpressions ?? []).map((each): Requirement => ({
    ...each,
    values: [...new Set(each.values)].sort(),
  }));
  if (expressions.some(({ operator, values }) => operator.endsWith('In') !== values.length > 0)) {
    faults.push(`${field} is not a label selector: In and NotIn need values, Exists and DoesNotExist take none`);
    return NOTHING;
  }
  const byText = new Map([...labels, ...expressions].map((each) => [JSON.stringify(each), each]));
  return [...byText.keys()].sort().flatMap((text) => byText.get(text) ?? []);
}

export function selects(selector: LabelSelector, labels: Labels): boolean {
  return selector.every(({ key, operator, values }) => {
    const value = Object.hasOwn(labels, key) ? labels[key] : undefined;
    switch (operator) {
      case 'In':
        return value !== undefined && values.includes(value);
      case 'NotIn':
        return value === undefined || !values.includes(value);
      case 'Exists':
        return value !== undefined;
      case 'DoesNotExist':
        return value === undefined;
    }
  });
}
