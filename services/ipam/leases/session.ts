import { Failure } from '@podwire/shared/failure/failure';
import { compareAddresses } from '@podwire/shared/net/address';
import { formatPrefix, ordinalOf } from '@podwire/shared/net/prefix';

import { nodeNotFound } from '../blocks/demand.js';
import { isNewEpoch, restoredEpoch } from '../blocks/epoch.js';
import { blockOf } from '../blocks/lookup.js';
import { isAlive } from '../blocks/running-nodes.js';
import { requireReadable } from '../records/absence.js';
import { attributesAt, coolAddresses, isHeld, releaseAddresses, takeOrdinals, type Block } from '../records/block.js';
import { versionOf } from '../records/versions.js';
import { DISPLACED_MS, type DisplacedMachine, type ListedLease, type NodeSession } from '../records/session.js';
import type { Change, Decision, View } from '../records/view.js';

/** The session that a call of a node names. */
export interface SessionName {
  readonly bootId: string;
  readonly generation: number;
  /** The highest revision of the session that the node has seen. */
  readonly revision: number;
}

/** A process that wants to act for a node. */
export interface SessionRequest {
  readonly nodeName: string;
  readonly machineId: string;
  readonly bootId: string;
  /** Generation of the session to replace; 0 if there must be none. */
  readonly expectedGeneration: number;
  /** The last session that the node had; undefined if it knows none. */
  readonly last: SessionName | undefined;
  /** The node's address, for messages; empty if unknown. */
  readonly address: string;
}

interface SessionInput {
  readonly request: SessionRequest;
  readonly nowMs: number;
  /** ID of the epoch that begins if the datastore was restored. */
  readonly epochId: string;
}

export interface OpenedSession {
  /** Whether it was opened; otherwise the current session has another generation than expected. */
  readonly isOpened: boolean;
  /** Number of the current session; 0: there is none. */
  readonly generation: number;
  readonly revision: number;
  /** Whether the node has seen a later state of the datastore, so that a new epoch began. */
  readonly isRestored: boolean;
}

/**
 * Makes a process the owner of its node's name. The new session has a higher generation than all that the datastore and
 * the node know, so that no call of an earlier one is executed from then on.
 * @throws Failure NODE_NOT_FOUND; NODE_NAME_TAKEN when another machine has the name and runs; STORE_CORRUPT when the
 * session cannot be read
 */
export function openSession(view: View, { request, nowMs, epochId }: SessionInput): Decision<OpenedSession> {
  const { nodeName, machineId, bootId, expectedGeneration, last, address } = request;
  // Also of a node that is being deleted: its report shows that it runs, which ends the deletion.
  const node = view.node(nodeName);
  for (const kind of ['node', 'nodeSession'] as const) requireReadable(view, { kind, name: nodeName });
  const stored = view.session(nodeName);
  const isDisplacing = stored !== undefined && stored.machineId !== machineId;
  // Also while the node is not registered: the machine that has the name registers it again.
  if (isDisplacing && isAlive(view, nodeName)) throw nameTaken(stored, request);
  if (!node) throw nodeNotFound(nodeName);
  const { generation = 0, revision = 0 } = stored ?? {};
  if (generation !== expectedGeneration)
    return { changes: [], outcome: { isOpened: false, generation, revision, isRestored: false } };
  const isRestored = revealsRestore(view, stored, last);
  const { id = '', importId = '' } = view.epoch() ?? {};
  const session: NodeSession = {
    reportedAtMs: undefined,
    conflicts: [],
    // A node that had no session before holds nothing that the datastore does not know.
    epoch: last || isRestored ? '' : id,
    ...stored,
    // The leases of another boot ended with it.
    leases: stored?.bootId === bootId ? stored.leases : [],
    name: nodeName,
    machineId,
    bootId,
    displaced: isDisplacing ? withDisplaced(view, stored, machineId) : (stored?.displaced ?? []),
    generation: Math.max(generation, last?.generation ?? 0) + 1,
    address,
    revision: Math.max(revision, last?.revision ?? 0) + 1,
    heardAtMs: nowMs,
  };
  return {
    changes: [
      { type: 'expect', record: { kind: 'node', value: node } },
      putSession(session),
      ...(stored && stored.bootId !== bootId ? coolVanished(view, stored, nowMs) : []),
      ...(isRestored ? [restoredEpoch({ id: epochId, importId })] : []),
    ],
    outcome: { isOpened: true, generation: session.generation, revision: session.revision, isRestored },
  };
}

/** Listed leases that another tool released cool down at the end of their boot: pods may have had them. */
function coolVanished(view: View, { leases }: NodeSession, nowMs: number): Change[] {
  const blocks = new Map<string, Block>();
  for (const { address } of leases) {
    const stored = blockOf(view, address);
    const block = stored && (blocks.get(formatPrefix(stored.prefix)) ?? stored);
    if (!block || view.isLocked()) continue;
    const ordinal = ordinalOf(block.prefix, address);
    const current = attributesAt(block, ordinal);
    if (current && isHeld(current)) continue;
    const free = current ? releaseAddresses(block, [ordinal]) : block;
    const taken = takeOrdinals(free, [ordinal], { handleId: undefined, owner: {}, releasedAtMs: undefined });
    blocks.set(formatPrefix(block.prefix), coolAddresses(taken, [ordinal], nowMs));
  }
  return [...blocks.values()].map((value): Change => ({ type: 'put', record: { kind: 'block', value } }));
}

