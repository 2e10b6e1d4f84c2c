import { FAMILIES, type Family } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { Condition } from '../conditions/conditions.js';
import { TableReconciler, type TableReconcilerOptions } from '../nft/table-reconciler.js';
import {
  ADDRESS_TYPE,
  COUNTED_DROP,
  FILTER_PRIORITY,
  match,
  meta,
  outermost,
  payload,
  prefixJson,
  PROTOCOL,
  updateSet,
  type FieldType,
  type JsonObject,
  type NftSet,
  type NftTable,
  type TableName,
} from '../nft/table.js';

export const NEIGHBOUR_TABLE: TableName = { family: 'inet', name: 'podwire_neighbours' };

/** Destinations by family: on the node's own links, answering a pod, or just addressed by a pod. */
const CONNECTED: Readonly<Record<Family, string>> = { 4: 'connected4', 6: 'connected6' };
const ANSWERED: Readonly<Record<Family, string>> = { 4: 'answered4', 6: 'answered6' };
const RECENT: Readonly<Record<Family, string>> = { 4: 'recent4', 6: 'recent6' };
const RATES = 'destination_rates';

const SIZE_COUNT = 65_535;

/** A destination that answers no pod takes part in the limits once in this time. */
const RECENT_SECONDS = 15;
const ANSWERED_SECONDS = 600;

/**
 * Limits of new destinations: of one pod, and of all pods of the node. The kernel's neighbour table has 1,024 entries by default.
 * An entry without an answer stays for 3 s, and again with each packet. One pod then holds at most 64 + 4 × 15 = 124 entries,
 * and all pods 128 + 16 × 15 = 368, which is less than the number at which the kernel begins to evict entries (512). For
 * IPv6 it also adds the group address of each solicitation, and evicts these first (neigh_forced_gc in net/core/neighbour.c).
 */
const PER_POD = { rate: 4, burst: 64, per: 'second', inv: true };
const PER_NODE = { rate: 16, burst: 128, per: 'second', inv: true };

/**
 * The table that limits the neighbour entries which packets of pods create: each unused address of a subnet on the node's own
 * links costs an entry. Other packets cost one lookup.
 */
function neighbourTable(connected: readonly Prefix[], podInterfaces: readonly string[]): NftTable {
  const source = (family: Family) => payload(PROTOCOL[family], 'saddr');
  const destination = (family: Family) => payload(PROTOCOL[family], 'daddr');
  const jumps = (key: string, target: string): readonly (readonly JsonObject[])[] =>
    podInterfaces.map((name) => [match(meta(key), '==', name), { jump: { target } }]);
  return {
    ...NEIGHBOUR_TABLE,
    sets: setsOf(connected),
    chains: [
      {
        name: 'limit_new',
        hook: undefined,
        rules: [
          [updateSet(RATES, meta('iifname'), { limit: PER_POD }), ...COUNTED_DROP],
          [{ limit: PER_NODE }, ...COUNTED_DROP],
          ...FAMILIES.map((family) => [updateSet(RECENT[family], destination(family)), { return: null }]),
          COUNTED_DROP,
        ],
      },
      {
        name: 'from_pods',
        hook: undefined,
        rules: FAMILIES.map((family) => [
          match(destination(family), '==', `@${CONNECTED[family]}`),
          match(destination(family), '!=', `@${ANSWERED[family]}`),
          match(destination(family), '!=', `@${RECENT[family]}`),
          { jump: { target: 'limit_new' } },
        ]),
      },
      {
        name: 'to_pods',
        hook: undefined,
        rules: FAMILIES.map((family) => [
          match(source(family), '==', `@${CONNECTED[family]}`),
          updateSet(ANSWERED[family], source(family)),
        ]),
      },
      {
        name: 'neighbour_forward',
        hook: { type: 'filter', name: 'forward', priority: FILTER_PRIORITY },
        rules: [...jumps('iifname', 'from_pods'), ...jumps('oifname', 'to_pods')],
      },
    ],
  };
}

function setsOf(connected: readonly Prefix[]): readonly NftSet[] {
  const filled = (name: string, type: FieldType, timeoutSeconds: number): NftSet => ({
    name,
    type,
    interval: false,
    elements: [],
    filledByRules: { sizeCount: SIZE_COUNT, timeoutSeconds },
  });
  const prefixes = outermost(connected);
  return [
    ...FAMILIES.flatMap((family) => [
      {
        name: CONNECTED[family],
        type: ADDRESS_TYPE[family],
        interval: true,
        elements: prefixes.filter((prefix) => prefix.family === family).map(prefixJson),
      },
      filled(ANSWERED[family], ADDRESS_TYPE[family], ANSWERED_SECONDS),
      filled(RECENT[family], ADDRESS_TYPE[family], RECENT_SECONDS),
    ]),
    filled(RATES, 'ifname', RECENT_SECONDS),
  ];
}

interface NeighbourGuardOptions extends Omit<TableReconcilerOptions, 'table'> {
  /** Interfaces of pods: names, or prefixes with a trailing `*`. */
  readonly podInterfaces: () => readonly string[];
}

/** Reconciles the table `inet podwire_neighbours`, by which no pod fills the kernel's neighbour table with destinations. */
export class NeighbourGuard {
  readonly #podInterfaces: () => readonly string[];
  readonly #reconciler: TableReconciler;

  constructor({ podInterfaces, ...options }: NeighbourGuardOptions) {
    this.#podInterfaces = podInterfaces;
    this.#reconciler = new TableReconciler({ ...options, table: NEIGHBOUR_TABLE });
  }

  /** Sets the subnets on the node's own links. */
  setConnected(connected: readonly Prefix[]): void {
    this.#reconciler.request(neighbourTable(connected, this.#podInterfaces()));
  }

  /** Conditions; empty while the table is as wanted. */
  conditions(): readonly Condition[] {
    const effect = 'nftables cannot limit new destinations, so a pod can fill the node’s neighbour table';
    return this.#reconciler.conditions({ reason: 'NeighbourGuardUnavailable' }, effect);
  }

  /** Leaves the table in force. */
  stop(): Promise<void> {
    return this.#reconciler.stop();
  }
}
