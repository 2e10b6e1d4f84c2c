import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { HOST_MAC } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';

import type { ClusterView } from '../cluster/cluster.js';
import type { Lease, LeaseBook, LeaseListing } from '../leases/lease.js';
import type { AllocatedAddress } from '../records/record.js';
import type { ObservedLink } from '../wiring/observed.js';

/** What podwire-ipam stores for an address. */
interface Holding {
  readonly sequenceNumber: bigint;
  /** Formatted attachment; undefined: an unbound lease of the node. */
  readonly attachment: string | undefined;
  readonly nodeName: string;
}

/** What happens to a call. */
export type CallFault =
  /** It is not executed. */
  | 'refused'
  /** It is executed, and its answer is lost. */
  | 'lost';

/** One pool of addresses of podwire-ipam in memory, as the contract of LeaseService describes it, for several nodes. */
export class MemoryPool {
  readonly #free: string[];
  readonly holdings = new Map<string, Holding>();
  /** Of the next calls, in order; undefined: none. */
  readonly faults: (CallFault | undefined)[] = [];
  /** Of the next calls, in order: turns of the event loop until the execution, and from there until the answer. Default: 1. */
  readonly delays: number[] = [];
  isDown = false;
  /** Whether a pod without requests would no longer get this address. */
  readonly outdated = new Set<string>();
  callsCount = 0;
  /** Addresses whose returns podwire-ipam refuses, as their block cannot be read. */
  readonly unreadable = new Set<string>();
  /** Calls that were sent and have no answer. */
  readonly inFlight = { bindings: 0, returns: 0 };
  #sequenceNumber = 1n;

  constructor(addresses: readonly string[]) {
    this.#free = [...addresses];
  }

  get freeCount(): number {
    return this.#free.length;
  }

  /** Allocate for an attachment, as for a pod that has requests. @returns undefined if there is none */
  allocate(nodeName: string, attachment: string): AllocatedAddress | undefined {
    const address = this.#free.shift();
    if (address === undefined) return undefined;
    const sequenceNumber = this.#sequenceNumber++;
    this.holdings.set(address, { sequenceNumber, attachment, nodeName });
    return { address, sequenceNumber };
  }

  /** Release of an attachment. */
  release(attachment: string): void {
    for (const [address, held] of [...this.holdings]) {
      if (held.attachment !== attachment) continue;
      this.holdings.delete(address);
      this.#free.push(address);
    }
  }

  book(nodeName: string): LeaseBook {
    return {
      lease: (family, count) => this.#call(() => this.#lease(nodeName, family, count)),
      bind: (records) =>
        this.#countedCall('bindings', () =>
          records.map(({ network, allocation }) =>
            this.#bind(nodeName, formatAttachment(network.attachment), allocation?.addresses ?? []),
          ),
        ),
      adopt: ({ attachment, addresses }) =>
        this.#countedCall('bindings', () => this.#bind(nodeName, formatAttachment(attachment), addresses)),
      return: (records) =>
        this.#countedCall('returns', () =>
          records.map(({ network, allocation }) => {
            const held = allocation?.addresses ?? [];
            if (held.some(({ address }) => this.unreadable.has(address))) return false;
            for (const each of held)
              this.#end(each, ({ attachment }) =>
                attachment === undefined ? true : attachment === formatAttachment(network.attachment),
              );
            return true;
          }),
        ),
      returnLeases: async (leases) => {
        const isUnbound = (held: Holding) => held.attachment === undefined && held.nodeName === nodeName;
        const end = () => {
          const before = this.#free.length;
          for (const lease of leases) this.#end(lease, isUnbound);
          // No pod used them: they are the next ones.
          this.#free.unshift(...this.#free.splice(before));
        };
        await this.#countedCall('returns', end);
      },
    };
  }

  #lease(nodeName: string, family: Family, count: number): LeaseListing {
    if (family === 6) return { leases: [], explanation: '' };
    const own = (): [string, Holding][] =>
      [...this.holdings].filter(([, held]) => held.nodeName === nodeName && held.attachment === undefined);
    for (let missing = count - own().length; missing > 0 && this.#free.length > 0; missing--) {
      const address = this.#free.shift() ?? '';
      this.holdings.set(address, { sequenceNumber: this.#sequenceNumber++, attachment: undefined, nodeName });
    }
    const leases = own().map(([address, { sequenceNumber }]) => {
      return { address, sequenceNumber, poolName: 'pool', isOutdated: this.outdated.has(address) };
    });
    return { leases, explanation: leases.length < count ? 'the pool has no free address' : '' };
  }

  #bind(nodeName: string, attachment: string, addresses: readonly AllocatedAddress[]): string | undefined {
    const isOwn = ({ address, sequenceNumber }: AllocatedAddress): boolean => {
      const held = this.holdings.get(address);
      if (held?.sequenceNumber !== sequenceNumber) return false;
      return held.attachment === attachment || (held.attachment === undefined && held.nodeName === nodeName);
    };
    if (!addresses.every(isOwn)) return 'the lease has ended';
    for (const { address, sequenceNumber } of addresses)
      this.holdings.set(address, { sequenceNumber, attachment, nodeName });
    return undefined;
  }

  #end({ address, sequenceNumber }: AllocatedAddress | Lease, mayFree: (held: Holding) => boolean): void {
    const held = this.holdings.get(address);
    if (held?.sequenceNumber !== sequenceNumber || !mayFree(held)) return;
    this.holdings.delete(address);
    this.#free.push(address);
  }

  #countedCall<Result>(kind: 'bindings' | 'returns', execute: () => Result): Promise<Result> {
    this.inFlight[kind]++;
    return this.#call(execute).finally(() => this.inFlight[kind]--);
  }

  async #call<Result>(execute: () => Result): Promise<Result> {
    this.callsCount++;
    await this.#delay();
    const fault = this.isDown ? 'refused' : this.faults.shift();
    if (fault === 'refused') throw new Failure('UNREACHABLE', 'podwire-ipam does not answer');
    const result = execute();
    await this.#delay();
    if (fault === 'lost') throw new Failure('UNREACHABLE', 'podwire-ipam did not answer');
    return result;
  }

  async #delay(): Promise<void> {
    for (let turns = this.delays.shift() ?? 1; turns > 0; turns--)
      await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Of all views: a change makes a new map. */
const POOLS: ClusterView['cluster']['pools'] = new Map();

/** This node's view of the cluster, after a number of recalls of its leases. */
export function recallView(self: string, leaseRecallCount: bigint, pools = POOLS): ClusterView {
  const rest = { ipv4: undefined, ipv6: undefined, vxlanIpv4: undefined, vxlanIpv6: undefined };
  const node = { name: self, leaseRecallCount, ipip: undefined, asNumber: undefined, ...rest };
  return { self, isDatastoreLocked: false, cluster: { nodes: new Map([[self, node]]), pools, blocks: new Map() } };
}

/** The host's end of a pod's interface, as the kernel lists it. */
export function hostLink(name: string): ObservedLink {
  const rest = { txQueueLength: 1000, queueCount: 1, alias: null, running: true, peerIndex: 2 };
  return { name, index: 7, kind: 'veth', mac: HOST_MAC, mtuBytes: 1500, up: true, ...rest };
}
