import { Failure } from '@podwire/shared/failure/failure';
import { FAMILIES, type Family } from '@podwire/shared/net/address';
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
import { Ruleset } from '../nft/ruleset.js';
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
import { dropCondition, IPTABLES, isIptables, SKIPPED_TABLES, type ForwardRoutes } from './forward-drop.js';

interface ForwardPathOptions extends Pick<ForwardRoutes, 'peerInterface' | 'uplink'> {
  readonly nft: Nft;
  readonly events: TableEvents;
  readonly clock: Clock;
  /** Whether Podwire accepts packets of pods in the chains of iptables. */
  readonly acceptsFirst: boolean;
  /** Interfaces of pods: names, or prefixes with a trailing `*`. */
  readonly podInterfaces: () => readonly string[];
}

/** Interval of the comparisons with the latest transaction of nftables. */
export const FORWARD_CHECK_INTERVAL_MS = 15_000;

/** The comment of Podwire's rules in chains of other programs. */
const COMMENT = 'podwire';

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
        if (ruleset) conditions.push(...ofTable.flatMap((chain) => this.#dropOf(chain, ruleset) ?? []));
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
    if (isPresent && (isFirst || this.#dropOf(chain, ruleset) === undefined)) return [];
    const rule = { family: table.family, table: table.name, chain: IPTABLES.chain };
    return [
      ...own.map(({ handle }): NftCommand => ({ delete: { rule: { ...rule, handle: handle ?? null } } })),
      ...wanted.toReversed().map((expr): NftCommand => ({ insert: { rule: { ...rule, expr, comment: COMMENT } } })),
    ];
  }

  #dropOf(chain: BaseChain, ruleset: Ruleset): Condition | undefined {
    const nodeAddress = (family: Family) => nodeAddressOf(this.#node, family)?.address;
    return dropCondition(chain, ruleset, { ...this.#options, pools: this.#pools ?? [], nodeAddress });
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