function nameTaken(stored: NodeSession, { nodeName, machineId, bootId, address }: SessionRequest): Failure {
  const owner = describeMachine(stored);
  const other = describeMachine({ machineId, bootId, address });
  const text = `node name "${nodeName}" belongs to another machine that runs: ${owner} has it, ${other} wants it; give one of them another node name, or stop the other one and wait four minutes`;
  return new Failure('NODE_NAME_TAKEN', text, { details: { node: nodeName, owner, other } });
}

function describeMachine({
  machineId,
  bootId,
  address,
}: Pick<NodeSession, 'machineId' | 'bootId' | 'address'>): string {
  return `machine ${machineId} (address ${address || 'unknown'}, boot ${bootId})`;
}

/**
 * Whether the node has seen a later state of the datastore than this one, and no epoch began because of it yet: until the
 * node reports in an epoch, its session may be older than the restore that began the epoch. A missing session may also
 * be the session of a deleted node. It only counts where no other node could reveal a restore.
 */
function revealsRestore(view: View, stored: NodeSession | undefined, last: SessionName | undefined): boolean {
  if (!last) return false;
  const epoch = view.epoch();
  if (stored) return isBehind(stored, last) && stored.epoch === (epoch?.id ?? '');
  if (isNewEpoch(view)) return false;
  for (const session of view.sessions()) if (session.epoch === epoch?.id) return false;
  return true;
}

function isBehind(stored: NodeSession, { generation, revision }: SessionName): boolean {
  return stored.generation < generation || stored.revision < revision;
}

/**
 * Requires that a call is of the node's current session. Its transaction compares the record: {@link updateSession}.
 * @throws Failure SESSION_SUPERSEDED; STORE_CORRUPT when the session cannot be read
 */
export function requireSession(view: View, nodeName: string, called: SessionName): NodeSession {
  requireReadable(view, { kind: 'nodeSession', name: nodeName });
  const stored = view.session(nodeName);
  const isCurrent = stored?.bootId === called.bootId && stored.generation === called.generation;
  if (isCurrent && !isBehind(stored, called)) return stored;
  const name = `session ${called.generation} of boot ${called.bootId}`;
  const current = stored ? `session ${stored.generation} of boot ${stored.bootId}` : 'no session';
  const reason = isCurrent ? 'the datastore was restored to an older state' : `the current one is ${current}`;
  const text = `node "${nodeName}": ${name} is superseded: ${reason}; open the session again`;
  throw new Failure('SESSION_SUPERSEDED', text, { details: { node: nodeName } });
}

/** The boots whose allocations stay although another machine has the node's name now. */
export function displacedBoots(view: View, nodeName: string): ReadonlySet<string> {
  const { displaced = [] } = view.session(nodeName) ?? {};
  return new Set(displaced.filter(isProtected(view, nodeName)).map(({ bootId }) => bootId));
}

function isProtected(view: View, nodeName: string): (machine: DisplacedMachine) => boolean {
  return ({ bootId }) => view.displacedAgeMs(nodeName, bootId) < DISPLACED_MS;
}

/** The displaced machines after the session's machine has lost the name to a successor, which may be one of them. */
function withDisplaced(view: View, session: NodeSession, successorId: string): DisplacedMachine[] {
  const { name, displaced, machineId, bootId } = session;
  const protectedMachines = displaced.filter(isProtected(view, name));
  const withoutSuccessor = protectedMachines.filter((machine) => machine.machineId !== successorId);
  return [...withoutSuccessor, { machineId, bootId }];
}

/** Within this time the record is not written again only to say that the node was heard of, in milliseconds. */
const HEARD_MS = 60_000;

/** A change of the session by a call of the node. */
type SessionPatch = Partial<Pick<NodeSession, 'leases' | 'reportedAtMs' | 'epoch' | 'conflicts'>>;

interface SessionUpdate {
  /** Session from {@link requireSession}. */
  readonly session: NodeSession;
  readonly patch: SessionPatch;
  readonly nowMs: number;
}

interface UpdatedSession {
  /** The record if it is to be written, or compared by a transaction that changes other records. */
  readonly changes: readonly Change[];
  /** Whether the record is written. */
  readonly isWritten: boolean;
  readonly revision: number;
}

/** The session's part of a transaction of the node: writes the record if it changed, or compares it. */
export function updateSession(view: View, { session, patch, nowMs }: SessionUpdate): UpdatedSession {
  const isHeard = view.sessionAgeMs(session.name) < HEARD_MS;
  if (isHeard && isUnchanged(session, patch))
    return { changes: [expectSession(session)], isWritten: false, revision: session.revision };
  const value = { ...session, ...patch, heardAtMs: nowMs, revision: session.revision + 1 };
  return { changes: [putSession(value)], isWritten: true, revision: value.revision };
}

function isUnchanged(session: NodeSession, { leases, reportedAtMs, epoch, conflicts }: SessionPatch): boolean {
  return (
    (leases === undefined || sameLeases(session.leases, leases)) &&
    (reportedAtMs === undefined || reportedAtMs === session.reportedAtMs) &&
    (epoch === undefined || epoch === session.epoch) &&
    (conflicts === undefined || versionOf(conflicts) === versionOf(session.conflicts))
  );
}

function sameLeases(a: readonly ListedLease[], b: readonly ListedLease[]): boolean {
  return (
    a.length === b.length &&
    a.every(({ address, sequenceNumber }, index) => {
      const other = b[index];
      return other?.sequenceNumber === sequenceNumber && compareAddresses(other.address, address) === 0;
    })
  );
}

function putSession(value: NodeSession): Change {
  return { type: 'put', record: { kind: 'nodeSession', value } };
}

function expectSession(value: NodeSession): Change {
  return { type: 'expect', record: { kind: 'nodeSession', value } };
}
