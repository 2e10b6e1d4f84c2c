import { Failure } from '@podwire/shared/failure/failure';
import { compareNames } from '@podwire/shared/words/order';

import { NamedObjects } from '../named-objects/named-objects.js';
import { requireReadable } from '../records/absence.js';
import { RULE_KINDS, type RequestPolicies, type RequestPolicy } from '../records/request-policy.js';
import type { Change, View } from '../records/view.js';

/** Request policies restrict the requests of pods. They are one record, so a decision needs one comparison. */

export type RequestPolicySpec = Omit<RequestPolicy, 'uid' | 'createTimeMs'>;

export const REQUEST_POLICIES = new NamedObjects<RequestPolicy, RequestPolicySpec>({
  noun: 'request policy',
  plural: 'request policies',
  key: 'request_policy',
  exists: 'REQUEST_POLICY_EXISTS',
  notFound: 'REQUEST_POLICY_NOT_FOUND',
  all: readablePolicies,
  requireReadable: readablePolicies,
  make: (spec, identity) => ({ ...spec, ...identity }),
  put: (view, policy) => putPolicies([...policiesWithout(view, policy), policy]),
  remove: (view, policy) => putPolicies(policiesWithout(view, policy)),
  describe: ({ rules }) => `with rules for ${RULE_KINDS.filter((kind) => rules[kind] !== undefined).join(', ')}`,
});

function readablePolicies(view: View): RequestPolicies {
  requireReadable(view, { kind: 'requestPolicies' });
  return view.requestPolicies();
}

function policiesWithout(view: View, { name }: RequestPolicy): RequestPolicies {
  return readablePolicies(view).filter((each) => each.name !== name);
}

/**
 * Maximum size of all policies together, in UTF-16 code units of JSON: they are one value, and etcd accepts 1.5 MiB.
 */
const MAX_SIZE = 2 ** 19;

/** @throws Failure STORE_LIMIT */
function putPolicies(policies: RequestPolicies): Change[] {
  const size = JSON.stringify(policies, (_, value: unknown) =>
    typeof value === 'bigint' ? String(value) : value,
  ).length;
  if (size > MAX_SIZE) {
    const text = `the ${policies.length} request policies would take ${size} bytes; the limit is ${MAX_SIZE} for all together; use ranges instead of addresses, or delete some`;
    throw new Failure('STORE_LIMIT', text);
  }
  const value = [...policies].sort(compareNames);
  return [{ type: 'put', record: { kind: 'requestPolicies', value } }];
}
