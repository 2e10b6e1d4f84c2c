import { FAMILIES, formatAddress, type Family } from '@podwire/shared/net/address';
import { compareNames } from '@podwire/shared/words/order';

import type { Cluster, ClusterNode } from '../cluster/cluster.js';
import type { Reply } from './control-socket.js';
import { matchesNode, type Bfd, type PeerPlan } from './peers-file.js';

/** One BGP session of this node. It carries the routes of the family that it runs over. */
export interface Session {
  /** Name of BIRD's protocol; derived from the neighbour's address, so that it is stable when anything else changes. */
  readonly name: string;
  /** The neighbour as text for operators: `node b`, `peer tor-1`. */
  readonly about: string;
  readonly family: Family;
  readonly local: string;
  readonly localAs: number;
  readonly neighbour: string;
  readonly neighbourAs: number;
  readonly port: number;
  readonly password: string | undefined;
  readonly passive: boolean;
  readonly bfd: Bfd | undefined;
  /** The neighbour is a client of this node, a route reflector with this cluster ID. */
  readonly clientOf: string | undefined;
}

/** The inputs of sessions besides the cluster. */
export interface SessionSettings {
  /** The cluster's autonomous system, for nodes without their own. */
  readonly asNumber: number;
  readonly plan: PeerPlan;
}

export const BGP_PORT = 179;

/** Prefix of BIRD protocols that are Podwire's sessions. */
const SESSION_PREFIX = 'podwire_bgp_';

/**
 * The sessions of one node, sorted by name. Of several with one address, a configured peer wins over a node, and the first by
 * name among nodes: a stale registration beside the real one removes no session.
 */
export function sessionsOf(self: ClusterNode, { nodes }: Cluster, settings: SessionSettings): Session[] {
  const found = new Map<string, Session>();
  const own = new Set(FAMILIES.flatMap((family) => addressOf(self, family) ?? []));
  const add = (session: Session | undefined): void => {
    if (session && !own.has(session.neighbour) && !found.has(session.name)) found.set(session.name, session);
  };
  for (const peer of settings.plan.peers) {
    if (!matchesNode(peer.nodes, self.name)) continue;
    const family = peer.address.includes(':') ? 6 : 4;
    const local = peer.sourceAddress ?? addressOf(self, family);
    if (local === undefined) continue;
    add({
      name: SESSION_PREFIX + peer.address,
      about: `peer ${peer.name}`,
      family,
      local,
      localAs: asOf(self, settings),
      neighbour: peer.address,
      neighbourAs: peer.asNumber,
      port: peer.port,
      password: peer.password,
      passive: peer.passive,
      bfd: peer.bfd,
      clientOf: undefined,
    });
  }
  for (const peer of [...nodes.values()].sort(compareNames)) {
    if (peer.name === self.name || !isPeered(self, peer, settings.plan)) continue;
    for (const family of FAMILIES) add(nodeSession(self, { peer, family }, settings));
  }
  return [...found.values()].sort(compareNames);
}

/** Whether the node reflects received routes. */
export function isReflector(node: ClusterNode, plan: PeerPlan): boolean {
  return clusterIdOf(node, plan) !== undefined;
}

function isPeered(self: ClusterNode, peer: ClusterNode, plan: PeerPlan): boolean {
  return plan.mesh || isReflector(self, plan) || isReflector(peer, plan);
}

function nodeSession(
  self: ClusterNode,
  { peer, family }: { readonly peer: ClusterNode; readonly family: Family },
  settings: SessionSettings,
): Session | undefined {
  const local = addressOf(self, family);
  const neighbour = addressOf(peer, family);
  if (local === undefined || neighbour === undefined) return undefined;
  const localAs = asOf(self, settings);
  const neighbourAs = asOf(peer, settings);
  const clusterId = clusterIdOf(self, settings.plan);
  // Reflectors and clients share one autonomous system; other neighbours receive all routes anyway.
  const isClient = clusterId !== undefined && clusterIdOf(peer, settings.plan) === undefined && localAs === neighbourAs;
  return {
    name: SESSION_PREFIX + neighbour,
    about: `node ${peer.name}`,
    family,
    local,
    localAs,
    neighbour,
    neighbourAs,
    port: BGP_PORT,
    password: undefined,
    passive: false,
    bfd: undefined,
    clientOf: isClient ? clusterId : undefined,
  };
}

