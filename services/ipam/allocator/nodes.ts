import { Failure } from '@podwire/shared/failure/failure';

import { requireReadable } from './absence.js';
import { usedCount, wholeSeconds } from './block.js';
import type { Page } from './listing.js';
import type { Node } from './records.js';
import { versionOf } from './version.js';
import type { View } from './view.js';

/** How much of the blocks that belong to a node is in use, by whomever. */
export interface NodeUtilization {
  readonly blocks: number;
  /** Addresses in these blocks. */
  readonly capacity: number;
  /** Of these, in use or cooling down. */
  readonly allocated: number;
}

/** A node with how much it holds. */
export interface NodeListing {
  readonly node: Node;
  readonly utilization: NodeUtilization;
}

export interface NodeQuery {
  /** The name behind which the page begins; empty for the first page. */
  readonly after: string;
  readonly limit: number;
}

export interface NewNode {
  readonly name: string;
  readonly uid: string;
  readonly nowMs: number;
}

/** The record of a node of which nothing is known but its name. */
export function makeNode({ name, uid, nowMs }: NewNode): Node {
  return {
    name,
    uid,
    createTimeMs: wholeSeconds(nowMs),
    deletionTimeMs: undefined,
    labels: {},
    registeredLabels: {},
    ipv4: undefined,
    ipv6: undefined,
    tunnels: new Map(),
    tunnelMacs: new Map(),
    interfaces: [],
    asNumber: undefined,
  };
}

/** @throws Failure NODE_NOT_FOUND, STORE_CORRUPT */
export function getNode(view: View, name: string): NodeListing {
  return describeNode(view, requireNode(view, name));
}

/** A page of the nodes, in the order of their names. */
export function listNodes(view: View, { after, limit }: NodeQuery): Page<NodeListing> {
  const nodes = view.nodes();
  const start = nodes.findIndex(({ name }) => name > after);
  const found = start < 0 ? [] : nodes.slice(start, start + limit + 1);
  return { items: found.slice(0, limit).map((node) => describeNode(view, node)), more: found.length > limit };
}

export function describeNode(view: View, node: Node): NodeListing {
  let [blocks, capacity, allocated] = [0, 0, 0];
  for (const { block: prefix } of view.affinitiesOf({ kind: 'host', name: node.name })) {
    const block = view.block(prefix);
    if (block?.owner?.kind !== 'host' || block.owner.name !== node.name) continue;
    blocks++;
    capacity += block.allocations.length;
    allocated += usedCount(block);
  }
  return { node, utilization: { blocks, capacity, allocated } };
}

/** @throws Failure NODE_NOT_FOUND, STORE_CORRUPT */
export function requireNode(view: View, name: string): Node {
  const node = view.node(name);
  if (node) return node;
  requireReadable(view, { kind: 'node', name });
  const text = `there is no node "${name}"; list the nodes for their names`;
  throw new Failure('NODE_NOT_FOUND', text, { details: { node: name } });
}

/** @throws Failure NODE_BEING_DELETED */
export function requireLiving({ name, deletionTimeMs }: Node): void {
  if (deletionTimeMs === undefined) return;
  const text = `node "${name}" is being deleted, which cannot be taken back; once it is gone, register it anew`;
  throw new Failure('NODE_BEING_DELETED', text, { details: { node: name } });
}

/** @param resourceVersion - empty for any @throws Failure STALE_VERSION */
export function requireNodeVersion(node: Node, resourceVersion: string): void {
  if (resourceVersion === '' || resourceVersion === versionOf(node)) return;
  const text = `node "${node.name}" was changed since resource version ${resourceVersion}; read it again and decide anew`;
  throw new Failure('STALE_VERSION', text, { details: { node: node.name } });
}
