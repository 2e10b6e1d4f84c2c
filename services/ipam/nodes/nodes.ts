import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { compareAddresses, formatAddress } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';

import { allocationOf } from '../addresses/addresses.js';
import { nodeUtilization, type NodeUtilization } from '../blocks/utilization.js';
import { requireReadable } from '../records/absence.js';
import { attachmentOf } from '../records/attributes.js';
import { makeNode, type Node, type NodeAddress, type NodeInterface, type TunnelKind } from '../records/node.js';
import type { Page } from '../records/page.js';
import type { NodeSession } from '../records/session.js';
import { versionOf } from '../records/versions.js';
import type { Decision, View } from '../records/view.js';

/** A node with how much it holds. */
export interface NodeListing {
  readonly node: Node;
  readonly utilization: NodeUtilization;
  readonly session: NodeSession | undefined;
}

export interface NodeQuery {
  /** The name behind which the page begins; empty for the first page. */
  readonly after: string;
  readonly limit: number;
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

function describeNode(view: View, node: Node): NodeListing {
  return { node, utilization: nodeUtilization(view, node), session: view.session(node.name) };
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
function requireNotDeleting({ name, deletionTimeMs }: Node): void {
  if (deletionTimeMs === undefined) return;
  const text = `node "${name}" is being deleted, which cannot be undone; register it again afterwards`;
  throw new Failure('NODE_BEING_DELETED', text, { details: { node: name } });
}

/** @param resourceVersion - empty for any @throws Failure STALE_VERSION */
export function requireNodeVersion(node: Node, resourceVersion: string): void {
  if (resourceVersion === '' || resourceVersion === versionOf(node)) return;
  const text = `node "${node.name}" was changed since resource version ${resourceVersion}; read it again and repeat the change`;
  throw new Failure('STALE_VERSION', text, { details: { node: node.name } });
}

type Labels = Readonly<Record<string, string>>;

/** The registration data of a node. */
export interface Registration {
  readonly name: string;
  readonly ipv4: NodeAddress | undefined;
  readonly ipv6: NodeAddress | undefined;
  readonly labels: Labels;
  readonly interfaces: readonly NodeInterface[];
  /** Unlisted kinds keep their stored addresses. */
  readonly tunnelMacs: ReadonlyMap<TunnelKind, Mac>;
}

interface RegistrationInput {
  readonly registration: Registration;
  /** The node's UID in case it is new. */
  readonly uid: string;
  readonly nowMs: number;
}

export interface RegistrationResult {
  readonly listing: NodeListing;
  readonly outcome: 'created' | 'changed' | 'unchanged';
}

/**
 * Registers a node, or updates its record. Omitted fields keep their values, and so do labels that an operator set or
 * removed. Idempotent.
 * @throws Failure NODE_BEING_DELETED; ADDRESS_IN_USE when a pod has the node's new address
 */
export function registerNode(
  view: View,
  { registration, uid, nowMs }: RegistrationInput,
): Decision<RegistrationResult> {
  const stored = view.node(registration.name);
  if (stored) requireNotDeleting(stored);
  const before = stored ?? makeNode({ name: registration.name, uid, nowMs });
  const node = applyRegistration(before, registration);
  for (const [own, stored] of [
    [node.ipv4, before.ipv4],
    [node.ipv6, before.ipv6],
  ])
    if (own && !sameNodeAddress(own, stored)) requireNoPod(view, node.name, own);
  const outcome = !stored ? 'created' : versionOf(node) === versionOf(stored) ? 'unchanged' : 'changed';
  return {
    changes: outcome === 'unchanged' ? [] : [{ type: 'put', record: { kind: 'node', value: node } }],
    outcome: { listing: describeNode(view, node), outcome },
  };
}

function sameNodeAddress(a: NodeAddress, b: NodeAddress | undefined): boolean {
  return b !== undefined && compareAddresses(a.address, b.address) === 0;
}

/** The routes to the node would lead to the pod. */
function requireNoPod(view: View, name: string, { address }: NodeAddress): void {
  const held = allocationOf(view, address);
  const attachment = held && attachmentOf(held.attributes);
  if (!attachment) return;
  const text = formatAddress(address);
  const message = `node "${name}" registers ${text}, which ${formatAttachment(attachment)} on node ${held.attributes.owner.node ?? 'unknown'} has; delete that pod, or give the node another address`;
  throw new Failure('ADDRESS_IN_USE', message, { details: { node: name, address: text } });
}

function applyRegistration(node: Node, { ipv4, ipv6, labels, interfaces, tunnelMacs }: Registration): Node {
  const merged = mergeLabels(node, labels);
  return { ...node, ...merged, ipv4, ipv6, interfaces, tunnelMacs: new Map([...node.tunnelMacs, ...tunnelMacs]) };
}

/**
 * A label belongs to the node while it is as the node registered it, present or not; otherwise to an operator. A label
 * that an operator set is not stored as the node's, so it stays when the node drops it. A label that an operator removed
 * is stored as the node's, so it stays removed while the node registers it.
 */
function mergeLabels(
  { labels, registeredLabels }: Node,
  registering: Labels,
): Pick<Node, 'labels' | 'registeredLabels'> {
  const merged: Record<string, string> = {};
  const registered: Record<string, string> = {};
  for (const key of new Set([...Object.keys(labels), ...Object.keys(registering)])) {
    const [stored, offered] = [labels[key], registering[key]];
    const isOperators = stored !== registeredLabels[key];
    const value = isOperators ? stored : offered;
    if (value !== undefined) merged[key] = value;
    if (offered !== undefined && !(isOperators && stored !== undefined)) registered[key] = offered;
  }
  return { labels: merged, registeredLabels: registered };
}

/** An operator's change of a node. */
export interface NodeUpdate {
  readonly name: string;
  /** All of them. */
  readonly labels: Labels;
  /** Change only a node of this version; empty for any. */
  readonly resourceVersion: string;
}

/**
 * Replaces a node's labels. Idempotent without a version.
 * @throws Failure NODE_NOT_FOUND, NODE_BEING_DELETED, STALE_VERSION
 */
export function updateNode(view: View, { name, labels, resourceVersion }: NodeUpdate): Decision<RegistrationResult> {
  const stored = requireNode(view, name);
  requireNodeVersion(stored, resourceVersion);
  requireNotDeleting(stored);
  const node = { ...stored, labels };
  const isChanged = versionOf(node) !== versionOf(stored);
  return {
    changes: isChanged ? [{ type: 'put', record: { kind: 'node', value: node } }] : [],
    outcome: { listing: describeNode(view, node), outcome: isChanged ? 'changed' : 'unchanged' },
  };
}

/** A Kubernetes cluster that has a Node of the name. */
export interface NodeSighting {
  readonly name: string;
  /** UID of the cluster's namespace kube-system. */
  readonly clusterUid: string;
}

/**
 * Records that a Kubernetes cluster has a Node of this name. Idempotent; without effect on a node that is not registered
 * or is being deleted.
 */
export function recordCluster(view: View, { name, clusterUid }: NodeSighting): Decision<undefined> {
  const stored = view.node(name);
  if (!stored || stored.deletionTimeMs !== undefined || stored.kubernetesCluster === clusterUid)
    return { changes: [], outcome: undefined };
  const value = { ...stored, kubernetesCluster: clusterUid };
  return { changes: [{ type: 'put', record: { kind: 'node', value } }], outcome: undefined };
}