function clusterIdOf(node: ClusterNode, plan: PeerPlan): string | undefined {
  return plan.routeReflectors.find(({ nodes }) => matchesNode(nodes, node.name))?.clusterId;
}

function asOf(node: ClusterNode, { asNumber }: SessionSettings): number {
  return node.asNumber ?? asNumber;
}

function addressOf(node: ClusterNode, family: Family): string | undefined {
  const address = (family === 4 ? node.ipv4 : node.ipv6)?.address;
  return address && formatAddress(address);
}

/** A wanted session, and its state in BIRD. */
export interface SessionStatus {
  readonly session: Session;
  /** State; undefined until BIRD has reported it. */
  readonly state: SessionState | undefined;
}

/** Status of this node's BIRD. */
export interface BirdStatus {
  /** Whether it answered the last request; undefined: none was sent yet. */
  readonly isReachable: boolean | undefined;
  /** Why BIRD refused its configuration; undefined: it was accepted, or not sent yet. */
  readonly refusal: string | undefined;
  /** Sorted by name. */
  readonly sessions: readonly SessionStatus[];
}

/** State of a BGP session. */
export interface SessionState {
  /** Name of BIRD's protocol. */
  readonly name: string;
  /** `Established`, `Connect`, `Active`, `OpenSent`, `OpenConfirm`, `Idle`, …, as BIRD reports it; `Down` when it is disabled. */
  readonly state: string;
  readonly isEstablished: boolean;
  /** Start of this phase, in the node's local time: `2026-11-21 17:56:05`. */
  readonly since: string;
  /** BIRD's text for what ended it or prevents it; undefined: none. */
  readonly reason: string | undefined;
  /** Number of imported routes. */
  readonly importedCount: number;
  /** Number of exported routes. */
  readonly exportedCount: number;
}

/** Lists all sessions of Podwire's, for {@link readSessions}. */
export const SHOW_SESSIONS = `show protocols all "${SESSION_PREFIX}*"`;

const TABLE_LINE = 1002;

/** Parses the answer to {@link SHOW_SESSIONS}: for each protocol a line of the table, then its details. */
export function readSessions({ lines }: Reply): SessionState[] {
  const sessions: { readonly heading: string; readonly details: string[] }[] = [];
  for (const { code, text } of lines) {
    if (code === TABLE_LINE) sessions.push({ heading: text, details: [] });
    else sessions.at(-1)?.details.push(text.trim());
  }
  return sessions.flatMap(({ heading, details }) => readSession(heading, details) ?? []);
}

/**
 * `NAME BGP TABLE STATE DATE TIME INFO`, where INFO is `Established`, or a state and reason: `Active        Socket: Connection
 * refused`.
 */
const HEADING = /^(\S+)\s+BGP\s+\S+\s+(\S+)\s+(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*(\S*)\s*(.*?)\s*$/;

function readSession(heading: string, details: readonly string[]): SessionState | undefined {
  const [, name, phase, since = '', info = '', rest = ''] = HEADING.exec(heading) ?? [];
  if (!name?.startsWith(SESSION_PREFIX)) return undefined;
  const detail = (label: string) =>
    details
      .find((line) => line.startsWith(label))
      ?.slice(label.length)
      .trim();
  const state = detail('BGP state:') ?? (info === '' ? (phase ?? '') : info);
  const counts = /^(\d+) imported, (?:\d+ filtered, )?(\d+) exported/.exec(detail('Routes:') ?? '');
  const isEstablished = state === 'Established';
  const reason = detail('Last error:') ?? rest;
  return {
    name,
    state,
    isEstablished,
    since,
    reason: isEstablished || reason === '' ? undefined : reason,
    importedCount: Number(counts?.[1] ?? 0),
    exportedCount: Number(counts?.[2] ?? 0),
  };
}
