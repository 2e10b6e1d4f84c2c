import { setTimeout as sleep } from 'node:timers/promises';

import { AddressServiceService, AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { Failure } from '@podwire/shared/failure/failure';

import type { History } from './model.js';
import type { ReplicaClient } from './replica.js';

/** Time limit for one call: shorter than the faults last, so that outcomes become unknown. */
const CALL_TIMEOUT_MS = 2_000;

/** Most containers that stay: on a slow machine a run has many allocations, which must not use up the pool. */
const LASTING = 100;

export interface CallersOptions {
  readonly replicas: readonly ReplicaClient[];
  readonly history: History;
  readonly nodesCount: number;
  /** A number from 0 (included) to 1 (excluded), from a seed that the test prints. */
  readonly random: () => number;
}

/**
 * Callers that behave like container runtimes: each allocates an address for a container, asks any replica, retries or releases
 * until that is acknowledged; keeps the address for a while; releases it, sometimes twice; and begins again.
 */
export class Callers {
  readonly #options: CallersOptions;
  #stopping = false;
  #serial = 0;
  #lastingCount = 0;

  constructor(options: CallersOptions) {
    this.#options = options;
  }

  /** Runs until {@link stop}; then every caller resolves its unknown outcomes. */
  async run(count: number): Promise<void> {
    await Promise.all(Array.from({ length: count }, () => this.#live()));
  }

  stop(): void {
    this.#stopping = true;
  }

  async #live(): Promise<void> {
    while (!this.#stopping) {
      const container = {
        id: `c${this.#serial++}`,
        node: Math.floor(this.#options.random() * this.#options.nodesCount),
      };
      if (!(await this.#allocate(container))) await this.#release(container);
      else if (this.#options.random() < 0.15 && this.#lastingCount < LASTING) this.#lastingCount++;
      else {
        await sleep(this.#options.random() * 200);
        await this.#release(container);
        // A runtime's second DEL, late: it must not release an address that another container has by now.
        if (this.#options.random() < 0.2) await this.#release(container);
      }
    }
  }

  async #allocate({ id, node }: Container): Promise<boolean> {
    for (let attempt = 0; attempt < 3; attempt++) {
      try {
        const { endpoint } = await this.#replica(node).peer.call(
          AddressServiceService.allocate,
          AllocateRequest.fromPartial({ attachment: attachmentOf(id), nodeName: `node-${node}` }),
          { deadlineMs: Date.now() + CALL_TIMEOUT_MS },
        );
        this.#options.history.allocated(id, endpoint?.addresses[0]?.address ?? '', performance.now());
        this.#options.history.count('allocated');
        return true;
      } catch (error) {
        this.#options.history.count(`allocate: ${codeOf(error)}`);
        if (this.#options.random() < 0.5) return false;
      }
    }
    return false;
  }

  async #release({ id, node }: Container): Promise<void> {
    this.#options.history.releasing(id, performance.now());
    for (;;) {
      try {
        await this.#replica(node).peer.call(
          AddressServiceService.release,
          { attachment: attachmentOf(id) },
          { deadlineMs: Date.now() + CALL_TIMEOUT_MS },
        );
        this.#options.history.count('released');
        return;
      } catch (error) {
        this.#options.history.count(`release: ${codeOf(error)}`);
        await sleep(50 + this.#options.random() * 200);
      }
    }
  }

  /** Usually the replica that the node's plugin is connected to; another one when the plugin reconnects. */
  #replica(node: number): ReplicaClient {
    const { replicas, random } = this.#options;
    const index = random() < 0.8 ? node : Math.floor(random() * replicas.length);
    const replica = replicas[index % replicas.length];
    if (!replica) throw new Error('no replica');
    return replica;
  }
}

interface Container {
  readonly id: string;
  /** Number of its node. */
  readonly node: number;
}

function attachmentOf(containerId: string) {
  return { network: 'net', containerId, interfaceName: 'eth0' };
}

function codeOf(error: unknown): string {
  if (!(error instanceof Failure)) throw error;
  return error.code;
}
