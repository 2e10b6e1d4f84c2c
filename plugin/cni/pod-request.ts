import type { Bandwidth } from '@podwire/shared/attachment/bandwidth';
import type { HostPort } from '@podwire/shared/attachment/host-port';
import { violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import { familyOf, type Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { Sourced, RequestedAddresses, RequestedMac } from './annotations.js';
import type { RequestSources } from './request-sources.js';

/** The effective request of a pod, resolved from all its sources. */
export interface PodRequest {
  /** Empty: podwire-ipam chooses. */
  readonly families: readonly Family[];
  /** Pools by name or CIDR; empty: podwire-ipam chooses. */
  readonly pools: readonly string[];
  /** Individually requested addresses, at most one of each family. */
  readonly addresses: readonly string[];
  /** Addresses assigned without IPAM; they replace all other addresses. */
  readonly addressesWithoutIpam: readonly string[];
  /** MAC address of the pod's interface instead of the derived one. */
  readonly macAddress: Mac | undefined;
  /** Source prefixes that the pod may use beside its own addresses. */
  readonly sourcePrefixes: readonly Prefix[];
  /** Ports of the node that lead to the pod. */
  readonly hostPorts: readonly HostPort[];
  /** Limits of the pod's packets. */
  readonly bandwidth: Bandwidth | undefined;
  /** The families, if the pod chose them. */
  readonly chosenFamilies: readonly Family[];
  /** The pools, each with its origin. */
  readonly poolChoices: readonly PoolChoice[];
}

/** A requested pool and its origin. */
interface PoolChoice {
  /** Pool by name or CIDR. */
  readonly pool: string;
  /** The family that it was requested for. */
  readonly family: Family;
  /** Whether the network configuration requests it, rather than the pod. */
  readonly isConfigured: boolean;
}

/** Requests in CNI_ARGS. */
export interface ArgsRequest {
  readonly addresses: RequestedAddresses | undefined;
  readonly mac: RequestedMac | undefined;
}

/**
 * Resolves all sources of a pod's request. As in Calico, a pod's annotation overrides the network configuration. As in the CNI conventions, `args.cni` overrides CNI_ARGS. Other differences are conflicts, as all
 * these sources describe the same pod.
 * @throws Failure INVALID_CONFIG that names both sources of every conflict
 */
export function resolvePodRequest(requestSources: RequestSources, args: ArgsRequest): PodRequest {
  const { annotations } = requestSources;
  const violations: Violation[] = [];
  const addresses = agreedValue(
    [
      annotations.addresses,
      annotations.addressesWithoutIpam,
      ...requestSources.capabilityAddresses,
      requestSources.argsAddresses ?? args.addresses,
    ],
    violations,
  );
  const mac = agreedValue(
    [annotations.mac, ...requestSources.capabilityMacs, requestSources.argsMac ?? args.mac],
    violations,
  );
  violations.push(...pairFaults(annotations.addresses, annotations.addressesWithoutIpam));
  violations.push(...familyFaults(addresses, annotations.families));
  if (violations.length > 0) throw violationsFailure('INVALID_CONFIG', 'request refused', violations);

  const withoutIpam = annotations.addressesWithoutIpam !== undefined;
  const chosenFamilies = annotations.families?.value;
  const families = chosenFamilies ?? requestSources.families;
  const chosen = {
    macAddress: mac?.value,
    sourcePrefixes: annotations.sourcePrefixes,
    hostPorts: requestSources.hostPorts,
    bandwidth: requestSources.bandwidth,
    chosenFamilies: chosenFamilies ?? [],
    addresses: withoutIpam ? [] : (addresses?.value ?? []),
    addressesWithoutIpam: withoutIpam ? (addresses?.value ?? []) : [],
  };
  // A requested address determines its pool.
  if (addresses) return { families: [], pools: [], poolChoices: [], ...chosen };
  const poolChoices = choicesOf(requestSources, families.length === 0 ? [4] : families);
  return { families, pools: [...new Set(poolChoices.map(({ pool }) => pool))], poolChoices, ...chosen };
}

/** The requested value, if all sources that set one agree. */
function agreedValue<Value>(
  all: readonly (Sourced<Value> | undefined)[],
  violations: Violation[],
): Sourced<Value> | undefined {
  const present = all.filter((each) => each !== undefined);
  const [first] = present;
  const other = present.find((each) => canonical(each.value) !== canonical(first?.value));
  if (first && other) {
    const reason = `requests ${show(first.value)}, but ${other.source} requests ${show(other.value)}; request only one of them`;
    violations.push({ field: first.source, reason });
  }
  return first;
}

function pairFaults(
  withIpam: RequestedAddresses | undefined,
  withoutIpam: RequestedAddresses | undefined,
): Violation[] {
  if (!withIpam || !withoutIpam) return [];
  return [{ field: withIpam.source, reason: `cannot be combined with ${withoutIpam.source}; remove one of them` }];
}

function familyFaults(
  addresses: RequestedAddresses | undefined,
  families: Sourced<readonly Family[]> | undefined,
): Violation[] {
  if (!addresses || !families) return [];
  const mismatch = addresses.value.find((address) => !families.value.includes(familyOf(address)));
  if (mismatch === undefined) return [];
  return [{ field: addresses.source, reason: `requests ${mismatch}, but ${families.source} excludes its family` }];
}

/** Pool choices of the requested families; the remaining families are ignored. */
function choicesOf(requestSources: RequestSources, families: readonly Family[]): readonly PoolChoice[] {
  const { annotations, ipv4Pools, ipv6Pools } = requestSources;
  const chosen = { 4: annotations.ipv4Pools, 6: annotations.ipv6Pools };
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
