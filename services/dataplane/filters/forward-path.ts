import { Failure } from '@podwire/shared/failure/failure';
import { familyBits, parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';
import { WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import {
  nodeAddressOf,
  type ClusterChange,
  type ClusterNode,
  type ClusterPool,
  type ClusterView,
  type Follower,
} from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import { Ruleset, type ForwardedPacket } from '../nft/ruleset.js';
import type { TableEvents } from '../nft/table-reconciler.js';
import type { BaseChain, Nft } from '../nft/nft.js';
import {
  formatTableName,
  isList,
  isObject,
  match,
  meta,
  PROTOCOL,
  type JsonObject,
  type NftCommand,
  type TableName,
} from '../nft/table.js';

interface ForwardPathOptions {
  readonly nft: Nft;
  readonly events: TableEvents;
  readonly clock: Clock;
  /** Whether Podwire accepts packets of pods in the chains of iptables. */
  readonly acceptsFirst: boolean;
  /** Interfaces of pods: names, or prefixes with a trailing `*`. */
  readonly podInterfaces: () => readonly string[];
  /** Interface by which packets of a pool reach other nodes; undefined while unknown. */
  readonly peerInterface: (pool: ClusterPool) => string | undefined;
  /** Interface with the node's address of a family; undefined while unknown. */
  readonly uplink: (family: Family) => string | undefined;
}

/** Packets by the same interfaces. A firewall may drop some: it is reported when it drops all. */
interface Flow {
  readonly input: string;
  readonly output: string;
  readonly ends: readonly Pick<ForwardedPacket, 'source' | 'destination'>[];
}

/** Interval of the comparisons with the latest transaction of nftables. */
export const FORWARD_CHECK_INTERVAL_MS = 15_000;

/** Tables that drop no packet of a pod: Podwire's own, and kube-proxy's, which can be large. */
const SKIPPED_TABLES = [
  ...['podwire', 'podwire_hostports', 'podwire_tunnels', 'podwire_neighbours', 'podwire_ports', 'podwire_policy'],
  'kube-proxy',
];

/** The chain of iptables for forwarded packets, which the iptables of nftables shares with `nft`. */
const IPTABLES = { name: 'filter', chain: 'FORWARD' } as const;

/** The comment of Podwire's rules in chains of other programs. */
const COMMENT = 'podwire';

const FAMILIES: readonly Family[] = [4, 6];

/** Hosts of the internet: root servers of DNS, which no list of private or reserved addresses has. */
const INTERNET: Readonly<Record<Family, Address | undefined>> = {
  4: parseAddress('198.41.0.4'),
  6: parseAddress('2001:503:ba3e::2:30'),
};

/**
 * Keeps packets of pods from being dropped on their way through the node by another firewall: accepts them first in the chains of
 * iptables, and reports each chain that drops them. A verdict of one chain does not bind further chains, so Podwire cannot accept a
 * packet for a table that another program manages by nft.
 *
 * The rules go to the head of the chain when they are missing, and again when an earlier rule drops packets of pods. Otherwise
 * their place is left to the other programs.
 */
export class ForwardPath implements Follower {
  readonly #options: ForwardPathOptions;
  readonly #queue: WorkQueue<'check'>;
  #pools: readonly ClusterPool[] | undefined;
  #node: ClusterNode | undefined;
  #conditions: readonly Condition[] = [];
  /** Message of the last failure; undefined after a success. */
  #failure: string | undefined;
  #clusterVersion = 0;
  /** State at the last successful check. */
  #checkedState: string | undefined;
  /** Tables into which this process has written its rules. */
  readonly #written = new Set<string>();

  constructor(options: ForwardPathOptions) {
    this.#options = options;
    this.#queue = new WorkQueue({
      reconcile: async () => {
        await this.#check();
        return { inMs: FORWARD_CHECK_INTERVAL_MS };
      },
      retryInMs: () => FORWARD_CHECK_INTERVAL_MS,
      onFailure: (error) => this.#failed(error),
      clock: options.clock,
    });
  }

  follow({ self, cluster }: ClusterView, { hasOtherChanges }: ClusterChange): void {
    if (this.#pools && !hasOtherChanges) return;
    this.#pools = [...cluster.pools.values()].filter(({ loadBalancerOnly }) => !loadBalancerOnly);
    this.#node = cluster.nodes.get(self);
    this.#clusterVersion++;
    this.#queue.request('check');
  }

  conditions(): readonly Condition[] {
    return this.#conditions;
  }

  /** Leaves the rules in force. */
  stop(): Promise<void> {
    return this.#queue.stop();
  }

  async #check(): Promise<void> {
    const state = await this.#state();
    if (state === this.#checkedState) return;
    const found = await this.#options.nft.forwardChains();
    const chains = found.filter(({ table }) => !SKIPPED_TABLES.includes(table.name));
    const tables = new Map(chains.map(({ table }) => [formatTableName(table), table]));
    const conditions: Condition[] = [];
    let failure: Failure | undefined;
    for (const [name, table] of tables) {
      try {
        const ruleset = await this.#read(table);
        const ofTable = chains.filter((chain) => formatTableName(chain.table) === name);
        if (ruleset) conditions.push(...ofTable.flatMap((chain) => this.#dropCondition(chain, ruleset) ?? []));
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
        failure = error;
      }
    }
    this.#conditions = conditions;
    if (failure) throw failure;
    if (this.#failure !== undefined) this.#options.events.tableRecovered('forward');
    this.#failure = undefined;
    this.#checkedState = state;
  }

  /** The part of the node's state that decides about packets of pods, as text. */
  async #state(): Promise<string> {
    const { nft, podInterfaces, peerInterface, uplink } = this.#options;
    const interfaces = (this.#pools ?? []).map((pool) => [peerInterface(pool), uplink(pool.cidr.family)]);
    return JSON.stringify([await nft.latestTransaction(), this.#clusterVersion, podInterfaces(), interfaces]);
  }

  #failed(error: unknown): void {
    const failure = error instanceof Failure ? error : new Failure('INTERNAL', 'internal error', { cause: error });
    if (this.#failure !== failure.message) this.#options.events.tableFailed('forward', failure);
    this.#failure = failure.message;
  }

  /** Reads a table, with Podwire's rules in it. Undefined when it is gone. */
  async #read(table: TableName): Promise<Ruleset | undefined> {
    const { nft, events } = this.#options;
    const objects = await nft.read(table);
    const ruleset = objects && new Ruleset(objects);
    if (!ruleset || !isIptables(table) || !ruleset.has(IPTABLES.chain)) return ruleset;
    const commands = this.#commands(table, ruleset);
    if (commands.length === 0) return ruleset;
    await nft.apply(commands);
    const name = formatTableName(table);
    events.tableWritten(name, this.#written.has(name) ? 'drift' : 'wanted');
    this.#written.add(name);
    const changed = await nft.read(table);
    return changed && new Ruleset(changed);
  }

  /** The commands that put Podwire's rules into a chain of iptables; empty when they are there. */
  #commands(table: TableName, ruleset: Ruleset): readonly NftCommand[] {
    const { acceptsFirst, podInterfaces } = this.#options;
    const family = FAMILIES.find((each) => PROTOCOL[each] === table.family);
    const isNeeded = acceptsFirst && this.#pools?.some(({ cidr }) => cidr.family === family) === true;
    const wanted = (isNeeded ? podInterfaces() : []).flatMap(acceptRules);
    const rules = ruleset.rulesOf(IPTABLES.chain);
    const own = rules.filter(isOwnRule);
    const isPresent = own.map(matchesOf).join('\n') === wanted.map((expr) => matchesOf({ expr })).join('\n');
    const isFirst = own.every((rule, at) => rule === rules[at]);
    const chain = { table, name: IPTABLES.chain, hook: 'forward' } as const;
    if (isPresent && (isFirst || this.#dropCondition(chain, ruleset) === undefined)) return [];
    const rule = { family: table.family, table: table.name, chain: IPTABLES.chain };
    return [
      ...own.map(({ handle }): NftCommand => ({ delete: { rule: { ...rule, handle: handle ?? null } } })),
      ...wanted.toReversed().map((expr): NftCommand => ({ insert: { rule: { ...rule, expr, comment: COMMENT } } })),
    ];
  }

  #dropCondition(chain: BaseChain, ruleset: Ruleset): Condition | undefined {
    const { table, name, hook } = chain;
    const families = FAMILIES.filter((family) => table.family === 'inet' || table.family === PROTOCOL[family]);
    for (const pool of this.#pools?.filter(({ cidr }) => families.includes(cidr.family)) ?? []) {
      for (const { input, output, ends } of this.#flows(pool)) {
        // The kernel chooses the output after prerouting.
        const way = { input, output: hook === 'prerouting' ? '' : output };
        const causes = ends.map((addresses) => ruleset.dropOf(name, { ...way, ...addresses }));
        if (causes[0] === undefined || causes.includes(undefined)) continue;
        const message =
          `IPv${pool.cidr.family} packets of pods from ${input} to ${output} are dropped by the firewall: ` +
          `chain ${name} of table ${formatTableName(table)} (${causes[0]}); run: ${cureOf(chain, pool)}`;
        return { reason: 'ForwardDropped', message };
      }
    }
    return undefined;
  }

  /**
   * Packets of a pool's pods that the node forwards: between two of its pods, to another node, from there, and to the outside if
   * the pool leads there.
   */
  #flows(pool: ClusterPool): readonly Flow[] {
    const { cidr, natOutgoing } = pool;
    const { peerInterface, uplink: uplinkOf } = this.#options;
    const [peer, uplink] = [peerInterface(pool), uplinkOf(cidr.family)];
    const [source, destination] = [addressIn(cidr, 1n), addressIn(cidr, 2n)];
    const between = (input: string, output: string) => ({ input, output, ends: [{ source, destination }] });
    const outside = [INTERNET[cidr.family], nodeAddressOf(this.#node, cidr.family)?.address].filter(
      (each) => each !== undefined,
    );
    return [
      between('podw1', 'podw2'),
      ...(peer === undefined ? [] : [between('podw1', peer), between(peer, 'podw1')]),
      ...(uplink === undefined || !natOutgoing
        ? []
        : [{ input: 'podw1', output: uplink, ends: outside.map((to) => ({ source, destination: to })) }]),
    ];
  }
}

/** Podwire's rules in the chains of iptables: the commands that delete each. @throws Failure as {@link Nft} */
export async function acceptRuleDeletions(nft: Pick<Nft, 'read'>): Promise<readonly NftCommand[]> {
  const deletions: NftCommand[] = [];
  for (const family of FAMILIES) {
    const objects = await nft.read({ family: PROTOCOL[family], name: IPTABLES.name });
    const rules = new Ruleset(objects ?? []).rulesOf(IPTABLES.chain).filter(isOwnRule);
    const place = { family: PROTOCOL[family], table: IPTABLES.name, chain: IPTABLES.chain };
    deletions.push(...rules.map(({ handle }) => ({ delete: { rule: { ...place, handle: handle ?? null } } })));
  }
  return deletions;
}

function isIptables({ family, name }: TableName): boolean {
  return family !== 'inet' && name === IPTABLES.name;
}

function isOwnRule({ comment }: JsonObject): boolean {
  return comment === COMMENT;
}

/** `iptables -A FORWARD -i NAME -j ACCEPT`, and the same with `-o`. */
function acceptRules(name: string): readonly (readonly JsonObject[])[] {
  const counter = { counter: { packets: 0, bytes: 0 } };
  return ['iifname', 'oifname'].map((key) => [match(meta(key), '==', name), counter, { accept: null }]);
}

/** A rule as text, without its counter. */
function matchesOf({ expr }: JsonObject): string {
  return JSON.stringify(isList(expr) ? expr.filter((part) => isObject(part) && !('counter' in part)) : expr);
}

function addressIn({ family, value, length }: Prefix, place: bigint): Address {
  const size = 1n << BigInt(familyBits(family) - length);
  return { family, value: value + (place < size ? place : 0n) };
}

/** The commands with which an operator lets packets of pods pass. */
function cureOf({ table, name, hook }: BaseChain, { cidr }: ClusterPool): string {
  if (table.name === 'firewalld')
    return `firewall-cmd --permanent --zone=trusted --add-source=${formatPrefix(cidr)} && firewall-cmd --reload`;
  if (isIptables(table) && name === IPTABLES.chain) {
    const program = table.family === 'ip6' ? 'ip6tables' : 'iptables';
    return `${program} -I FORWARD -i podw+ -j ACCEPT && ${program} -I FORWARD -o podw+ -j ACCEPT`;
  }
  const insert = (match: string) => `nft insert rule ${formatTableName(table)} ${name} ${match} accept`;
  const toPods = hook === 'prerouting' ? `${PROTOCOL[cidr.family]} daddr ${formatPrefix(cidr)}` : `oifname '"podw*"'`;
  return `${insert(`iifname '"podw*"'`)} && ${insert(toPods)}`;
}
