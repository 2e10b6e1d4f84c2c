import type { Address, Family } from '@podwire/shared/net/address';
import { prefixContains, prefixOf, type Prefix } from '@podwire/shared/net/prefix';

import { overlappingBlock } from '../blocks/lookup.js';
import { RunningNodes } from '../blocks/running-nodes.js';
import { cannotRead } from '../records/absence.js';
import type { Block } from '../records/block.js';
import { poolOf } from '../records/pool.js';
import type { RecordName, View } from '../records/view.js';

/** The input of all checks: one state of the datastore, with indexes that are built once. */
export class AuditContext {
  readonly view: View;
  readonly nowMs: number;
  /** Younger allocations are not checked for use: their endpoints may not be written yet. */
  readonly graceMs: number;
  readonly running: RunningNodes;
  #users: Users | undefined;

  constructor(view: View, { nowMs, graceMs }: { readonly nowMs: number; readonly graceMs: number }) {
    this.view = view;
    this.nowMs = nowMs;
    this.running = new RunningNodes(view);
    this.graceMs = graceMs;
  }

  /** The users of each address from all endpoints, for allocations without an endpoint of their own. */
  get users(): Users {
    this.#users ??= new Users(this.view);
    return this.#users;
  }

  /** Whether the view lacks records of a kind because they are unreadable. */
  hasUnreadable(kind: RecordName['kind']): boolean {
    for (const { name } of this.view.unreadable()) if (name.kind === kind) return true;
    return false;
  }

  /**
   * Whether a node is known to be gone: other nodes are registered, and it is not. Without any registered node, as
   * outside Kubernetes, the answer is unknown (false).
   */
  isNodeGone(nodeName: string): boolean {
    if (nodeName === '' || this.view.node(nodeName) || cannotRead(this.view, { kind: 'node', name: nodeName }))
      return false;
    return this.view.nodes().length > 0;
  }

  /** Whether an address is within a pool. */
  isInPool(address: Prefix): boolean {
    return poolOf(this.view.pools(), address) !== undefined;
  }

  /** The block of an address; `unreadable` when its record cannot be read. */
  blockOf(address: Prefix): Block | 'unreadable' | undefined {
    for (const { name } of this.view.unreadable())
      if (name.kind === 'block' && prefixContains(name.prefix, address)) return 'unreadable';
    const pool = poolOf(this.view.pools(), address);
    const usual = pool && this.view.block(prefixOf(address, pool.blockSizeBits));
    return usual ?? overlappingBlock(this.view, address);
  }
}

/** Subjects of endpoints: addresses, containers and pods. */
interface EndpointNames {
  readonly addresses: ReadonlySet<bigint>;
  readonly containers: ReadonlySet<string>;
  readonly pods: ReadonlySet<string>;
}

/** This many lookups scan every endpoint; later ones use an index. */
const UNINDEXED_LOOKUPS_COUNT = 4;

/** Known users of addresses, from the endpoints of Podwire and of other writers. */
class Users {
  readonly #view: View;
  #index: Readonly<Record<Family, EndpointNames>> | undefined;
  #lookupsCount = 0;

  constructor(view: View) {
    this.#view = view;
  }

  /** Whether an endpoint names the address. */
  hasAddress({ family, value }: Address): boolean {
    const index = this.#useIndex();
    if (index) return index[family].addresses.has(value);
    const isSame = (other: Address): boolean => other.value === value && other.family === family;
    for (const { value: endpoint } of this.#view.endpoints())
      if (endpoint.addresses.some(({ address }) => isSame(address))) return true;
    for (const { value: endpoint } of this.#view.foreignEndpoints()) if (endpoint.addresses.some(isSame)) return true;
    return false;
  }

  /** Whether the container has an endpoint. */
  hasContainer(containerId: string): boolean {
    const index = this.#useIndex();
    if (index) return index[4].containers.has(containerId);
    for (const { value } of this.#view.endpoints()) if (value.attachment.containerId === containerId) return true;
    for (const { value } of this.#view.foreignEndpoints()) if (value.containerId === containerId) return true;
    return false;
  }

  /** Whether another writer keeps an endpoint of the pod on the node; it may get its address later. */
  hasPod(nodeName: string, namespace: string, podName: string): boolean {
    const pod = podKey(nodeName, namespace, podName);
    const index = this.#useIndex();
    if (index) return index[4].pods.has(pod);
    for (const { key, value } of this.#view.foreignEndpoints())
      if (podKey(value.nodeName, key.namespace, value.podName) === pod) return true;
    return false;
  }

  #useIndex(): Readonly<Record<Family, EndpointNames>> | undefined {
    if (!this.#index && ++this.#lookupsCount > UNINDEXED_LOOKUPS_COUNT) this.#index = indexUsers(this.#view);
    return this.#index;
  }
}

function indexUsers(view: View): Readonly<Record<Family, EndpointNames>> {
  const addresses: Readonly<Record<Family, Set<bigint>>> = { 4: new Set(), 6: new Set() };
  const containers = new Set<string>();
  const pods = new Set<string>();
  for (const { value } of view.endpoints()) {
    for (const { address } of value.addresses) addresses[address.family].add(address.value);
    containers.add(value.attachment.containerId);
  }
  for (const { key, value } of view.foreignEndpoints()) {
    for (const address of value.addresses) addresses[address.family].add(address.value);
    containers.add(value.containerId);
    pods.add(podKey(value.nodeName, key.namespace, value.podName));
  }
  return { 4: { addresses: addresses[4], containers, pods }, 6: { addresses: addresses[6], containers, pods } };
}

function podKey(...parts: readonly string[]): string {
  return parts.join('/');
}

/** The handle without the part after a carriage return, which an old migration of Calico wrote into blocks. */
export function bareHandle(id: string): string {
  const end = id.indexOf('\r');
  return end < 0 ? id : id.slice(0, end);
}

/** How many addresses of a block each handle has, by its {@link bareHandle}. */
const handleCountsCache = new WeakMap<Block, ReadonlyMap<string, number>>();

export function handleCounts(block: Block): ReadonlyMap<string, number> {
  const cached = handleCountsCache.get(block);
  if (cached) return cached;
  const ids = block.attributes.map(({ handleId }) => (handleId === undefined ? undefined : bareHandle(handleId)));
  const counts = new Map<string, number>();
  for (const index of block.allocations) {
    const id = index === null ? undefined : ids[index];
    if (id !== undefined) counts.set(id, (counts.get(id) ?? 0) + 1);
  }
  handleCountsCache.set(block, counts);
  return counts;
}

/** How many addresses of a block a handle has. */
export function handleCountIn(block: Block, id: string): number {
  return handleCounts(block).get(bareHandle(id)) ?? 0;
}
