import { Failure } from '@podwire/shared/failure/failure';
import { compareNames } from '@podwire/shared/words/order';

import { requireReadable } from '../records/absence.js';
import { wholeSeconds } from '../records/block.js';
import { pageOf, type Page, type PageQuery } from '../records/page.js';
import type { RequestPolicies, RequestPolicy, RequestRules } from '../records/request-policy.js';
import { versionOf } from '../records/versions.js';
import type { Change, Decision, View } from '../records/view.js';

/** Request policies restrict the requests of pods. They are one record, so a decision needs one comparison. */

/** The content of a policy. */
export interface RequestPolicySpec {
  readonly name: string;
  readonly namespaces: readonly string[];
  readonly namespaceSelector: string;
  readonly rules: RequestRules;
}

interface RequestPolicyCreation {
  readonly spec: RequestPolicySpec;
  readonly uid: string;
  readonly nowMs: number;
}

/** @throws Failure REQUEST_POLICY_EXISTS; STORE_LIMIT, STORE_CORRUPT like all changes */
export function createRequestPolicy(view: View, { spec, uid, nowMs }: RequestPolicyCreation): Decision<RequestPolicy> {
  const { name } = spec;
  const stored = readablePolicies(view);
  if (stored.some((policy) => policy.name === name)) {
    const text = `request policy "${name}" exists already; choose another name, or update it`;
    throw new Failure('REQUEST_POLICY_EXISTS', text, { details: { request_policy: name } });
  }
  const created = { ...spec, uid, createTimeMs: wholeSeconds(nowMs) };
  return { changes: putPolicies([...stored, created]), outcome: created };
}

/** @throws Failure REQUEST_POLICY_NOT_FOUND, STORE_CORRUPT */
export function getRequestPolicy(view: View, name: string): RequestPolicy {
  const policy = readablePolicies(view).find((each) => each.name === name);
  if (policy) return policy;
  const text = `there is no request policy "${name}"; list the request policies for their names`;
  throw new Failure('REQUEST_POLICY_NOT_FOUND', text, { details: { request_policy: name } });
}

/** A page of the policies, in the order of their names. @throws Failure STORE_CORRUPT */
export function listRequestPolicies(view: View, query: PageQuery): Page<RequestPolicy> {
  return pageOf(readablePolicies(view), query);
}

export interface RequestPolicyUpdate {
  readonly spec: RequestPolicySpec;
  /** Change only if the policy still is of this version; empty for any. */
  readonly resourceVersion: string;
}

interface UpdatedRequestPolicy {
  readonly policy: RequestPolicy;
  readonly changed: boolean;
}

/**
 * Replaces the content of a policy. Idempotent without a version.
 * @throws Failure REQUEST_POLICY_NOT_FOUND, STALE_VERSION; STORE_LIMIT, STORE_CORRUPT like all changes
 */
export function updateRequestPolicy(
  view: View,
  { spec, resourceVersion }: RequestPolicyUpdate,
): Decision<UpdatedRequestPolicy> {
  const stored = requireVersion(view, { name: spec.name, resourceVersion });
  const policy = { ...stored, ...spec };
  const changed = versionOf(policy) !== versionOf(stored);
  const all = readablePolicies(view).map((each) => (each.name === spec.name ? policy : each));
  return { changes: changed ? putPolicies(all) : [], outcome: { policy, changed } };
}

export interface RequestPolicyDeletion {
  readonly name: string;
  /** Delete only if the policy still is of this version; empty for any. */
  readonly resourceVersion: string;
}

/** @throws Failure REQUEST_POLICY_NOT_FOUND, STALE_VERSION, STORE_CORRUPT */
export function deleteRequestPolicy(view: View, deletion: RequestPolicyDeletion): Decision<RequestPolicy> {
  const outcome = requireVersion(view, deletion);
  const left = readablePolicies(view).filter(({ name }) => name !== deletion.name);
  return { changes: putPolicies(left), outcome };
}

function readablePolicies(view: View): RequestPolicies {
  requireReadable(view, { kind: 'requestPolicies' });
  return view.requestPolicies();
}

function requireVersion(view: View, { name, resourceVersion }: RequestPolicyDeletion): RequestPolicy {
  const stored = getRequestPolicy(view, name);
  if (resourceVersion === '' || resourceVersion === versionOf(stored)) return stored;
  const text = `request policy "${name}" was changed since resource version ${resourceVersion}; read it again and retry`;
  throw new Failure('STALE_VERSION', text, { details: { request_policy: name } });
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
