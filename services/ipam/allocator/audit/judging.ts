import type { Address, Family } from '@podwire/shared/net/address';
import { prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { makeBlock, ordinalsWhere } from '../block.js';
import { overlappingBlock, poolOf } from '../pools.js';
import type { Block } from '../records.js';
import type { Change, RecordName, View } from '../view.js';

/** What judging rests on: one moment of the datastore, and what is made of it once for all who are judged. */
export class Judging {
  readonly view: View;
  readonly nowMs: number;
  /** Allocations that are younger are not judged by whether anybody uses them: their users may be on their way. */
  readonly graceMs: number;
  #users: Users | undefined;
  #unreadable: ReadonlySet<string> | undefined;

  constructor(view: View, { nowMs, graceMs }: { readonly nowMs: number; readonly graceMs: number }) {
    this.view = view;
    this.nowMs = nowMs;
    this.graceMs = graceMs;
  }

  /** Who uses which address, by all endpoints there are. Looks at every one, so it is for those whose own endpoint is missing. */
  get users(): Users {
    this.#users ??= new Users(this.view);
    return this.#users;
  }

  /** Whether there is such a record, but one that cannot be read. Nothing is concluded from its absence then. */
  cannotRead(name: RecordName): boolean {
    this.#unreadable ??= new Set([...this.view.unreadable()].map((record) => nameText(record.name)));
    return this.#unreadable.size > 0 && this.#unreadable.has(nameText(name));
  }

  /** Whether records of a kind are missing from the view, as they cannot be read. */
  cannotReadAll(kind: RecordName['kind']): boolean {
    for (const { name } of this.view.unreadable()) if (name.kind === kind) return true;
    return false;
  }

  /**
   * Whether a node is known to be gone: others are there, and it is not. Where no node is registered at all, as outside Kubernetes,
   * nothing is known of any.
   */
  isGone(nodeName: string): boolean {
    if (nodeName === '' || this.view.node(nodeName) || this.cannotRead({ kind: 'node', name: nodeName })) return false;
    return this.view.nodes().length > 0;
  }

  /** Whether an address is within a pool. */
  isPooled(address: Prefix): boolean {
    return poolOf(this.view.pools(), address) !== undefined;
  }

  /** The block that an address is of; `unreadable` when there is one that cannot be read. */
  blockOf(address: Prefix): Block | 'unreadable' | undefined {
    for (const { name } of this.view.unreadable())
      if (name.kind === 'block' && prefixContains(name.prefix, address)) return 'unreadable';
    return overlappingBlock(this.view, address);
  }
}

/** Text that is one record's name and no other's. */
function nameText(name: RecordName): string {
  return JSON.stringify(name, (_, value: unknown) => (typeof value === 'bigint' ? String(value) : value));
}

/** All that endpoints name: addresses, containers and pods. */
export class Users {
  readonly #addresses: Readonly<Record<Family, Set<bigint>>> = { 4: new Set(), 6: new Set() };
  readonly #containers = new Set<string>();
  readonly #pods = new Set<string>();

  constructor(view: View) {
    for (const { value } of view.endpoints()) {
      const { attachment, addresses } = value;
      for (const { address } of addresses) this.#addresses[address.family].add(address.value);
      this.#containers.add(attachment.containerId);
    }
    for (const { key, value } of view.foreignEndpoints()) {
      for (const { family, value: number } of value.addresses) this.#addresses[family].add(number);
      if (value.containerId !== '') this.#containers.add(value.containerId);
      if (value.podName !== '') this.#pods.add(podText(value.nodeName, key.namespace, value.podName));
    }
  }

  /** Whether an endpoint names the address. */
  hasAddress({ family, value }: Address): boolean {
    return this.#addresses[family].has(value);
  }

  /** Whether an endpoint is of the container. */
  hasContainer(containerId: string): boolean {
    return this.#containers.has(containerId);
  }

  /** Whether another writer keeps an endpoint of the pod on the node; it may get its address later. */
  hasPod(nodeName: string, namespace: string, podName: string): boolean {
    return this.#pods.has(podText(nodeName, namespace, podName));
  }
}

function podText(...parts: readonly string[]): string {
  return parts.join('/');
}

/** Handles are compared without what follows a carriage return: an old migration of Calico's wrote such ones into blocks. */
export function bareHandle(id: string): string {
  const end = id.indexOf('\r');
  return end < 0 ? id : id.slice(0, end);
}

/** How many addresses of a block each handle has, by its {@link bareHandle}. */
const known = new WeakMap<Block, ReadonlyMap<string, number>>();

export function handleCounts(block: Block): ReadonlyMap<string, number> {
  const remembered = known.get(block);
  if (remembered) return remembered;
  const ids = block.attributes.map(({ handleId }) => (handleId === undefined ? undefined : bareHandle(handleId)));
  const counts = new Map<string, number>();
  for (const index of block.allocations) {
    const id = index === null ? undefined : ids[index];
    if (id !== undefined) counts.set(id, (counts.get(id) ?? 0) + 1);
  }
  known.set(block, counts);
  return counts;
}

/** How many addresses of a block a handle has. */
export function countOf(block: Block, id: string): number {
  const bare = bareHandle(id);
  return ordinalsWhere(block, ({ handleId }) => handleId !== undefined && bareHandle(handleId) === bare).length;
}

export function expectBlock(value: Block): Change {
  return { type: 'expect', record: { kind: 'block', value } };
}

/** There is still no such block. */
export function expectNoBlock(prefix: Prefix): Change {
  // Of the record only its key counts: what is compared is what was seen under it, which is nothing.
  return expectBlock(makeBlock({ prefix, owner: { kind: 'host', name: 'none' }, nowMs: 0 }));
}
