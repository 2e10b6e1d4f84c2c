import { HOST_INTERFACE_PREFIX } from '@podwire/shared/attachment/names';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { FAMILIES, type Family } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { Condition } from '../conditions/conditions.js';
import { TableReconciler, type TableReconcilerOptions } from '../nft/table-reconciler.js';
import {
  ADDRESS_TYPE,
  concatJson,
  COUNTED_DROP,
  FILTER_PRIORITY,
  jumpTo,
  match,
  meta,
  outermost,
  payload,
  prefixJson,
  PROTOCOL,
  updateSet,
  type Json,
  type JsonObject,
  type NftChain,
  type NftSet,
  type NftTable,
  type TableName,
} from '../nft/table.js';
import { ENCAPSULATED } from './tunnel-guard.js';

/** Part of a pod that the guard needs. */
type GuardedPod = Pick<PodNetwork, 'hostInterfaceName' | 'addresses' | 'sourcePrefixes'>;

/** Prefixes that a pod may send from besides its own addresses, by host interface. */
type SourcePrefixes = ReadonlyMap<string, readonly Prefix[]>;

export const GUARD_TABLE: TableName = { family: 'inet', name: 'podwire' };

const CHECK_SOURCE = 'check_source';
const CHECK_ENCAPSULATION = 'check_encapsulation';
const LIMIT_NEIGHBOURS = 'limit_neighbours';
const LISTED_INTERFACES = 'pod_interfaces';
const ALLOWED: Readonly<Record<Family, string>> = { 4: 'allowed_sources4', 6: 'allowed_sources6' };

/** Recent IPv6 sources of a pod by interface, and the rate of new ones. */
const NEIGHBOURS = 'known_neighbours';
const RATES = 'neighbour_rates';

/** Limits of both sets: room for several sources of each pod on a full node. */
const SET_LIMITS = { sizeCount: 65_535, timeoutSeconds: 60 };

/**
 * Rate limit of new sources per pod. The kernel cannot collect an entry in its first 5 s, so a pod holds at most 9 of the 1,024
 * entries that the table has by default.
 */
const NEW_SOURCES = { rate: 1, burst: 4, per: 'second', inv: true };

/** Router and neighbour solicitations (RFC 4861): each adds its source to the kernel's neighbour table. */
const SOLICITATIONS: Json = { set: [133, 135] };

/** NF_IP_PRI_RAW_BEFORE_DEFRAG: before reassembly, where a forged fragment would spoil the packet of another pod. */
const RAW_PRIORITY = -450;

/** Loopback addresses of IPv4. The kernel itself drops IPv6 loopback addresses from other interfaces. */
const LOOPBACK: Json = { prefix: { addr: '127.0.0.0', len: 8 } };

/** The outgoing interface of the reverse path: `fib saddr . iif oif`. */
const REVERSE_PATH: Json = { fib: { result: 'oif', flags: ['saddr', 'iif'] } };

/**
 * The table that restricts packets from pods. Drops packets to and from the node's loopback addresses: `route_localnet`, which
 * port mappings need, makes the kernel accept them. Replies of a port mapping to the node's 127.0.0.1 get that address only in
 * connection tracking, which runs later.
 *
 * Drops packets in VXLAN or IPIP: a node would accept them as packets of the overlay, with a forged source. The check follows the
 * translation of destinations, which may redirect other packets to a node's tunnel.
 *
 * Limits the rate of new sources: each link-local source, and each source of a solicitation, becomes an entry in the kernel's
 * neighbour table, which all interfaces and namespaces share. Known sources pass.
 *
 * Lets pods send only from addresses that the node routes to them, and from their allowed source prefixes. Link-local and
 * unspecified IPv6 sources pass, as neighbour discovery needs them; the kernel forwards neither.
 *
 * Both families are checked. IPv6 has no rp_filter. IPv4's has no exceptions for source prefixes, so it is off on the interfaces
 * of pods that have some. A loose `all` would also loosen it on an interface with an IPv4 address.
 */
export function guardTable(prefixes: SourcePrefixes): NftTable {
  const returnVerdict = { return: null };
  const ipv6Source = payload('ip6', 'saddr');
  const linkLocal: Json = { prefix: { addr: 'fe80::', len: 10 } };
  return {
    ...GUARD_TABLE,
    sets: [
      {
        name: LISTED_INTERFACES,
        type: 'ifname',
        interval: false,
        elements: [...prefixes.keys()].filter(hasOtherName).toSorted(),
      },
      ...FAMILIES.map((family): NftSet => ({
        name: ALLOWED[family],
        type: ['ifname', ADDRESS_TYPE[family]],
        interval: true,
        elements: [...prefixes].flatMap(([device, allowed]) => allowedElements(family, device, allowed)),
      })),
      { name: NEIGHBOURS, type: ['ifname', 'ipv6_addr'], interval: false, elements: [], filledByRules: SET_LIMITS },
      { name: RATES, type: 'ifname', interval: false, elements: [], filledByRules: SET_LIMITS },
    ],
    chains: [
      limitNeighbours(),
      {
        name: CHECK_SOURCE,
        hook: undefined,
        rules: [
          [match(payload('ip', 'daddr'), '==', LOOPBACK), ...COUNTED_DROP],
          [match(payload('ip', 'saddr'), '==', LOOPBACK), ...COUNTED_DROP],
          [match({ payload: { protocol: 'icmpv6', field: 'type' } }, '==', SOLICITATIONS), jumpTo(LIMIT_NEIGHBOURS)],
          [match(ipv6Source, '==', '::'), returnVerdict],
          [match(ipv6Source, '==', linkLocal), { goto: { target: LIMIT_NEIGHBOURS } }],
          ...FAMILIES.map((family): readonly JsonObject[] => {
            const sender: Json = { concat: [meta('iifname'), payload(PROTOCOL[family], 'saddr')] };
            return [match(sender, '==', `@${ALLOWED[family]}`), returnVerdict];
          }),
          [match(REVERSE_PATH, '==', false), ...COUNTED_DROP],
        ],
      },
      {
        name: CHECK_ENCAPSULATION,
        hook: undefined,
        rules: Object.values(ENCAPSULATED).map((encapsulated) => [encapsulated, ...COUNTED_DROP]),
      },
      hookOf('prerouting', RAW_PRIORITY, CHECK_SOURCE),
      hookOf('forward', FILTER_PRIORITY, CHECK_ENCAPSULATION),
      hookOf('input', FILTER_PRIORITY, CHECK_ENCAPSULATION),
    ],
  };
}

