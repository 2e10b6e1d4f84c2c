import { trace, type Counter } from '@opentelemetry/api';
import { formatAddress } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';
import type { Logger } from '@podwire/shared/runtime/log';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Relief } from '../blocks/demand.js';
import type { NodeInquiry } from '../blocks/running-nodes-operations.js';
import { inUseFailure, isAlive, type SilentNodes } from '../blocks/running-nodes.js';
import type { Events } from '../engine/events.js';
import { nodeLane, REGISTRATIONS_LANE, read, type IpamOptions } from '../engine/updates/operation.js';
import type { HeldAddress } from '../records/block.js';
import type { Node } from '../records/node.js';
import type { Page, PageQuery } from '../records/page.js';
import type { NodeSession } from '../records/session.js';
import type { View } from '../records/view.js';
import { beginNodeDeletion, continueNodeDeletion, podsOfNode, type NodeDeletionStep } from './deletion.js';
import {
  getNode,
  listNodes,
  recordCluster,
  registerNode,
  updateNode,
  type NodeListing,
  type NodeSighting,
  type NodeUpdate,
  type RegistrationResult,
  type Registration,
} from './nodes.js';
import {
  assignTunnel,
  needOf,
  releaseTunnel,
  type TunnelAssignment,
  type TunnelKey,
  type TunnelRelease,
} from './tunnels.js';

/** Poll interval of a deletion that waits for other replicas' changes. */
const CATCH_UP_INTERVAL_MS = 20;

/** When a registered node was last heard of. */
export interface LastContact {
  readonly name: string;
  /** In epoch milliseconds; undefined: never. */
  readonly heardAtMs: number | undefined;
  /** Whether that was in the last four minutes. */
  readonly isAlive: boolean;
}

/** Addresses and blocks that the deletion of a node released. */
interface NodeDeletionSummary {
  readonly addressesCount: number;
  readonly blocksCount: number;
  /** Addresses of its pods. If there are any, the node runs, and is not deleted. */
  readonly kept: readonly HeldAddress[];
}

interface NodeDeletionRequest {
  readonly name: string;
  /** Delete only if the node still is of this version; empty for any. */
  readonly resourceVersion: string;
  /** Whether to ask a node that runs instead of refusing. Default: false. */
  readonly force?: boolean | undefined;
}

/** Reports durable changes of nodes and their tunnels. */
class NodeEvents {
  readonly #log: Logger;
  readonly #nodes: Counter;
  readonly #upkeepFailures: Counter;

  constructor(events: Events) {
    this.#log = events.log;
    this.#nodes = events.counter('podwire.ipam.nodes');
    this.#upkeepFailures = events.upkeepFailures;
  }

  nodeRegistered({ name }: Node): void {
    this.#nodes.add(1, { event: 'registered' });
    this.#log.info({ 'podwire.node': name }, `registered node ${name}`);
  }

  /** The addresses or labels of a node changed. */
  nodeChanged({ name }: Node): void {
    this.#nodes.add(1, { event: 'changed' });
    this.#log.info({ 'podwire.node': name }, `changed node ${name}`);
  }

  nodeDeleted({ name }: Node, { addressesCount, blocksCount }: Omit<NodeDeletionSummary, 'kept'>): void {
    this.#nodes.add(1, { event: 'deleted' });
    const released = `${formatCount(addressesCount, 'address', 'addresses')} and ${formatCount(blocksCount, 'block')}`;
    const text = `deleted node ${name} and released ${released}`;
    this.#log.info({ 'podwire.node': name }, text);
  }

  nodeDeletionCancelled({ name }: Node): void {
    this.#log.warn(
      { 'podwire.node': name },
      `cancelled the deletion of node ${name}: it runs, and its pods have addresses`,
    );
  }

  /** A deletion in the background failed. The next upkeep round retries it. */
  nodeDeletionFailed({ name }: Pick<Node, 'name'>, error: unknown): void {
    this.#upkeepFailures.add(1, { task: 'finish-node-deletions' });
    this.#log.warn({ err: error, 'podwire.node': name }, `failed to delete node ${name}; trying again later`);
  }

  tunnelAssigned({ nodeName, kind }: TunnelKey, address: Prefix): void {
    const text = formatAddress(address);
    const facts = { 'podwire.node': nodeName, 'podwire.addresses': [text] };
    trace.getActiveSpan()?.setAttributes(facts);
    this.#log.info(facts, `allocated ${text} to the tunnel of node ${nodeName} (${kind})`);
  }
}

