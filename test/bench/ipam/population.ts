import { randomUUID } from 'node:crypto';

import { attributesFor } from '@podwire/ipam/addresses/allocate/allocate';
import type { Store } from '@podwire/ipam/engine/store';
import { makeBlock, type Block } from '@podwire/ipam/records/block';
import { endpointKey, makeEndpoint, type EndpointAddress } from '@podwire/ipam/records/endpoint';
import { makeNode } from '@podwire/ipam/records/node';
import { RecordKeys } from '@podwire/ipam/records/json/keys';
import { writeRecord } from '@podwire/ipam/records/json/registry';
import type { RecordValue } from '@podwire/ipam/records/view';
import { takeAddress } from '@podwire/ipam/testing/records';
import { handleId } from '@podwire/shared/attachment/names';
import { formatAddress } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, hostPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';

/** A datastore with that many nodes and that many containers on each. */
export interface Population {
  readonly nodes: number;
  readonly containersPerNode: number;
  /** Every block is in it. */
  readonly pool: string;
  /** The number of nodes whose records are written in one transaction: as many as the store accepts, for it syncs each to the disk. */
  readonly nodesPerTransaction: number;
  /** The pod of a container. Default: none. */
  readonly podOf?: (node: number, container: number) => PodIdentity;
  /** UID of the nodes' Kubernetes cluster. Default: no node is registered. */
  readonly kubernetesCluster?: string;
}

interface PodIdentity {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
}

/** Name of a populated node. */
export function nodeNameOf(node: number): string {
  return `populated-${node}`;
}

/** The address of a populated container. */
export function addressOf(pool: string, node: number, container: number): string {
  return formatAddress(addressAt(blockPrefix(pool, node), container));
}

const BLOCK_BITS = 26;

/** Blocks have this distance, so that the space between them can be claimed. */
const BLOCK_STRIDE = 16n;

/** Writes the records of a population. */
export async function populate(store: Store, population: Population): Promise<void> {
  const keys = new RecordKeys('/calico');
  const signal = new AbortController().signal;
  const nowMs = Date.now();
  const { nodes, nodesPerTransaction } = population;
  for (let first = 0; first < nodes; first += nodesPerTransaction) {
    const count = Math.min(nodesPerTransaction, nodes - first);
    const records = Array.from({ length: count }, (_, index) => recordsOf(first + index, { ...population, nowMs }));
    const puts = records.flat().map((record) => {
      return { key: keys.of(record), value: writeRecord(record, undefined).bytes };
    });
    await store.commit({ comparisons: [], puts, deletes: [] }, signal);
  }
}

function recordsOf(node: number, population: Population & { nowMs: number }): RecordValue[] {
  const { containersPerNode, pool, podOf, kubernetesCluster, nowMs } = population;
  const nodeName = nodeNameOf(node);
  const owner = { kind: 'host', name: nodeName } as const;
  const prefix = blockPrefix(pool, node);
  let block: Block = makeBlock({ prefix, owner, nowMs });
  const records: RecordValue[] = [{ kind: 'affinity', value: { owner, block: prefix, state: 'confirmed' } }];
  for (let container = 0; container < containersPerNode; container++) {
    const containerId = `${node}-${container}-`.padEnd(64, 'f');
    const attachment = { network: 'podwire', containerId, interfaceName: 'eth0' };
    const identity = { attachment, nodeName, pod: podOf?.(node, container), netns: undefined };
    const taken = takeAddress(block, attributesFor(identity, nowMs));
    if (!taken) throw new Error('a block has too few addresses for a node');
    block = taken.block;
    const { ordinal, sequenceNumber } = taken;
    const address: EndpointAddress = {
      address: hostPrefix(addressAt(prefix, ordinal)),
      block: prefix,
      poolName: 'default-ipv4-ippool',
      sequenceNumber,
    };
    const blocks = new Map([[formatPrefix(prefix), 1]]);
    records.push({ kind: 'handle', value: { id: handleId(attachment), blocks } });
    const endpoint = makeEndpoint({ ...identity, createdAtMs: nowMs }, [address]);
    records.push({ kind: 'endpoint', key: endpointKey(identity), value: endpoint });
  }
  if (kubernetesCluster !== undefined) {
    const registered = makeNode({ name: nodeName, uid: randomUUID(), nowMs });
    records.push({ kind: 'node', value: { ...registered, kubernetesCluster } });
  }
  return [...records, { kind: 'block', value: block }];
}

function blockPrefix(pool: string, node: number): Prefix {
  const parsed = parsePrefix(pool);
  if (!parsed.ok) throw new Error(`${pool} ${parsed.fault}`);
  const size = 1n << BigInt(32 - BLOCK_BITS);
  return { ...parsed.prefix, value: parsed.prefix.value + BigInt(node) * BLOCK_STRIDE * size, length: BLOCK_BITS };
}
