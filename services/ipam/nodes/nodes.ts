import { Failure } from '@podwire/shared/failure/failure';

import type { Page } from '../allocator/listing.js';
import type { Node } from '../allocator/records.js';
import { nodeUtilization, type NodeUtilization } from '../blocks/utilization.js';
import { requireReadable } from '../records/absence.js';
import { wholeSeconds } from '../records/block.js';
import { versionOf } from '../records/versions.js';
import type { View } from '../records/view.js';

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

interface NewNode {
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
  return { node, utilization: nodeUtilization(view, node) };
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
