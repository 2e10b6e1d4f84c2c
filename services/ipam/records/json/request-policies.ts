import { parseAddress, type Family } from '@podwire/shared/net/address';
import { formatAddressOrPrefix, formatPrefix, hostPrefix, type Prefix } from '@podwire/shared/net/prefix';
import { compareNames } from '@podwire/shared/words/order';

import { selectorFault } from '../../selectors/selector.js';
import { subdomainFault } from '../names.js';
import {
  formatMacRange,
  parseMacRange,
  type MacRange,
  type PoolRule,
  type RequestPolicies,
  type RequestPolicy,
  type RequestRules,
} from '../request-policy.js';
import {
  field,
  isAbsent,
  keepTime,
  readList,
  readObject,
  readOptionalText,
  readPrefix,
  readText,
  readTime,
  unreadable,
  type Field,
} from './fields.js';
import { isArray, isObject, type Json, type JsonObject } from './json.js';

/**
 * Podwire's own record of all request policies, in the form of a Kubernetes list. It is read strictly: ignoring a part
 * of a policy would forbid less than its author intended. So a field of a later release makes the record unreadable.
 */

const RULES = ['pools', 'addresses', 'addressesWithoutIPAM', 'sourcePrefixes', 'macAddresses', 'families'] as const;

/** An unknown field may narrow the scope of a policy or allow more. */
const SPEC = ['namespaces', 'namespaceSelector', 'rules'] as const;
const POOL_RULE = ['names', 'cidrs', 'selector'] as const;

export function decodeRequestPolicies(raw: JsonObject): RequestPolicies {
  const policies = readList(field(raw, 'items')).map(decodePolicy);
  return policies.sort(compareNames);
}

function decodePolicy(source: Field): RequestPolicy {
  const item = readObject(source);
  const metadata = field(item, 'metadata', source.path);
  const name = field(readObject(metadata), 'name', metadata.path);
  if (subdomainFault(readText(name)) !== undefined) throw unreadable(name, 'an RFC 1123 subdomain');
  const specField = field(item, 'spec', source.path);
  const spec = readKnownFields(specField, SPEC);
  const selector = field(spec, 'namespaceSelector', specField.path);
  return {
    name: readText(name),
    uid: readOptionalText(field(readObject(metadata), 'uid', metadata.path)) ?? '',
    createTimeMs: readTime(field(readObject(metadata), 'creationTimestamp', metadata.path)),
    namespaces: readList(field(spec, 'namespaces', specField.path)).map(readText),
    namespaceSelector: readSelector(selector),
    rules: decodeRules(field(spec, 'rules', specField.path)),
  };
}

function decodeRules(source: Field): RequestRules {
  const raw = readKnownFields(source, RULES);
  const rule = <Value>(name: (typeof RULES)[number], read: (source: Field) => Value): Value | undefined => {
    const found = field(raw, name, source.path);
    return isAbsent(found) ? undefined : read(found);
  };
  const ranges = (found: Field) => readList(found).map(readRange);
  return {
    pools: rule('pools', decodePoolRule),
    addresses: rule('addresses', ranges),
    addressesWithoutIpam: rule('addressesWithoutIPAM', ranges),
    sourcePrefixes: rule('sourcePrefixes', ranges),
    macAddresses: rule('macAddresses', (found) => readList(found).map(readMacRange)),
    families: rule('families', (found) => readList(found).map(readFamily)),
  };
}

function decodePoolRule(source: Field): PoolRule {
  const raw = readKnownFields(source, POOL_RULE);
  return {
    names: readList(field(raw, 'names', source.path)).map(readText),
    prefixes: readList(field(raw, 'cidrs', source.path)).map(readPrefix),
    selector: readSelector(field(raw, 'selector', source.path)),
  };
}

/** @throws Unreadable, also for an unknown field */
function readKnownFields(source: Field, names: readonly string[]): JsonObject {
  const raw = readObject(source);
  const unknown = Object.keys(raw).find((name) => !names.includes(name));
  if (unknown === undefined) return raw;
  throw unreadable(field(raw, unknown, source.path), `one of ${names.join(', ')}`);
}

function readSelector(source: Field): string {
  const text = readOptionalText(source) ?? '';
  if (selectorFault(text) !== undefined) throw unreadable(source, 'a selector');
  return text;
}

function readRange(source: Field): Prefix {
  const address = parseAddress(readText(source));
  return address ? hostPrefix(address) : readPrefix(source);
}

function readMacRange(source: Field): MacRange {
  const range = parseMacRange(readText(source));
  if (!range) throw unreadable(source, 'a MAC address or a range of them');
  return range;
}

function readFamily(source: Field): Family {
  const text = readText(source);
  if (text !== 'IPv4' && text !== 'IPv6') throw unreadable(source, 'IPv4 or IPv6');
  return text === 'IPv4' ? 4 : 6;
}

/** @param raw - the stored list; further fields, such as annotations, stay with the policy of the same name */
export function encodeRequestPolicies(policies: RequestPolicies, raw: JsonObject): JsonObject {
  const stored = new Map<string, JsonObject>();
  for (const item of isArray(raw.items) ? raw.items : []) {
    const name = objectOf(objectOf(item).metadata).name;
    if (typeof name === 'string') stored.set(name, objectOf(item));
  }
  return {
    kind: 'RequestPolicyList',
    apiVersion: 'podwire.dev/v1',
    ...raw,
    items: policies.map((policy) => encodePolicy(policy, stored.get(policy.name) ?? {})),
  };
}

function encodePolicy({ name, uid, createTimeMs, ...spec }: RequestPolicy, raw: JsonObject): JsonObject {
  const metadata = objectOf(raw.metadata);
  return {
    ...raw,
    metadata: { ...metadata, name, uid, creationTimestamp: keepTime(createTimeMs, metadata.creationTimestamp) },
    spec: {
      namespaces: spec.namespaces,
      namespaceSelector: spec.namespaceSelector,
      rules: encodeRules(spec.rules),
    },
  };
}

function encodeRules({ pools, families, macAddresses, ...ranges }: RequestRules): JsonObject {
  const { addresses, addressesWithoutIpam, sourcePrefixes } = ranges;
  const rules: Record<(typeof RULES)[number], Json | undefined> = {
    pools: pools && { names: pools.names, cidrs: pools.prefixes.map(formatPrefix), selector: pools.selector },
    addresses: addresses?.map(formatAddressOrPrefix),
    addressesWithoutIPAM: addressesWithoutIpam?.map(formatAddressOrPrefix),
    sourcePrefixes: sourcePrefixes?.map(formatAddressOrPrefix),
    macAddresses: macAddresses?.map(formatMacRange),
    families: families?.map((family) => `IPv${family}`),
  };
  return Object.fromEntries(
    Object.entries(rules).flatMap(([name, rule]) => (rule === undefined ? [] : [[name, rule] as const])),
  );
}

function objectOf(json: Json | undefined): JsonObject {
  return isObject(json) ? json : {};
}
