import type { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';

import type {
  NetworkLink,
  NodeNetwork,
  NodeNetworkListener,
  NodeNetworkState,
} from '../kernel/node-network-interface.js';

/** Interfaces that a test sets: by name, their addresses with length. */
export class FakeNodeNetwork implements NodeNetwork {
  /** The next reads fail with these. */
  readonly failures: Error[] = [];
  /** The next announcements fail with these. */
  readonly refusals: Error[] = [];
  reads = 0;
  /** What neighbours were told: `eth0 192.0.2.7 02:00:00:00:00:01`. */
  readonly announced: string[] = [];
  /** MAC addresses by interface; others have the one of their index. */
  readonly macs = new Map<string, string>();
  /** The next watches are refused with these. */
  readonly watchRefusals: Failure[] = [];
  /** What each watch was asked to follow the ways to. */
  readonly targets: string[] = [];
  isClosed = false;
  #interfaces: Readonly<Record<string, readonly string[]>>;
  readonly #listeners = new Set<NodeNetworkListener>();

  constructor(interfaces: Readonly<Record<string, readonly string[]>>) {
    this.#interfaces = interfaces;
  }

  get listenersCount(): number {
    return this.#listeners.size;
  }

  set(interfaces: Readonly<Record<string, readonly string[]>>): void {
    this.#interfaces = interfaces;
    for (const { changed } of this.#listeners) changed();
  }

  /** As a kernel that announces nothing any more. */
  endWatches(failure: Failure): void {
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    for (const { ended } of listeners) ended(failure);
  }

  read(): Promise<NodeNetworkState> {
    this.reads++;
    const failure = this.failures.shift();
    if (failure) return Promise.reject(failure);
    const entries = Object.entries(this.#interfaces);
    return Promise.resolve({
      links: entries.map(([name], at) => ({
        index: at + 1,
        name,
        up: true,
        mac: this.macs.get(name) ?? `02:00:00:00:00:0${at + 1}`,
      })),
      addresses: entries.flatMap(([, addresses], at) =>
        addresses.flatMap((text) => {
          const parts = splitCidr(text);
          return parts ? [{ ...parts, linkIndex: at + 1, lasting: true }] : [];
        }),
      ),
      routes: [],
    });
  }

  watch(listener: NodeNetworkListener, targets: readonly Address[] = []): Promise<() => void> {
    this.targets.push(targets.map(formatAddress).join());
    const refusal = this.watchRefusals.shift();
    if (refusal) return Promise.reject(refusal);
    this.#listeners.add(listener);
    return Promise.resolve(() => void this.#listeners.delete(listener));
  }

  announce({ name, mac }: NetworkLink, address: Address): Promise<void> {
    const refusal = this.refusals.shift();
    if (refusal) return Promise.reject(refusal);
    this.announced.push(`${name} ${formatAddress(address)} ${mac}`);
    return Promise.resolve();
  }

  close(): Promise<void> {
    this.isClosed = true;
    return Promise.resolve();
  }
}