/** Registers and deletes nodes, and assigns their tunnel addresses. */
export class Nodes {
  readonly #options: IpamOptions;
  readonly #events: NodeEvents;
  readonly #relief: Relief;
  readonly #inquiry: NodeInquiry;

  constructor(options: IpamOptions, relief: Relief, inquiry: NodeInquiry) {
    this.#options = options;
    this.#relief = relief;
    this.#inquiry = inquiry;
    this.#events = new NodeEvents(options.events);
  }

  /**
   * Idempotent.
   * @throws Failure NODE_BEING_DELETED; ADDRESS_IN_USE when another node or an allocation has an address new to the node
   */
  async register(registration: Registration, signal: AbortSignal): Promise<RegistrationResult> {
    const { updates, clock, newUid } = this.#options;
    const input = { registration, uid: newUid(), nowMs: clock.nowMs() };
    // One lane, and all that other replicas have acknowledged: no two nodes get one address.
    const options = { signal, isFresh: true };
    const registered = await updates.update(REGISTRATIONS_LANE, (view) => registerNode(view, input), options);
    if (registered.refusal) throw registered.refusal;
    const { node } = registered.listing;
    if (registered.outcome === 'created') this.#events.nodeRegistered(node);
    if (registered.outcome === 'changed') this.#events.nodeChanged(node);
    return registered;
  }

