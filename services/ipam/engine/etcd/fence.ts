import { createHash } from 'node:crypto';

import type { ICompare } from 'etcd3';

import type { EtcdCluster } from './cluster.js';
import { absent } from './request.js';

interface FenceOptions {
  readonly cluster: EtcdCluster;
  /** Unique prefix of this store's own keys. */
  readonly keyPrefix: string;
}

/** Lifetime of a fence key: far longer than a request can wait in a stalled server. */
const KEY_LIFETIME_S = 24 * 60 * 60;

/**
 * Prevents late execution of a transaction whose answer was lost. A request may wait in a stalled server or in the
 * network long after its timeout. It would then be executed although its sender has seen a failure and has read the
 * records since.
 *
 * Every transaction requires that a key of this store does not exist. When one has failed and may still be in flight,
 * that key is made before any other read or write: everything sent before can no longer be committed. Later
 * transactions use another key. Other transactions in flight lose their comparison and are decided again.
 *
 * etcd removes the keys after a day, by a lease.
 */
export class Fence {
  readonly #options: FenceOptions;
  #number = 0;
  #leasesCount = 0;
  #isBroken = false;
  #repairing: Promise<void> | undefined;

  constructor(options: FenceOptions) {
    this.#options = options;
  }

  /** The condition under which a transaction may be executed. */
  get guard(): ICompare {
    return absent(this.#key);
  }

  /** A sent transaction has an unknown outcome: {@link repair} must precede any other request. */
  markBroken(): void {
    this.#isBroken = true;
  }

  get isBroken(): boolean {
    return this.#isBroken;
  }

  /**
   * Prevents the execution of everything that was sent before. Concurrent callers share one run.
   * @throws Failure of the cluster; then it is still broken
   */
  repair(): Promise<void> {
    this.#repairing ??= this.#createKey().finally(() => (this.#repairing = undefined));
    return this.#repairing;
  }

  get #key(): string {
    return `${this.#options.keyPrefix}${this.#number}`;
  }

  async #createKey(): Promise<void> {
    const { cluster } = this.#options;
    const never = new AbortController().signal;
    const key = Buffer.from(this.#key);
    // Both may be repeated: a lease without keys expires, and the key may be made twice.
    await cluster.read(async ({ leaseClient, kv }, options) => {
      const lease = this.#newLease();
      await leaseClient.leaseGrant({ ID: lease, TTL: KEY_LIFETIME_S }, options);
      return kv.put({ key, value: Buffer.from('{}'), lease }, options);
    }, never);
    this.#number++;
    this.#isBroken = false;
  }

  /** A lease of 48 bits, where etcd would choose one of 64, which etcd3 may round to a number. */
  #newLease(): number {
    const name = `${this.#options.keyPrefix}${this.#leasesCount++}`;
    return createHash('sha256').update(name).digest().readUIntBE(0, 6);
  }
}
