import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { tunnelMac } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { compareAddresses, formatAddress, type Address } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';

import { allocationOf } from '../addresses/addresses.js';
import { isAlive } from '../blocks/running-nodes.js';
import { nodeUtilization, type NodeUtilization } from '../blocks/utilization.js';
import { requireReadable } from '../records/absence.js';
import { attachmentOf } from '../records/attributes.js';
import { isLease } from '../records/lease.js';
import { makeNode, type Node, type NodeAddress, type NodeInterface, type TunnelKind } from '../records/node.js';
import { pageOf, type Page, type PageQuery } from '../records/page.js';
import type { NodeSession } from '../records/session.js';
import { versionOf } from '../records/versions.js';
import type { Change, Decision, View } from '../records/view.js';

/** A node with how much it holds. */
export interface NodeListing {
  readonly node: Node;
  readonly utilization: NodeUtilization;
  readonly session: NodeSession | undefined;
}

/** @throws Failure NODE_NOT_FOUND, STORE_CORRUPT */
export function getNode(view: View, name: string): NodeListing {
  return describeNode(view, requireNode(view, name));
}

/** A page of the nodes, in the order of their names. */
export function listNodes(view: View, query: PageQuery): Page<NodeListing> {
  const { items, more } = pageOf(view.nodes(), query);
  return { items: items.map((node) => describeNode(view, node)), more };
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

/** A registration, or why the node may not have what it registers. */
type RegistrationOutcome = ({ readonly refusal: undefined } & RegistrationResult) | { readonly refusal: Failure };

/**
 * Registers a node, or updates its record. Omitted fields keep their values, and so do labels that an operator set or
 * removed. Idempotent. A refused node gives up the addresses that it does not register any more, so that nodes that
 * exchange their addresses do not wait for each other.
 * @returns the refusal ADDRESS_IN_USE when another node, or an allocation, has a new address or MAC address of the node
 * @throws Failure NODE_BEING_DELETED
 */
export function registerNode(
  view: View,
  { registration, uid, nowMs }: RegistrationInput,
): Decision<RegistrationOutcome> {
  const stored = view.node(registration.name);
  if (stored) requireNotDeleting(stored);
  const before = stored ?? makeNode({ name: registration.name, uid, nowMs });
  const node = applyRegistration(before, registration);
  const { refusal, changes } = claimIdentity(view, before, node);
  if (refusal)
    return { changes: stored ? putIfChanged(stored, withoutNewAddresses(stored, node)) : [], outcome: { refusal } };
  const own = putIfChanged(stored, node);
  const outcome = !stored ? 'created' : own.length === 0 ? 'unchanged' : 'changed';
  return { changes: [...own, ...changes], outcome: { refusal, listing: describeNode(view, node), outcome } };
}

function putIfChanged(stored: Node | undefined, value: Node): Change[] {
  if (stored && versionOf(value) === versionOf(stored)) return [];
  return [{ type: 'put', record: { kind: 'node', value } }];
}

/** The stored node with the addresses that it still registers. */
function withoutNewAddresses(stored: Node, { ipv4, ipv6 }: Node): Node {
  return {
    ...stored,
    ipv4: sameNodeAddress(ipv4, stored.ipv4) ? stored.ipv4 : undefined,
    ipv6: sameNodeAddress(ipv6, stored.ipv6) ? stored.ipv6 : undefined,
  };
}

function sameNodeAddress(a: NodeAddress | undefined, b: NodeAddress | undefined): boolean {
  return a !== undefined && b !== undefined && compareAddresses(a.address, b.address) === 0;
}

interface Claim {
  readonly refusal: Failure | undefined;
  /** Take the addresses from nodes that do not run. */
  readonly changes: readonly Change[];
}

/**
 * Whether a node may have the addresses that are new to it: packets of all nodes go there. An address of a node that does
 * not run passes to the new owner, as machines that are replaced get their predecessors' addresses.
 */
function claimIdentity(view: View, before: Node, node: Node): Claim {
  const otherNodes = view.nodes().filter(({ name }) => name !== node.name);
  const former = new Map<string, Node>();
  for (const family of ['ipv4', 'ipv6'] as const) {
    const own = node[family];
    if (!own || sameNodeAddress(own, before[family])) continue;
    const text = formatAddress(own.address);
    const holder = holderText(view, own.address);
    if (holder !== undefined) return refused(node, text, holder, 'delete that pod, or give the node another address');
    for (const other of otherNodes) {
      const isTunnel = [...other.tunnels.values()].some(({ address }) => compareAddresses(address, own.address) === 0);
      if (!isTunnel && !sameNodeAddress(other[family], own)) continue;
      if (isTunnel || !view.session(other.name) || isAlive(view, other.name)) return refusedByNode(node, text, other);
      former.set(other.name, { ...(former.get(other.name) ?? other), [family]: undefined });
    }
  }
  const expectSilent = [...former.keys()]
    .flatMap((name) => view.session(name) ?? [])
    .map((value): Change => ({ type: 'expect', record: { kind: 'nodeSession', value } }));
  return {
    refusal: undefined,
    changes: [...[...former.values()].flatMap((each) => putIfChanged(undefined, each)), ...expectSilent],
  };
}

function refusedByNode(node: Node, text: string, { name }: Node): Claim {
  const remedy = `give one of them another one or, if node "${name}" is gone or has another name now, run "podwirectl delete node ${name}"; an address is free once its node was silent for four minutes`;
  return refused(node, text, `node "${name}"`, remedy);
}

function refused({ name }: Node, text: string, holder: string, remedy: string): Claim {
  const message = `node "${name}" registers ${text}, which ${holder} has; ${remedy}`;
  return { refusal: new Failure('ADDRESS_IN_USE', message, { details: { node: name, address: text } }), changes: [] };
}

/** Holder of an address: the routes to the node would lead there. */
function holderText(view: View, address: Address): string | undefined {
  const held = allocationOf(view, address);
  if (!held) return undefined;
  const { attributes } = held;
  const attachment = attachmentOf(attributes);
  const holder = attachment
    ? formatAttachment(attachment)
    : isLease(attributes)
      ? 'a lease'
      : `handle ${attributes.handleId ?? 'none'}`;
  return `${holder} on node ${attributes.owner.node ?? 'unknown'}`;
}

/** A node does not name its tunnels' MAC addresses: they follow from its name, so that no two nodes have the same. */
function applyRegistration(node: Node, { ipv4, ipv6, labels, interfaces }: Registration): Node {
  const merged = mergeLabels(node, labels);
  const tunnelMacs = new Map<TunnelKind, Mac>([
    ['vxlanTunnelAddress', tunnelMac(node.name, 4)],
    ['vxlanV6TunnelAddress', tunnelMac(node.name, 6)],
  ]);
  return { ...node, ...merged, ipv4, ipv6, interfaces, tunnelMacs };
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