  /** @throws Failure NODE_NOT_FOUND */
  get(name: string, signal: AbortSignal): Promise<NodeListing> {
    return read(this.#options, (view) => getNode(view, name), signal);
  }

  list(query: PageQuery, signal: AbortSignal): Promise<Page<NodeListing>> {
    return read(this.#options, (view) => listNodes(view, query), signal);
  }

  /** All registered nodes. */
  registered(signal: AbortSignal): Promise<readonly Node[]> {
    return read(this.#options, (view) => view.nodes(), signal);
  }

  contacts(signal: AbortSignal): Promise<readonly LastContact[]> {
    const contact = (view: View, { name }: Node): LastContact => {
      return { name, heardAtMs: view.session(name)?.heardAtMs, isAlive: isAlive(view, name) };
    };
    return read(this.#options, (view) => view.nodes().map((node) => contact(view, node)), signal);
  }

  /** Records that a Kubernetes cluster has a Node of this name. Idempotent. */
  recordCluster(sighting: NodeSighting, signal: AbortSignal): Promise<undefined> {
    const { updates } = this.#options;
    return updates.update(nodeLane(sighting.name), (view) => recordCluster(view, sighting), { signal });
  }

  /** Idempotent without a version. @throws Failure NODE_NOT_FOUND, NODE_BEING_DELETED, STALE_VERSION */
  async update(update: NodeUpdate, signal: AbortSignal): Promise<NodeListing> {
    const { updates } = this.#options;
    const updated = await updates.update(nodeLane(update.name), (view) => updateNode(view, update), { signal });
    if (updated.outcome === 'changed') this.#events.nodeChanged(updated.listing.node);
    return updated.listing;
  }

  /** Whether a node was heard of just now. */
  isRunning(name: string, signal: AbortSignal): Promise<boolean> {
    return read(this.#options, (view) => isAlive(view, name), signal);
  }

  /**
   * Releases all that a node holds, then deletes its record. It takes several transactions: after a failure repeat it, or let
   * {@link finishDeletions} continue.
   * @throws Failure NODE_NOT_FOUND when the node has neither a record nor addresses, STALE_VERSION; NODE_IN_USE when it
   * runs and its pods have addresses, unless `force`
   */
  async delete({ force = false, ...deletion }: NodeDeletionRequest, signal: AbortSignal): Promise<NodeDeletionSummary> {
    const { updates, clock, newUid } = this.#options;
    const { name } = deletion;
    const scope = (view: View): HeldAddress[] => podsOfNode(view, name);
    const silent = await this.#inquiry.ask(scope, force, signal);
    const kept = await this.#inquiry.kept(scope, silent, signal);
    if (kept.length > 0) return { addressesCount: 0, blocksCount: 0, kept };
    const begin = { uid: newUid(), nowMs: clock.nowMs(), ...deletion };
    const node = await updates.update(nodeLane(name), (view) => beginNodeDeletion(view, begin), { signal });
    const { isCancelled, ...released } = await this.#runSteps(node, silent, signal);
    const started = isCancelled ? await this.#inquiry.kept(scope, silent, signal) : [];
    if (started.length > 0 && !force) throw inUseFailure(started);
    return { ...released, kept: started };
  }

  /**
   * Continues every deletion in progress: for callers and replicas that ended during one. Several replicas may run it
   * concurrently. A failed deletion does not stop the next ones. Also removes sessions of nodes that were deleted while
   * they ran, and did not register again.
   */
  async finishDeletions(signal: AbortSignal): Promise<void> {
    const nodes = await read(this.#options, (view) => view.nodes(), signal);
    for (const node of nodes.filter(({ deletionTimeMs }) => deletionTimeMs !== undefined))
      await this.#try(node, () => this.#finishDeletion(node, signal), signal);
    const ended = await read(this.#options, endedSessions, signal);
    for (const { name } of ended)
      await this.#try({ name }, () => this.delete({ name, resourceVersion: '' }, signal), signal);
  }

  async #try(node: Pick<Node, 'name'>, run: () => Promise<unknown>, signal: AbortSignal): Promise<void> {
    try {
      await run();
    } catch (error) {
      if (signal.aborted) throw error;
      this.#events.nodeDeletionFailed(node, error);
    }
  }

  /**
   * Allocates an address for a node's tunnel, if it has none. Idempotent.
   * @throws Failure NODE_NOT_FOUND, NODE_BEING_DELETED, NO_POOL, POOLS_EXHAUSTED
   */
  async assignTunnel(tunnel: TunnelKey, signal: AbortSignal): Promise<TunnelAssignment> {
    const { updates, events, clock } = this.#options;
    const request = { nowMs: clock.nowMs(), ...tunnel };
    const lane = nodeLane(tunnel.nodeName);
    const attempt = () => updates.update(lane, (view) => assignTunnel(view, request), { signal });
    const assigned = await this.#relief.attempt(needOf(request), attempt, signal);
    if (assigned.released.length > 0) events.addressesReleased(assigned.released);
    if (!assigned.isKept) this.#events.tunnelAssigned(tunnel, assigned.address);
    return assigned;
  }

  /** Releases the address of a node's tunnel. Idempotent. */
  async releaseTunnel(tunnel: TunnelKey, signal: AbortSignal): Promise<TunnelRelease> {
    const { updates, events, clock } = this.#options;
    const request = { nowMs: clock.nowMs(), ...tunnel };
    const released = await updates.update(nodeLane(tunnel.nodeName), (view) => releaseTunnel(view, request), {
      signal,
    });
    events.addressesReleased(released.released);
    return released;
  }

  /** Only the process that began it knows whether the node answered. */
  async #finishDeletion(node: Node, signal: AbortSignal): Promise<void> {
    const silent = await this.#inquiry.ask((view) => podsOfNode(view, node.name), true, signal);
    await this.#runSteps(node, silent, signal);
  }

  async #runSteps(
    node: Node,
    silent: SilentNodes,
    signal: AbortSignal,
  ): Promise<Omit<NodeDeletionSummary, 'kept'> & { readonly isCancelled: boolean }> {
    const { clock, events } = this.#options;
    let [addressesCount, blocksCount] = [0, 0];
    for (;;) {
      const { state, addresses, blocks, isRemoved } = await this.#step(node, silent, signal);
      if (addresses.length > 0) events.addressesReleased(addresses);
      addressesCount += addresses.length;
      blocksCount += blocks;
      if (state === 'behind') await clock.sleep(CATCH_UP_INTERVAL_MS, signal);
      if (state === 'behind' || state === 'more') continue;
      if (isRemoved) this.#events.nodeDeleted(node, { addressesCount, blocksCount });
      const isCancelled = state === 'inUse';
      if (isCancelled) this.#events.nodeDeletionCancelled(node);
      return { addressesCount, blocksCount, isCancelled };
    }
  }

  #step(node: Node, silent: SilentNodes, signal: AbortSignal): Promise<NodeDeletionStep> {
    const { updates, clock } = this.#options;
    const progress = { node, nowMs: clock.nowMs(), silent };
    return updates.update(nodeLane(node.name), (view) => continueNodeDeletion(view, progress), { signal });
  }
}

/** Sessions of nodes that are not registered and do not run. */
function endedSessions(view: View): NodeSession[] {
  return [...view.sessions()].filter(({ name }) => !view.node(name) && !isAlive(view, name));
}