/** Drops packets with a new source when their interface exceeds the rate limit. */
function limitNeighbours(): NftChain {
  const source: Json = { concat: [meta('iifname'), payload('ip6', 'saddr')] };
  return {
    name: LIMIT_NEIGHBOURS,
    hook: undefined,
    rules: [
      [match(source, '==', `@${NEIGHBOURS}`), { return: null }],
      [updateSet(RATES, meta('iifname'), { limit: NEW_SOURCES }), ...COUNTED_DROP],
      [updateSet(NEIGHBOURS, source), { return: null }],
      COUNTED_DROP,
    ],
  };
}

/** A chain that passes packets of pods to another. */
function hookOf(name: string, priority: number, target: string): NftChain {
  const jump = jumpTo(target);
  return {
    name: `guard_${name}`,
    hook: { type: 'filter', name, priority },
    rules: [
      [match(meta('iifname'), '==', `${HOST_INTERFACE_PREFIX}*`), jump],
      [match(meta('iifname'), '==', `@${LISTED_INTERFACES}`), jump],
    ],
  };
}

/** Whether an interface must be listed for its packets to be checked. */
function hasOtherName(device: string): boolean {
  return !device.startsWith(HOST_INTERFACE_PREFIX);
}

function allowedElements(family: Family, device: string, allowed: readonly Prefix[]): Json[] {
  const prefixes = allowed.filter((prefix) => prefix.family === family);
  return outermost(prefixes).map((prefix) => concatJson(device, prefixJson(prefix)));
}

/**
 * Reconciles the table `inet podwire`, which prevents pods from sending from foreign addresses. Interfaces with Podwire's name
 * prefix are guarded without an entry, unless their pod has source prefixes.
 */
export class SourceGuard {
  readonly #reconciler: TableReconciler;
  #prefixes: SourcePrefixes = new Map();

  constructor(options: Omit<TableReconcilerOptions, 'table'>) {
    this.#reconciler = new TableReconciler({ ...options, table: GUARD_TABLE });
  }

  /**
   * Installs the table for the existing interfaces at the start. Call once, before any pod is wired.
   * @param prefixes - for every interface that has some, or a name without Podwire's prefix
   * @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED; it is retried automatically
   */
  start(prefixes: SourcePrefixes): Promise<void> {
    this.#prefixes = new Map([...prefixes].filter(([device, allowed]) => isListed(device, allowed)));
    return this.#reconciler.setWanted(guardTable(this.#prefixes));
  }

  /**
   * Guards an interface, existing or not yet, and allows its pod these source prefixes besides its own addresses; they replace
   * the earlier ones. Resolves when that is in force: before the interface is up. Idempotent; does nothing for a name with
   * Podwire's prefix without prefixes before and after, except that a pod with IPv6 addresses waits until the table is in force.
   * If it is, the pod does not wait for changes of other pods.
   * @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED; it is retried, unless {@link forget} comes first
   */
  async install({ hostInterfaceName, addresses, sourcePrefixes }: GuardedPod): Promise<void> {
    const hasIpv6 = addresses.some(({ family }) => family === 6);
    if (hasIpv6 && !this.#reconciler.isInForce) await this.#reconciler.setWanted(guardTable(this.#prefixes));
    await this.#set(hostInterfaceName, isListed(hostInterfaceName, sourcePrefixes) ? sourcePrefixes : undefined);
  }

  /** Stops guarding an interface that is gone. Idempotent. @throws Failure as {@link install} */
  forget(device: string): Promise<void> {
    return this.#set(device, undefined);
  }

  /** The interfaces whose packets are checked: names, or prefixes with a trailing `*`. */
  get interfaces(): readonly string[] {
    return [`${HOST_INTERFACE_PREFIX}*`, ...[...this.#prefixes.keys()].filter(hasOtherName)];
  }

  /** Conditions; empty when there are no differences. */
  conditions(): readonly Condition[] {
    const effect =
      'nftables cannot filter packets from pods, so pods with IPv6 addresses or source prefixes are refused, and IPv4 pods reach services on the node’s 127.0.0.1';
    return this.#reconciler.conditions({ reason: 'SourceGuardUnavailable', blockedFamilies: [6] }, effect);
  }

  /** Leaves the table in force. */
  stop(): Promise<void> {
    return this.#reconciler.stop();
  }

  async #set(device: string, allowed: readonly Prefix[] | undefined): Promise<void> {
    if (allowed === undefined && !this.#prefixes.has(device)) return;
    const prefixes = new Map(this.#prefixes);
    if (allowed) prefixes.set(device, allowed);
    else prefixes.delete(device);
    this.#prefixes = prefixes;
    await this.#reconciler.setWanted(guardTable(prefixes));
  }
}

function isListed(device: string, allowed: readonly Prefix[]): boolean {
  return allowed.length > 0 || hasOtherName(device);
}
