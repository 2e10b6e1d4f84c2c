import { RequestKind, type IpFamily, type JudgedRequest } from '@podwire/proto/podwire/ipam/v1/address';
import {
  RequestPolicyServiceService,
  type AuthorizeRequestsRequest,
  type MacRule,
  type PoolRule as PoolRuleMessage,
  type RangeRule,
  type RequestPolicy as PolicyMessage,
} from '@podwire/proto/podwire/ipam/v1/request_policy';
import { parseAddress } from '@podwire/shared/net/address';
import { formatAddressOrPrefix, formatPrefix, hostPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPage, type ListScope } from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { checkOnePerFamily, FAMILY_MESSAGES, readAddresses, readFamilies, readObjectName } from '../messages/parts.js';
import { readNamespaceLabels, readPod, readRequests } from '../messages/request-parts.js';
import { labelFault, subdomainFault } from '../records/names.js';
import {
  formatMacRange,
  parseMacRange,
  RULE_KINDS,
  type MacRange,
  type PoolRule,
  type RequestPolicy,
  type RequestRules,
  type RuleKind,
} from '../records/request-policy.js';
import { versionOf } from '../records/versions.js';
import { selectorFault } from '../selectors/selector.js';
import type { RequestVerdict, PolicyInput } from './evaluation.js';
import type { RequestPolicyOperations } from './request-policies-operations.js';
import type { RequestPolicySpec } from './request-policies.js';

export function requestPolicyService(requestPolicies: RequestPolicyOperations, unary: Unary): RpcService {
  return unaryService(RequestPolicyServiceService, unary, {
    createRequestPolicy: async (message, { signal }) => {
      const spec = readChecked('CreateRequestPolicy', (checks) => readSpec(message.requestPolicy, checks));
      return { requestPolicy: requestPolicyMessage(await requestPolicies.create(spec, signal)) };
    },
    getRequestPolicy: async (message, { signal }) => {
      const name = readObjectName('GetRequestPolicy', message.name);
      return { requestPolicy: requestPolicyMessage(await requestPolicies.get(name, signal)) };
    },
    listRequestPolicies: async (message, { signal }) => {
      const query = readChecked('ListRequestPolicies', (checks) => readPage(message, SCOPE, checks));
      const { items, more } = await requestPolicies.list(query, signal);
      return {
        requestPolicies: items.map(requestPolicyMessage),
        nextPageToken: formatPageToken(SCOPE, more ? items.at(-1)?.name : undefined),
      };
    },
    updateRequestPolicy: async ({ requestPolicy }, { signal }) => {
      const spec = readChecked('UpdateRequestPolicy', (checks) => readSpec(requestPolicy, checks));
      const update = { spec, resourceVersion: requestPolicy?.resourceVersion ?? '' };
      return { requestPolicy: requestPolicyMessage(await requestPolicies.update(update, signal)) };
    },
    deleteRequestPolicy: async ({ name, resourceVersion }, { signal }) => {
      await requestPolicies.delete({ name: readObjectName('DeleteRequestPolicy', name), resourceVersion }, signal);
      return {};
    },
    authorizeRequests: async (message, { signal }) => {
      await requestPolicies.authorize(readAuthorizeRequestsRequest(message), signal);
      return {};
    },
  });
}

const SCOPE: ListScope = ['request policies'];

const MAX_ENTRIES_COUNT = 1000;

const NO_RULES: RequestRules = {
  pools: undefined,
  addresses: undefined,
  addressesWithoutIpam: undefined,
  sourcePrefixes: undefined,
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
    checks.check('request_policy', 'has no rule; add at least one, an empty one to allow nothing');
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

/** An entry of a list: its value with its normalized text, or its fault. */
type Entry<Value> = { readonly value: Value; readonly text: string } | { readonly fault: string };

interface List<Value> {
  /** Path within the policy. */
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
    if (known.has(entry.text)) checks.check(`${path}[${index}]`, `repeats ${entry.text}`);
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
  if (parsed.ok) return { value: parsed.prefix, text: formatAddressOrPrefix(parsed.prefix) };
  const example = 'such as 10.65.0.0/28 or 10.65.0.99';
  return { fault: parsed.fault === 'has host bits set' ? parsed.fault : `is ${parsed.fault}, ${example}` };
}

function readMac(text: string): Entry<MacRange> {
  const value = parseMacRange(text);
  if (value) return { value, text: formatMacRange(value) };
  return { fault: 'is not a MAC address, nor a range such as 02:42:00:00:00:00/16 without bits after the prefix' };
}

function requestPolicyMessage(policy: RequestPolicy): PolicyMessage {
  const { name, namespaces, namespaceSelector, createTimeMs, rules } = policy;
  const ranges = (rule: readonly Prefix[] | undefined): RangeRule | undefined =>
    rule && { cidrs: rule.map(formatAddressOrPrefix) };
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
    macAddresses: rules.macAddresses && { ranges: rules.macAddresses.map(formatMacRange) },
    families: rules.families && { families: rules.families.map((family): IpFamily => FAMILY_MESSAGES[family]) },
    createTime: new Date(createTimeMs),
    resourceVersion: versionOf(policy),
  };
}

function readAuthorizeRequestsRequest(message: AuthorizeRequestsRequest): PolicyInput {
  return readChecked('AuthorizeRequests', (checks) => {
    if (!message.pod) checks.check('pod', 'is missing');
    const pod = message.pod ? readPod(message.pod, checks) : { namespace: '', name: '', uid: '' };
    const addresses = readAddresses(message.addresses, checks);
    checkOnePerFamily(addresses, [], checks);
    return {
      namespace: { name: pod.namespace, labels: readNamespaceLabels(message.namespaceLabels, pod, checks) },
      pools: [],
      poolChoices: [],
      addresses,
      requests: readRequests(message.requests, checks),
    };
  });
}

const KINDS: Readonly<Record<RuleKind, RequestKind>> = {
  pools: RequestKind.REQUEST_KIND_POOL,
  addresses: RequestKind.REQUEST_KIND_ADDRESS,
  addressesWithoutIpam: RequestKind.REQUEST_KIND_ADDRESS_WITHOUT_IPAM,
  sourcePrefixes: RequestKind.REQUEST_KIND_SOURCE_PREFIX,
  macAddresses: RequestKind.REQUEST_KIND_MAC_ADDRESS,
  families: RequestKind.REQUEST_KIND_FAMILY,
};

export function verdictMessage({ kind, allowedBy = '', policyNames, ...rest }: RequestVerdict): JudgedRequest {
  return { ...rest, kind: KINDS[kind], allowedBy, policyNames: [...policyNames] };
}
