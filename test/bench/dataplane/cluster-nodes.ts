import type { Store } from '@podwire/ipam/engine/store';
import { RecordKeys } from '@podwire/ipam/records/json/keys';
import { writeRecord } from '@podwire/ipam/records/json/registry';
import type { Node } from '@podwire/ipam/records/node';
import type { Address } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

/** The subnet of all nodes of a measurement (RFC 2544). The first 256 addresses are not used. */
export const NODE_SUBNET: Prefix = { family: 4, value: 0xc612_0000n, length: 15 };

export function nodeAddress(number: number): Address {
  return { family: 4, value: NODE_SUBNET.value + 256n + BigInt(number) };
}

const NODES_PER_TRANSACTION = 500;

/** Writes nodes to IPAM's datastore, as their registrations do. @param names - in the order of their addresses */
export async function writeNodes(store: Store, names: readonly string[]): Promise<void> {
  const keys = new RecordKeys('/calico');
  const signal = new AbortController().signal;
  for (let first = 0; first < names.length; first += NODES_PER_TRANSACTION) {
    const puts = names.slice(first, first + NODES_PER_TRANSACTION).map((name, position) => {
      const value: Node = {
        name,
        uid: `00000000-0000-4000-8000-${String(first + position).padStart(12, '0')}`,
        createTimeMs: Date.now(),
        deletionTimeMs: undefined,
        labels: {},
        registeredLabels: {},
        ipv4: { address: { ...nodeAddress(first + position), length: 32 }, subnetBits: NODE_SUBNET.length },
        ipv6: undefined,
        tunnels: new Map(),
        tunnelMacs: new Map(),
        interfaces: [],
        asNumber: undefined,
      };
      const record = { kind: 'node', value } as const;
      return { key: keys.of(record), value: writeRecord(record, undefined).bytes };
    });
    await store.commit({ comparisons: [], puts, deletes: [] }, signal);
  }
}
