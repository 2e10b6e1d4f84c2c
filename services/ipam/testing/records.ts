import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { AllocationRequest } from '../addresses/allocate/allocate.js';
import { makePool } from '../pools/changes.js';
import { checkPool } from '../pools/rules.js';
import type { AllocationAttributes } from '../records/attributes.js';
import {
  makeBlock,
  takeOrdinals,
  type Affinity,
  type AffinityState,
  type Block,
  type BlockOwner,
  type Ordinal,
} from '../records/block.js';
import { DEFAULT_CONFIG, type IpamConfig } from '../records/config.js';
import type { ForeignEndpoint } from '../records/endpoint.js';
import type { Node } from '../records/node.js';
import type { Pool } from '../records/pool.js';
import { NO_REQUESTS } from '../records/request-policy.js';
import type { NodeSession } from '../records/session.js';
import type { EndpointRecord, RecordValue } from '../records/view.js';

/** Records for tests, with defaults for all fields that a test does not set. */

export const NOW_MS = Date.parse('2026-08-22T06:33:25.100Z');

export function prefix(cidr: string): Prefix {
  const parsed = parsePrefix(cidr);
  if (!parsed.ok) throw new Error(`${cidr} ${parsed.fault}`);
  return parsed.prefix;
}

export function host(name: string): BlockOwner {
  return { kind: 'host', name };
}

export function pool(name: string, cidr: string, rest: Partial<Pool> = {}): Pool {
  const { blockSizeBits = 0, disabled = false } = rest;
  const checked = checkPool({ name, cidr, blockSizeBits, disabled });
  if (!checked.ok) throw new Error(checked.faults.map(({ field, reason }) => `${field} ${reason}`).join('; '));
  return { ...makePool({ spec: checked.spec, uid: `uid-${name}`, nowMs: NOW_MS }), ...rest };
}

export function poolRecord(name: string, cidr: string, rest: Partial<Pool> = {}): RecordValue {
  return { kind: 'pool', value: pool(name, cidr, rest) };
}

export function block(cidr: string, nodeName: string, rest: Partial<Block> = {}): Block {
  return { ...makeBlock({ prefix: prefix(cidr), owner: host(nodeName), nowMs: NOW_MS }), ...rest };
}

export function affinity(cidr: string, nodeName: string, state: AffinityState = 'confirmed'): Affinity {
  return { owner: host(nodeName), block: prefix(cidr), state };
}

/** A registered node. */
export function node(name: string, rest: Partial<Node> = {}): Node {
  return {
    name,
    uid: `uid-${name}`,
    createTimeMs: NOW_MS,
    deletionTimeMs: undefined,
    labels: {},
    registeredLabels: {},
    ipv4: undefined,
    ipv6: undefined,
    tunnels: new Map(),
    tunnelMacs: new Map(),
    interfaces: [],
    asNumber: undefined,
    ...rest,
  };
}

export function nodeRecord(name: string, rest: Partial<Node> = {}): RecordValue {
  return { kind: 'node', value: node(name, rest) };
}

/** The session of a node that was heard of just now. */
export function session(name: string, rest: Partial<NodeSession> = {}): NodeSession {
  return {
    name,
    machineId: `machine-${name}`,
    bootId: `boot-${name}`,
    displaced: [],
    generation: 1,
    address: '',
    revision: 1,
    heardAtMs: NOW_MS,
    leases: [],
    reportedAtMs: undefined,
    epoch: '',
    conflicts: [],
    ...rest,
  };
}

export function reservation(name: string, ...cidrs: readonly string[]): RecordValue {
  return {
    kind: 'reservation',
    value: { name, uid: `uid-${name}`, createTimeMs: NOW_MS, prefixes: cidrs.map(prefix) },
  };
}

export function config(rest: Partial<IpamConfig> = {}): RecordValue {
  return { kind: 'config', value: { ...DEFAULT_CONFIG, ...rest } };
}

/** A block whose every address is in use by `owner`. */
export function fullBlock(cidr: string, nodeName: string): Block {
  const empty = block(cidr, nodeName);
  return {
    ...empty,
    allocations: empty.allocations.map(() => 0),
    unallocated: [],
    attributes: [{ handleId: 'other.owner', owner: { node: nodeName }, releasedAtMs: undefined }],
    sequenceNumber: empty.sequenceNumber + 1n,
    sequenceNumbers: empty.allocations.map(() => empty.sequenceNumber),
  };
}

/** A block of a node with its affinity. */
export function claimedBlock(value: Block, state: AffinityState = 'confirmed'): RecordValue[] {
  const owner = value.owner ?? host('none');
  return [
    { kind: 'block', value },
    { kind: 'affinity', value: { owner, block: value.prefix, state } },
  ];
}

/** An endpoint as Calico's own plugin writes it, under a key in the namespace `default`. */
export function foreignRecord(name: string, rest: Partial<ForeignEndpoint> = {}): EndpointRecord & RecordValue {
  const value = {
    nodeName: 'n1',
    containerId: '',
    interfaceName: 'eth0',
    podName: '',
    addresses: [],
    uid: '',
    createTimeMs: undefined,
    mac: '',
    hostInterfaceName: '',
    stored: '{}',
    ...rest,
  };
  return { kind: 'foreignEndpoint', key: { namespace: 'default', name }, value };
}

export function attachment(containerId: string, rest: Partial<Attachment> = {}): Attachment {
  return { network: 'net', containerId, interfaceName: 'eth0', ...rest };
}

export function request(containerId: string, rest: Partial<AllocationRequest> = {}): AllocationRequest {
  return {
    attachment: attachment(containerId),
    nodeName: 'n1',
    pod: { namespace: 'default', name: `pod-${containerId}`, uid: '' },
    netns: undefined,
    families: [4],
    addresses: [],
    pools: [],
    poolChoices: [],
    requests: NO_REQUESTS,
    namespaceLabels: {},
    maxBlocksCount: 0,
    unknownNodes: { policy: 'register', uid: 'uid-node' },
    ...rest,
  };
}

/** A new allocation: its ordinal in the block, and its sequence number. */
interface TakenAddress {
  readonly block: Block;
  readonly ordinal: Ordinal;
  readonly sequenceNumber: bigint;
}

/** Allocates the address that has been free longest. @returns undefined when none is free */
export function takeAddress(block: Block, attributes: AllocationAttributes): TakenAddress | undefined {
  const [ordinal] = block.unallocated;
  if (ordinal === undefined) return undefined;
  return { ordinal, sequenceNumber: block.sequenceNumber, block: takeOrdinals(block, [ordinal], attributes) };
}

/** The failure that a function throws. Any other error, or none, fails the test. */
export function failureOf(work: () => unknown): Failure {
  try {
    work();
  } catch (error) {
    if (error instanceof Failure) return error;
    throw error;
  }
  throw new Error('it did not fail');
}
