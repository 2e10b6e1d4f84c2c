import type { Violation } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { formatAddress, parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import { parseMac, type Mac } from '@podwire/shared/net/mac';
import { parsePrefix, splitCidr, type Prefix } from '@podwire/shared/net/prefix';
import { z } from 'zod';

/** Requests in Calico's annotations of a pod (`cni.projectcalico.org/…`). */
export interface Annotations {
  readonly ipv4Pools: Sourced<readonly string[]> | undefined;
  readonly ipv6Pools: Sourced<readonly string[]> | undefined;
  readonly families: Sourced<readonly Family[]> | undefined;
  readonly addresses: RequestedAddresses | undefined;
  /** Addresses that no IPAM allocates. */
  readonly addressesWithoutIpam: RequestedAddresses | undefined;
  readonly mac: RequestedMac | undefined;
  /** Source prefixes that the pod may use beside its own addresses. */
  readonly sourcePrefixes: readonly Prefix[];
}

/** `feature_control`: requests that the network configuration allows pods. */
export interface Features {
  readonly ip_addrs_no_ipam: boolean;
  readonly allowed_source_prefixes: boolean;
}

const PREFIX = 'cni.projectcalico.org/';

/** Reads Calico's annotations and ignores all further ones. Each violation names its annotation. */
export function readAnnotations(
  annotations: Readonly<Record<string, string>>,
  features: Features,
  report: ReportViolation,
): Annotations {
  const sourceOf = (name: string) => `annotation ${PREFIX}${name}`;
  const list = (name: string) => readList(sourceOf(name), annotations[`${PREFIX}${name}`], report);
  reportDisabledFeatures(annotations, features, report);
  reportFloatingIps(sourceOf('floatingIPs'), list('floatingIPs'), report);
  return {
    ipv4Pools: readPools(sourceOf('ipv4pools'), { texts: list('ipv4pools'), family: 4 }, report),
    ipv6Pools: readPools(sourceOf('ipv6pools'), { texts: list('ipv6pools'), family: 6 }, report),
    families: readFamilies(sourceOf('ipFamilies'), list('ipFamilies'), report),
    addresses: readAddresses(sourceOf('ipAddrs'), list('ipAddrs'), report),
    addressesWithoutIpam: readAddresses(sourceOf('ipAddrsNoIpam'), list('ipAddrsNoIpam'), report),
    mac: readMac(sourceOf('hwAddr'), annotations[`${PREFIX}hwAddr`] ?? '', report),
    sourcePrefixes: readPrefixes(sourceOf('allowedSourcePrefixes'), list('allowedSourcePrefixes'), report),
  };
}

const LIST = z.array(z.string());

/** Reads a JSON list of strings; empty if the annotation is missing or invalid. */
function readList(source: string, text: string | undefined, report: ReportViolation): readonly string[] {
  if (text === undefined || text === '') return [];
  const list = LIST.safeParse(parseJson(text)).data;
  if (!list) report({ field: source, reason: 'must be a JSON list of strings, such as ["a","b"]' });
  return list ?? [];
}

/** Reports requests that the network configuration does not allow. */
function reportDisabledFeatures(
  annotations: Readonly<Record<string, string>>,
  features: Features,
  report: ReportViolation,
): void {
  const gates = [
    ['ipAddrsNoIpam', 'ip_addrs_no_ipam'],
    ['allowedSourcePrefixes', 'allowed_source_prefixes'],
  ] as const;
  for (const [name, key] of gates) {
    const text = annotations[`${PREFIX}${name}`];
    if (text === undefined || text === '' || text.trim() === '[]') continue;
    const field = `annotation ${PREFIX}${name}`;
    if (features[key]) continue;
    report({ field, reason: `needs feature_control.${key} to be true in the network configuration` });
  }
}

/** Reports floating IPs, as podwire-node has no NAT for them. */
function reportFloatingIps(source: string, texts: readonly string[], report: ReportViolation): void {
  if (texts.length === 0) return;
  const reason = `requests floating IPs (${texts.join(', ')}), which Podwire does not support, as podwire-node has no NAT for them; remove it and publish a port of the pod by portMappings or a Service`;
  report({ field: source, reason });
}

const FAMILY: Readonly<Record<string, Family>> = { IPv4: 4, IPv6: 6 };

function readFamilies(
  source: string,
  texts: readonly string[],
  report: ReportViolation,
): Sourced<readonly Family[]> | undefined {
  const families: Family[] = [];
  for (const text of new Set(texts)) {
    const family = Object.hasOwn(FAMILY, text) ? FAMILY[text] : undefined;
    if (family === undefined)
      report({ field: source, reason: `has ${JSON.stringify(text)}, which is not IPv4 or IPv6` });
    else families.push(family);
  }
  return families.length === 0 ? undefined : { source, value: families.sort() };
}

function readPrefixes(source: string, texts: readonly string[], report: ReportViolation): Prefix[] {
  return texts.flatMap((text) => {
    const parsed = parsePrefix(text);
    if (parsed.ok) return [parsed.prefix];
    report({ field: source, reason: `has ${JSON.stringify(text)}, which ${reasonOf(parsed.fault)}` });
    return [];
  });
}

function reasonOf(fault: string): string {
  return fault === 'has host bits set' ? fault : `is ${fault}`;
}

/** A requested value and its source. */
export interface Sourced<Value> {
  /** Source as its author knows it: `CNI_ARGS IP`, `runtimeConfig.ips`. */
  readonly source: string;
  readonly value: Value;
}

/** Individually requested addresses: at most one of each family, in canonical form. */
export type RequestedAddresses = Sourced<readonly string[]>;

export type RequestedMac = Sourced<Mac>;

export type ReportViolation = (violation: Violation) => void;

/**
 * Reads requested addresses. A prefix length is accepted and ignored: a pod's address is a host address.
 * @returns undefined if there are none or one is invalid
 */
export function readAddresses(
  source: string,
  texts: readonly string[],
  report: ReportViolation,
): RequestedAddresses | undefined {
  const addresses: Address[] = [];
  for (const text of texts) {
    const address = parseAddress(text) ?? splitCidr(text)?.address;
    if (!address) {
      report({ field: source, reason: `has ${JSON.stringify(text)}, which is not an IP address` });
      return undefined;
    }
    if (addresses.some(({ family }) => family === address.family)) {
      report({ field: source, reason: `has two IPv${address.family} addresses; an interface gets one of each family` });
      return undefined;
    }
    addresses.push(address);
  }
  return addresses.length === 0 ? undefined : { source, value: addresses.map(formatAddress) };
}

/** Reads a requested MAC address. @returns undefined if it is empty or invalid */
export function readMac(source: string, text: string, report: ReportViolation): RequestedMac | undefined {
  if (text === '') return undefined;
  const value = parseMac(text);
  if (value !== undefined) return { source, value };
  report({ field: source, reason: `is ${JSON.stringify(text)}, which is not a unicast MAC address` });
  return undefined;
}

/** Requested pools of one family. */
interface PoolTexts {
  readonly texts: readonly string[];
  readonly family: Family;
}

/**
 * Reads pools by name or CIDR. podwire-ipam checks that they exist.
 * @returns undefined if there are none or one is of the other family
 */
export function readPools(
  source: string,
  { texts, family }: PoolTexts,
  report: ReportViolation,
): Sourced<readonly string[]> | undefined {
  const reasons = texts.flatMap((text) => {
    if (text === '') return ['has an empty entry; use the name or CIDR of a pool'];
    const address = splitCidr(text)?.address;
    if (!address || address.family === family) return [];
    return [`has ${text}, which is an IPv${address.family} pool; use IPv${family} pools`];
  });
  for (const reason of reasons) report({ field: source, reason });
  return texts.length === 0 || reasons.length > 0 ? undefined : { source, value: texts };
}
