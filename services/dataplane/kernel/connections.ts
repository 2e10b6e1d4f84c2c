import { setImmediate } from 'node:timers/promises';

import { openNamespace, type Namespace, type TrackedConnection } from '@podwire/netlink';
import { formatAddress, fromBytes, parseAddress, type Address } from '@podwire/shared/net/address';
import type { Connection } from '@podwire/shared/network-policy/evaluate';

import type { ConnectionKernel } from '../network-policy/live-connections.js';
import { callKernel } from './refusal.js';

/** Connections that are judged without a break. */
const PART_SIZE = 1000;

/** Connection tracking of this process's network namespace. */
export class NetlinkConnections implements ConnectionKernel {
  #opened: Promise<Namespace> | undefined;

  async nodeAddresses(): Promise<readonly Address[]> {
    const listed = await this.#call((node) => node.addresses());
    return listed.flatMap(({ address }) => parseAddress(address.replace(/\/.*/, '')) ?? []);
  }

  endForbidden(
    addresses: readonly Address[],
    isForbidden: (connection: Connection) => boolean,
    signal: AbortSignal,
  ): Promise<number> {
    return this.#call(async (node) => {
      // Most connections differ in the source's port alone.
      const verdicts = new Map<string, boolean>();
      const judge = (tracked: TrackedConnection): boolean => {
        const known = verdicts.get(tracked.key);
        if (known !== undefined) return known;
        const verdict = isForbidden(connectionOf(tracked));
        verdicts.set(tracked.key, verdict);
        return verdict;
      };
      let count = 0;
      for (const part of partsOf(await node.connections(addresses.map(formatAddress)))) {
        if (signal.aborted) break;
        const forbidden = part.filter(judge);
        if (forbidden.length > 0) count += await node.deleteConnections(forbidden);
        else await setImmediate();
      }
      return count;
    });
  }

  /** Idempotent. */
  async close(): Promise<void> {
    const node = await this.#opened?.catch(() => undefined);
    await node?.close();
  }

  /** Opens a namespace of its own with the first call: the calls of one are made one after another, and these are long. */
  #call<Result>(call: (node: Namespace) => Promise<Result>): Promise<Result> {
    return callKernel(async () => call(await (this.#opened ??= openNamespace())));
  }
}

function connectionOf({ protocol, source, destination, destinationPort }: TrackedConnection): Connection {
  const ends = { source: fromBytes(source), destination: fromBytes(destination) };
  return { ...ends, protocol, destinationPort: destinationPort === 0 ? undefined : destinationPort };
}

function* partsOf(connections: Iterable<TrackedConnection>): IterableIterator<readonly TrackedConnection[]> {
  let part: TrackedConnection[] = [];
  for (const each of connections) {
    part.push(each);
    if (part.length < PART_SIZE) continue;
    yield part;
    part = [];
  }
  if (part.length > 0) yield part;
}
