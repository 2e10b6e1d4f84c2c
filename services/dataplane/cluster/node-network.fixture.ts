import { splitCidr } from '@podwire/shared/net/prefix';

import type { NodeNetwork, NodeNetworkState } from '../kernel/node-network.js';

/** Interfaces that a test sets: by name, their addresses with length. */
export class FakeNodeNetwork implements NodeNetwork {
  /** The next reads fail with these. */
  readonly failures: Error[] = [];
  reads = 0;
  isClosed = false;
  #interfaces: Readonly<Record<string, readonly string[]>>;
  readonly #listeners = new Set<() => void>();

  constructor(interfaces: Readonly<Record<string, readonly string[]>>) {
    this.#interfaces = interfaces;
  }

  get listenersCount(): number {
    return this.#listeners.size;
  }

  set(interfaces: Readonly<Record<string, readonly string[]>>): void {
    this.#interfaces = interfaces;
    for (const listener of this.#listeners) listener();
  }

  read(): Promise<NodeNetworkState> {
    this.reads++;
    const failure = this.failures.shift();
    if (failure) return Promise.reject(failure);
    const entries = Object.entries(this.#interfaces);
    return Promise.resolve({
      links: entries.map(([name], at) => ({ index: at + 1, name, up: true })),
      addresses: entries.flatMap(([, addresses], at) =>
        addresses.flatMap((text) => {
          const parts = splitCidr(text);
          return parts ? [{ ...parts, linkIndex: at + 1, lasting: true }] : [];
        }),
      ),
      routes: [],
    });
  }

  watch(listener: () => void): Promise<() => void> {
    this.#listeners.add(listener);
    return Promise.resolve(() => void this.#listeners.delete(listener));
  }

  close(): Promise<void> {
    this.isClosed = true;
    return Promise.resolve();
  }
}
