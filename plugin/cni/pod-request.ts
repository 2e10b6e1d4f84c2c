import { violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';

import { isIpv6, type Asked, type AskedAddresses, type AskedMac } from './annotations.js';
import type { Requested } from './requested.js';

/** What a pod is to get, of all that was asked for. */
export interface Wish {
  /** The families; empty leaves them to IPAM. */
  readonly families: readonly Family[];
  /** Pools to take from, by name or CIDR; empty leaves them to IPAM. */
  readonly pools: readonly string[];
  /** Addresses wanted by themselves, one of each family at most. */
  readonly addresses: readonly string[];
  /** Addresses assigned without IPAM; they replace all other addresses. */
  readonly addressesWithoutIpam: readonly string[];
  /** MAC address of the pod's interface instead of the derived one. */
  readonly macAddress: Mac | undefined;
  /** What the pod may send from besides its own addresses, as CIDRs. */
  readonly sourcePrefixes: readonly string[];
  /** Outside addresses that are to lead to the pod, of which Podwire makes none. */
  readonly floatingIps: readonly string[];
  /** The families, where the pod or its namespace chose them. */
  readonly chosenFamilies: readonly Family[];
  /** How the pools came to be asked for. */
  readonly poolChoices: readonly PoolChoice[];
  /** Labels of the pod's namespace; empty where they are not known. */
  readonly namespaceLabels: Readonly<Record<string, string>>;
}

/** How a pool came to be asked for. */
interface PoolChoice {
  /** By name or CIDR. */
  readonly pool: string;
  /** The family that it was asked for as. */
  readonly family: Family;
  /** Whether the network configuration names it, and neither the pod nor its namespace. */
  readonly isConfigured: boolean;
}

/** What CNI_ARGS asks for. */
export interface AskedInArgs {
  readonly addresses: AskedAddresses | undefined;
  readonly mac: AskedMac | undefined;
}

/**
 * Decides between all that was asked for. A pod's annotation comes before its namespace's, and that before the network's configuration,
 * as Calico has it, and `args.cni` before CNI_ARGS, as the CNI conventions have it. What else differs is a contradiction, as each place
 * is about this pod.
 * @throws Failure INVALID_CONFIG that names both places of every contradiction
 */
export function wishOf(requested: Requested, args: AskedInArgs): Wish {
  const { annotations } = requested;
  const violations: Violation[] = [];
  const addresses = agreed(
    [
      annotations.addresses,
      annotations.addressesWithoutIpam,
      ...requested.capabilityAddresses,
      requested.argsAddresses ?? args.addresses,
    ],
    violations,
  );
  const mac = agreed([annotations.mac, ...requested.capabilityMacs, requested.argsMac ?? args.mac], violations);
  violations.push(...pairFaults(annotations.addresses, annotations.addressesWithoutIpam));
  violations.push(...familyFaults(addresses, annotations.families));
  if (violations.length > 0) throw violationsFailure('INVALID_CONFIG', 'request refused', violations);

  const withoutIpam = annotations.addressesWithoutIpam !== undefined;
  const chosenFamilies = (annotations.families ?? requested.namespaceAnnotations.families)?.value;
  const families = chosenFamilies ?? requested.families;
  const chosen = {
    macAddress: mac?.value,
    sourcePrefixes: annotations.sourcePrefixes,
    floatingIps: annotations.floatingIps,
    chosenFamilies: chosenFamilies ?? [],
    namespaceLabels: requested.namespaceLabels,
    addresses: withoutIpam ? [] : (addresses?.value ?? []),
    addressesWithoutIpam: withoutIpam ? (addresses?.value ?? []) : [],
  };
  // A requested address determines its pool.
  if (addresses) return { families: [], pools: [], poolChoices: [], ...chosen };
  const poolChoices = choicesOf(requested, families.length === 0 ? [4] : families);
  return { families, pools: [...new Set(poolChoices.map(({ pool }) => pool))], poolChoices, ...chosen };
}

/** The requested value, if all sources that set one agree. */
function agreed<Value>(all: readonly (Asked<Value> | undefined)[], violations: Violation[]): Asked<Value> | undefined {
  const asked = all.filter((each) => each !== undefined);
  const [first] = asked;
  const other = asked.find((each) => canonical(each.value) !== canonical(first?.value));
  if (first && other) {
    const reason = `asks for ${show(first.value)}, and ${other.place} for ${show(other.value)}; ask for one of them`;
    violations.push({ field: first.place, reason });
  }
  return first;
}

function pairFaults(withIpam: AskedAddresses | undefined, withoutIpam: AskedAddresses | undefined): Violation[] {
  if (!withIpam || !withoutIpam) return [];
  return [{ field: withIpam.place, reason: `cannot be together with ${withoutIpam.place}; remove one of them` }];
}

function familyFaults(
  addresses: AskedAddresses | undefined,
  families: Asked<readonly Family[]> | undefined,
): Violation[] {
  if (!addresses || !families) return [];
  const stray = addresses.value.find((address) => !families.value.includes(isIpv6(address) ? 6 : 4));
  if (stray === undefined) return [];
  return [{ field: addresses.place, reason: `asks for ${stray}, and ${families.place} has no family of that` }];
}

/** Pool choices of the requested families; the remaining families are ignored. */
function choicesOf(requested: Requested, families: readonly Family[]): readonly PoolChoice[] {
  const { annotations, namespaceAnnotations, ipv4Pools, ipv6Pools } = requested;
  const chosen = {
    4: annotations.ipv4Pools ?? namespaceAnnotations.ipv4Pools,
    6: annotations.ipv6Pools ?? namespaceAnnotations.ipv6Pools,
  };
  const configured = { 4: ipv4Pools, 6: ipv6Pools };
  return families.flatMap((family) => {
    const isConfigured = chosen[family] === undefined;
    const pools = (chosen[family] ?? configured[family])?.value ?? [];
    return pools.map((pool) => ({ pool, family, isConfigured }));
  });
}

function canonical(value: unknown): string {
  return JSON.stringify(Array.isArray(value) ? value.map(String).sort() : value);
}

function show(value: unknown): string {
  return Array.isArray(value) ? value.join(', ') : String(value);
}
