import type { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import type {
  CreateRequestPolicyRequest,
  MacRule,
  PoolRule as PoolRuleMessage,
  RangeRule,
  RequestPolicy as PolicyMessage,
  UpdateRequestPolicyRequest,
} from '@podwire/proto/podwire/ipam/v1/request_policy';
import { parseAddress } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { checked, type Checks } from '@podwire/shared/rpc/checks';

import { FAMILY_MESSAGES } from '../addresses/assign-rpc.js';
import { formatRange } from '../allocator/request-policy/allowed-texts.js';
import { formatMacRange, parseMacRange, type MacRange } from '../allocator/request-policy/mac-range.js';
import { readFamilies } from '../messages/parts.js';
import { labelFault, subdomainFault } from '../records/names.js';
import { RULE_KINDS, type PoolRule, type RequestPolicy, type RequestRules } from '../records/request-policy.js';
import { versionOf } from '../records/versions.js';
import { selectorFault } from '../selectors/selector.js';
import type { RequestPolicySpec, RequestPolicyUpdate } from './policies.js';

const MAX_ENTRIES_COUNT = 1000;

export function readCreateRequestPolicyRequest({ requestPolicy }: CreateRequestPolicyRequest): RequestPolicySpec {
  return checked('CreateRequestPolicy', (checks) => readSpec(requestPolicy, checks));
}

export function readUpdateRequestPolicyRequest({ requestPolicy }: UpdateRequestPolicyRequest): RequestPolicyUpdate {
  return checked('UpdateRequestPolicy', (checks) => ({
    spec: readSpec(requestPolicy, checks),
    resourceVersion: requestPolicy?.resourceVersion ?? '',
  }));
}

/** @param method - for the message */
export function readPolicyName(method: string, name: string): string {
  return checked(method, (checks) => {
    checks.check('name', subdomainFault(name));
    return name;
  });
}

const NO_RULES: RequestRules = {
  pools: undefined,
  addresses: undefined,
  addressesWithoutIpam: undefined,
  sourcePrefixes: undefined,
  floatingIps: undefined,
  macAddresses: undefined,
  families: undefined,
};

function readSpec(message: PolicyMessage | undefined, checks: Checks): RequestPolicySpec {
  if (!message) {
    checks.check('request_policy', 'is missing');
    return { name: '', namespaces: [], namespaceSelector: '', rules: NO_RULES };
  }
  const { name, namespaces, namespaceSelector } = message;
  checks.check('request_policy.name', subdomainFault(name));
  checks.check('request_policy.namespace_selector', selectorFault(namespaceSelector));
  const rules = readRules(message, checks);
  if (RULE_KINDS.every((kind) => rules[kind] === undefined))
    checks.check('request_policy', 'has no rule; give it one at least, an empty one to allow nothing');
  return {
    name,
    namespaces: readEntries({ field: 'namespaces', texts: namespaces, read: readNamespace }, checks),
    namespaceSelector,
    rules,
  };
}

function readRules(message: PolicyMessage, checks: Checks): RequestRules {
  const ranges = (field: string, rule: RangeRule | undefined): readonly Prefix[] | undefined =>
    rule && readEntries({ field: `${field}.cidrs`, texts: rule.cidrs, read: readRange }, checks);
  return {
    pools: message.pools && readPoolRule(message.pools, checks),
    addresses: ranges('addresses', message.addresses),
    addressesWithoutIpam: ranges('addresses_without_ipam', message.addressesWithoutIpam),
    sourcePrefixes: ranges('source_prefixes', message.sourcePrefixes),
    floatingIps: ranges('floating_ips', message.floatingIps),
    macAddresses: message.macAddresses && readMacRule(message.macAddresses, checks),
    families:
      message.families && readFamilies('request_policy.families.families', message.families.families, checks).sort(),
  };
}

function readPoolRule({ names, cidrs, selector }: PoolRuleMessage, checks: Checks): PoolRule {
  checks.check('request_policy.pools.selector', selectorFault(selector));
  return {
    names: readEntries({ field: 'pools.names', texts: names, read: readPoolName }, checks),
    prefixes: readEntries({ field: 'pools.cidrs', texts: cidrs, read: readRange }, checks),
    selector,
  };
}

function readMacRule({ ranges }: MacRule, checks: Checks): readonly MacRange[] {
  return readEntries({ field: 'mac_addresses.ranges', texts: ranges, read: readMac }, checks);
}

/** An entry of a list: its value with its usual text, or what is wrong with it. */
type Entry<Value> = { readonly value: Value; readonly text: string } | { readonly fault: string };

interface List<Value> {
  /** Below the policy. */
  readonly field: string;
  readonly texts: readonly string[];
  readonly read: (text: string) => Entry<Value>;
}

function readEntries<Value>({ field, texts, read }: List<Value>, checks: Checks): Value[] {
  const path = `request_policy.${field}`;
  if (texts.length > MAX_ENTRIES_COUNT)
    checks.check(path, `has ${texts.length} entries; at most ${MAX_ENTRIES_COUNT} are allowed`);
  const known = new Set<string>();
  return texts.slice(0, MAX_ENTRIES_COUNT).flatMap((text, index) => {
    const entry = read(text);
    if ('fault' in entry) {
      checks.check(`${path}[${index}]`, entry.fault);
      return [];
    }
    if (known.has(entry.text)) checks.check(`${path}[${index}]`, `is ${entry.text} a second time`);
    known.add(entry.text);
    return [entry.value];
  });
}

function readNamespace(text: string): Entry<string> {
  const fault = labelFault(text);
  return fault === undefined ? { value: text, text } : { fault };
}

function readPoolName(text: string): Entry<string> {
  const fault = subdomainFault(text);
  return fault === undefined ? { value: text, text } : { fault };
}

function readRange(text: string): Entry<Prefix> {
  const address = parseAddress(text);
  const parsed = address ? { ok: true as const, prefix: hostPrefix(address) } : parsePrefix(text);
  if (parsed.ok) return { value: parsed.prefix, text: formatRange(parsed.prefix) };
  const example = 'such as 10.65.0.0/28 or 10.65.0.99';
  return { fault: parsed.fault === 'has host bits set' ? parsed.fault : `is ${parsed.fault}, ${example}` };
}

function readMac(text: string): Entry<MacRange> {
  const value = parseMacRange(text);
  if (value) return { value, text: formatMacRange(value) };
  return { fault: 'is no MAC address, and no range of them such as 02:42:00:00:00:00/16 without further bits' };
}

export function requestPolicyMessage(policy: RequestPolicy): PolicyMessage {
  const { name, namespaces, namespaceSelector, createTimeMs, rules } = policy;
  const ranges = (rule: readonly Prefix[] | undefined): RangeRule | undefined =>
    rule && { cidrs: rule.map(formatRange) };
  return {
    name,
    namespaces: [...namespaces],
    namespaceSelector,
    pools: rules.pools && {
      names: [...rules.pools.names],
      cidrs: rules.pools.prefixes.map(formatPrefix),
      selector: rules.pools.selector,
    },
    addresses: ranges(rules.addresses),
    addressesWithoutIpam: ranges(rules.addressesWithoutIpam),
    sourcePrefixes: ranges(rules.sourcePrefixes),
    floatingIps: ranges(rules.floatingIps),
    macAddresses: rules.macAddresses && { ranges: rules.macAddresses.map(formatMacRange) },
    families: rules.families && { families: rules.families.map((family): IpFamily => FAMILY_MESSAGES[family]) },
    createTime: new Date(createTimeMs),
    resourceVersion: versionOf(policy),
  };
}
