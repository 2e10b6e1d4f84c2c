import type { Violation } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { formatAddress, parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import { parseMac, type Mac } from '@podwire/shared/net/mac';
import { formatPrefix, parsePrefix, splitCidr } from '@podwire/shared/net/prefix';
import { z } from 'zod';

/** What Calico's annotations of a pod ask for (`cni.projectcalico.org/…`). */
export interface Annotations {
  readonly ipv4Pools: Asked<readonly string[]> | undefined;
  readonly ipv6Pools: Asked<readonly string[]> | undefined;
  readonly families: Asked<readonly Family[]> | undefined;
  readonly addresses: AskedAddresses | undefined;
  /** Addresses outside every IPAM. */
  readonly addressesWithoutIpam: AskedAddresses | undefined;
  readonly mac: AskedMac | undefined;
  /** What the pod may send from besides its own addresses, as CIDRs. */
  readonly sourcePrefixes: readonly string[];
  /** Outside addresses that are to lead to the pod. */
  readonly floatingIps: readonly string[];
}

/** What Calico's annotations of a namespace choose for its pods. */
export type NamespaceAnnotations = Pick<Annotations, 'ipv4Pools' | 'ipv6Pools' | 'families'>;

/** What the network configuration allows pods to ask for, as `feature_control`. */
export interface Features {
  readonly ip_addrs_no_ipam: boolean;
  readonly floating_ips: boolean;
  readonly allowed_source_prefixes: boolean;
}

const PREFIX = 'cni.projectcalico.org/';

const FLOATING_IPS = 'floatingIPs';
export const FLOATING_IPS_PLACE = `annotation ${PREFIX}${FLOATING_IPS}`;

/** Prefix of annotations that ask for something that Podwire does not do. */
const WITHOUT_EFFECT = 'qos.projectcalico.org/';

/** The annotations that are let pass without an effect, for a warning. */
export function annotationsWithoutEffect(annotations: Readonly<Record<string, string>>): string[] {
  return Object.keys(annotations).filter((name) => name.startsWith(WITHOUT_EFFECT));
}

/** Reads Calico's annotations and ignores the rest. Every fault is reported under the annotation's name. */
export function readAnnotations(
  annotations: Readonly<Record<string, string>>,
  features: Features,
  refuse: Refuse,
): Annotations {
  const placeOf = (name: string) => `annotation ${PREFIX}${name}`;
  const list = (name: string) => readList(placeOf(name), annotations[`${PREFIX}${name}`], refuse);
  refuseGated(annotations, features, refuse);
  const choices = readChoices('annotation', annotations, refuse);
  return {
    addresses: readAddresses(placeOf('ipAddrs'), list('ipAddrs'), refuse),
    addressesWithoutIpam: readAddresses(placeOf('ipAddrsNoIpam'), list('ipAddrsNoIpam'), refuse),
    mac: readMac(placeOf('hwAddr'), annotations[`${PREFIX}hwAddr`] ?? '', refuse),
    sourcePrefixes: readPrefixes(placeOf('allowedSourcePrefixes'), list('allowedSourcePrefixes'), refuse),
    floatingIps: readFloatingIps(FLOATING_IPS_PLACE, list(FLOATING_IPS), refuse),
    ...choices,
  };
}

/** Reads the annotations of a namespace that are about its pods' addresses. */
export function readNamespaceAnnotations(
  annotations: Readonly<Record<string, string>>,
  refuse: Refuse,
): NamespaceAnnotations {
  return readChoices('namespace annotation', annotations, refuse);
}

/** @param noun - of one such annotation, for its place */
function readChoices(
  noun: string,
  annotations: Readonly<Record<string, string>>,
  refuse: Refuse,
): NamespaceAnnotations {
  const placeOf = (name: string) => `${noun} ${PREFIX}${name}`;
  const list = (name: string) => readList(placeOf(name), annotations[`${PREFIX}${name}`], refuse);
  return {
    ipv4Pools: readPools(placeOf('ipv4pools'), { texts: list('ipv4pools'), family: 4 }, refuse),
    ipv6Pools: readPools(placeOf('ipv6pools'), { texts: list('ipv6pools'), family: 6 }, refuse),
    families: readFamilies(placeOf('ipFamilies'), list('ipFamilies'), refuse),
  };
}

const LIST = z.array(z.string());

/** An annotation that is a JSON list of texts; empty when there is none, or when it is faulty. */
function readList(place: string, text: string | undefined, refuse: Refuse): readonly string[] {
  if (text === undefined || text === '') return [];
  const list = LIST.safeParse(parseJson(text)).data;
  if (!list) refuse({ field: place, reason: 'is not a JSON list of texts, such as ["a","b"]' });
  return list ?? [];
}

/** What a pod may ask for only where the network configuration says so. */
function refuseGated(annotations: Readonly<Record<string, string>>, features: Features, refuse: Refuse): void {
  const gates = [
    ['ipAddrsNoIpam', 'ip_addrs_no_ipam'],
    ['allowedSourcePrefixes', 'allowed_source_prefixes'],
    [FLOATING_IPS, 'floating_ips'],
  ] as const;
  for (const [name, key] of gates) {
    const text = annotations[`${PREFIX}${name}`];
    if (text === undefined || text === '' || text.trim() === '[]') continue;
    const field = `annotation ${PREFIX}${name}`;
    if (features[key]) continue;
    const remedy =
      name === FLOATING_IPS
        ? 'asks for floating IPs, which feature_control.floating_ips of the network configuration does not allow, and Podwire does not make; remove it'
        : `needs feature_control.${key} to be true in the network configuration`;
    refuse({ field, reason: remedy });
  }
}

const FAMILY: Readonly<Record<string, Family>> = { IPv4: 4, IPv6: 6 };

function readFamilies(place: string, texts: readonly string[], refuse: Refuse): Asked<readonly Family[]> | undefined {
  const families: Family[] = [];
  for (const text of new Set(texts)) {
    const family = Object.hasOwn(FAMILY, text) ? FAMILY[text] : undefined;
    if (family === undefined)
      refuse({ field: place, reason: `has ${JSON.stringify(text)}, which is not IPv4 or IPv6` });
    else families.push(family);
  }
  return families.length === 0 ? undefined : { place, value: families.sort() };
}

function readPrefixes(place: string, texts: readonly string[], refuse: Refuse): string[] {
  return texts.flatMap((text) => {
    const parsed = parsePrefix(text);
    if (parsed.ok) return [formatPrefix(parsed.prefix)];
    refuse({ field: place, reason: `has ${JSON.stringify(text)}, which ${reasonOf(parsed.fault)}` });
    return [];
  });
}

function readFloatingIps(place: string, texts: readonly string[], refuse: Refuse): string[] {
  return texts.flatMap((text) => {
    const address = parseAddress(text);
    if (address) return [formatAddress(address)];
    refuse({ field: place, reason: `has ${JSON.stringify(text)}, which is no IP address` });
    return [];
  });
}

function reasonOf(fault: string): string {
  return fault === 'has host bits set' ? fault : `is ${fault}`;
}

/** A value that was asked for, and where. */
export interface Asked<Value> {
  /** The place as its writer knows it: `CNI_ARGS IP`, `runtimeConfig.ips`. */
  readonly place: string;
  readonly value: Value;
}

/** Addresses that were asked for by themselves: one of a family at most, in their usual text form. */
export type AskedAddresses = Asked<readonly string[]>;

export type AskedMac = Asked<Mac>;

/** Notes a fault of a place. */
export type Refuse = (violation: Violation) => void;

/**
 * Reads requested addresses. A prefix length is accepted and ignored: a pod's address is a single host address.
 * @returns undefined when there are none, or when they are faulty
 */
export function readAddresses(place: string, texts: readonly string[], refuse: Refuse): AskedAddresses | undefined {
  const addresses: Address[] = [];
  for (const text of texts) {
    const address = parseAddress(text) ?? splitCidr(text)?.address;
    if (!address) {
      refuse({ field: place, reason: `has ${JSON.stringify(text)}, which is no IP address` });
      return undefined;
    }
    if (addresses.some(({ family }) => family === address.family)) {
      refuse({ field: place, reason: `has two IPv${address.family} addresses; an interface gets one of each family` });
      return undefined;
    }
    addresses.push(address);
  }
  return addresses.length === 0 ? undefined : { place, value: addresses.map(formatAddress) };
}

/** Reads a requested MAC address. @returns undefined when it is empty or faulty */
export function readMac(place: string, text: string, refuse: Refuse): AskedMac | undefined {
  if (text === '') return undefined;
  const value = parseMac(text);
  if (value !== undefined) return { place, value };
  refuse({ field: place, reason: `is ${JSON.stringify(text)}, which is no unicast MAC address` });
  return undefined;
}

/** Whether an address in its usual text form is one of IPv6. */
export function isIpv6(address: string): boolean {
  return address.includes(':');
}

/** Requested pools of one family. */
interface PoolTexts {
  readonly texts: readonly string[];
  readonly family: Family;
}

/**
 * Reads pools, each by its name or its CIDR. Whether they exist is IPAM's to say.
 * @returns undefined when there are none, or when one is of the other family
 */
export function readPools(
  place: string,
  { texts, family }: PoolTexts,
  refuse: Refuse,
): Asked<readonly string[]> | undefined {
  const faults = texts.flatMap((text) => {
    if (text === '') return ['has an empty entry; give the name of a pool, or its CIDR'];
    const address = splitCidr(text)?.address;
    if (!address || address.family === family) return [];
    return [`has ${text}, which is of IPv${address.family}; give pools of IPv${family}`];
  });
  for (const reason of faults) refuse({ field: place, reason });
  return texts.length === 0 || faults.length > 0 ? undefined : { place, value: texts };
}
