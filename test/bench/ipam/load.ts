import type { Socket } from 'node:net';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

import { AllocateRequest, ReleaseRequest } from '@podwire/proto/podwire/ipam/v1/address';

import { LightClient } from './light-client.js';

const SERVICE = '/podwire.ipam.v1.AddressService';

/** Calls of podwire-ipam by a light client. Container IDs are 64 digits, as containerd's are. */
export class IpamCaller {
  readonly #client: LightClient;

  /** @param endpoint - of {@link LightClient} */
  constructor(endpoint: string | Socket) {
    this.#client = new LightClient(endpoint);
  }

  async allocate(containerId: string, nodeName: string): Promise<void> {
    const request = { attachment: attachmentOf(containerId), nodeName, pod: undefined, families: [], netns: undefined };
    await this.#client.call(
      `${SERVICE}/Allocate`,
      AllocateRequest.encode(AllocateRequest.fromPartial(request)).finish(),
    );
  }

  async release(containerId: string): Promise<void> {
    const request = { attachment: attachmentOf(containerId) };
    await this.#client.call(`${SERVICE}/Release`, ReleaseRequest.encode(ReleaseRequest.fromPartial(request)).finish());
  }

  /** An empty call (grpc.health.v1): the cost of gRPC itself, on both sides. */
  async checkHealth(): Promise<void> {
    await this.#client.call('/grpc.health.v1.Health/Check', new Uint8Array());
  }

  close(): void {
    this.#client.close();
  }
}

export function attachmentOf(containerId: string) {
  return { network: 'podwire', containerId, interfaceName: 'eth0' };
}

let containers = 0;

/** An ID that no other call of this process uses. */
export function newContainerId(): string {
  return (containers++).toString(16).padStart(64, '0');
}

/**
 * Waits until the service has read its datastore: earlier calls wait for that, each until its own deadline.
 * @throws Error of the last call when it takes longer than two minutes
 */
export async function untilServing(caller: IpamCaller): Promise<void> {
  for (const startMs = performance.now(); ;) {
    try {
      await caller.release(newContainerId());
      return;
    } catch (error) {
      if (performance.now() - startMs > 120_000) throw error;
      await sleep(50);
    }
  }
}

export interface Load {
  readonly callers: number;
  /** The callers are spread over this number of nodes. */
  readonly nodes: number;
  readonly warmUpMs: number;
  readonly measureMs: number;
}

/**
 * Callers that allocate one after the other, each as fast as it is answered.
 * @param services - each caller stays with one
 * @returns allocations per second
 */
export function allocationRate(services: readonly IpamCaller[], load: Load): Promise<number> {
  return callRate(load, async (number) => {
    await services[number % services.length]?.allocate(newContainerId(), `node-${number % load.nodes}`);
  });
}

/**
 * @param call - makes the next call of the caller of that number
 * @returns calls per second
 */
export async function callRate(
  { callers: count, warmUpMs, measureMs }: Omit<Load, 'nodes'>,
  call: (caller: number) => Promise<unknown>,
): Promise<number> {
  let called = 0;
  let stopped = false;
  const run = async (number: number): Promise<void> => {
    while (!stopped) {
      await call(number);
      called++;
    }
  };
  const callers = Array.from({ length: count }, (_, number) => run(number));
  const failed = Promise.all(callers);
  await Promise.race([sleep(warmUpMs), failed]);
  const [before, startMs] = [called, performance.now()];
  await Promise.race([sleep(measureMs), failed]);
  const rate = ((called - before) / (performance.now() - startMs)) * 1000;
  stopped = true;
  await failed;
  return rate;
}

/** Milliseconds of one call. */
export async function timed(call: () => Promise<unknown>): Promise<number> {
  const startMs = performance.now();
  await call();
  return performance.now() - startMs;
}
