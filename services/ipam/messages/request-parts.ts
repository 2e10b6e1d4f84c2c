import {
  IpFamily,
  RequestKind,
  type JudgedRequest,
  type PodRequests as RequestsMessage,
  type PoolChoice as ChoiceMessage,
} from '@podwire/proto/podwire/ipam/v1/address';
import { parseAddress, type Address } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import type { Checks } from '@podwire/shared/rpc/checks';

import type { Judgement } from '../policies/evaluation.js';
import { NO_REQUESTS, type PodRequests, type PoolChoice, type RuleKind } from '../records/request-policy.js';
import { FAMILIES, readFamilies } from './parts.js';

const MAX_ADDRESSES_COUNT = 32;
const MAX_PREFIXES_COUNT = 256;

export function readRequests(message: RequestsMessage | undefined, checks: Checks): PodRequests {
  if (!message) return NO_REQUESTS;
  const mac = message.macAddress === '' ? undefined : parseMac(message.macAddress);
  if (message.macAddress !== '' && mac === undefined)
    checks.check('requests.mac_address', `is ${JSON.stringify(message.macAddress)}, which is no unicast MAC address`);
  return {
    families: readFamilies('requests.families', message.families, checks),
    addressesWithoutIpam: readHosts('requests.addresses_without_ipam', message.addressesWithoutIpam, checks),
    mac,
    sourcePrefixes: readPrefixes('requests.source_prefixes', message.sourcePrefixes, checks),
    floatingIps: readHosts('requests.floating_ips', message.floatingIps, checks),
  };
}

/** @param pools - those of the request */
export function readPoolChoices(
  messages: readonly ChoiceMessage[],
  pools: readonly string[],
  checks: Checks,
): PoolChoice[] {
  return messages.map(({ pool, family, isConfigured }, index) => {
    const field = `pool_choices[${index}]`;
    if (!pools.includes(pool)) checks.check(`${field}.pool`, `is "${pool}", which is none of pools`);
    const known = FAMILIES[family];
    if (!known) checks.check(`${field}.family`, `is ${family}, which is no family: IPv4 is 4, IPv6 is 6`);
    return { pool, family: family === IpFamily.IP_FAMILY_UNSPECIFIED ? undefined : known, isConfigured };
  });
}

function readHosts(field: string, texts: readonly string[], checks: Checks): Address[] {
  return bounded(field, texts, { count: MAX_ADDRESSES_COUNT, checks }).flatMap((text, index) => {
    const address = parseAddress(text);
    checks.check(`${field}[${index}]`, address ? undefined : 'is no IPv4 or IPv6 address without prefix length');
    return address ?? [];
  });
}

function readPrefixes(field: string, texts: readonly string[], checks: Checks): Prefix[] {
  return bounded(field, texts, { count: MAX_PREFIXES_COUNT, checks }).flatMap((text, index) => {
    const parsed = parsePrefix(text);
    if (parsed.ok) return parsed.prefix;
    checks.check(`${field}[${index}]`, parsed.fault === 'has host bits set' ? parsed.fault : `is ${parsed.fault}`);
    return [];
  });
}

interface Bound {
  readonly count: number;
  readonly checks: Checks;
}

function bounded(field: string, texts: readonly string[], { count, checks }: Bound): readonly string[] {
  if (texts.length > count) checks.check(field, `has ${texts.length} entries; at most ${count} are allowed`);
  return texts.slice(0, count);
}

const KINDS: Readonly<Record<RuleKind, RequestKind>> = {
  pools: RequestKind.REQUEST_KIND_POOL,
  addresses: RequestKind.REQUEST_KIND_ADDRESS,
  addressesWithoutIpam: RequestKind.REQUEST_KIND_ADDRESS_WITHOUT_IPAM,
  sourcePrefixes: RequestKind.REQUEST_KIND_SOURCE_PREFIX,
  floatingIps: RequestKind.REQUEST_KIND_FLOATING_IP,
  macAddresses: RequestKind.REQUEST_KIND_MAC_ADDRESS,
  families: RequestKind.REQUEST_KIND_FAMILY,
};

export function judgementMessage({ kind, allowedBy = '', policyNames, ...rest }: Judgement): JudgedRequest {
  return { ...rest, kind: KINDS[kind], allowedBy, policyNames: [...policyNames] };
}
