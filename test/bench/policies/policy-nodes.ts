import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

import {
  AnnouncePodRequest,
  AnnouncePodResponse,
  FollowPoliciesRequest,
  type PolicyPodName,
} from '@podwire/proto/podwire/ipam/v1/network_policy';

import type { LightClient } from '../ipam/light-client.js';
import { nodeNameOf } from '../ipam/population.js';
import type { Lease } from './node-leases.js';
import { parsePolicyMessage } from './policy-message.js';

const SERVICE = '/podwire.ipam.v1.NetworkPolicyService';

const MAX_WAIT_MS = 300_000;

/** Handshakes at once: podwire-ipam closes a connection that has no call for 10 s. */
const CONNECTING = 32;

export interface NodeEvents {
  /** A node has got a message, after its snapshot. */
  received: () => void;
  /** The message adds an IPv4 address to a set. */
  added: (address: number) => void;
}

/**
 * Nodes that follow the policies and acknowledge each message at once, each over a connection of its own. They parse their
 * messages no further than necessary: 5,000 clients that decode would be the load.
 */
export class PolicyNodes {
  readonly nodes: readonly PolicyNode[];
  /** Replaced by the measurement that runs. */
  readonly events: NodeEvents = { received: () => undefined, added: () => undefined };

  /** @param connect - connects the node of a number */
  constructor(count: number, connect: (node: number) => Promise<LightClient>) {
    this.nodes = Array.from({ length: count }, (_, node) => new PolicyNode(node, () => connect(node), this.events));
  }

  async connect(): Promise<void> {
    const left = [...this.nodes];
    const run = async (): Promise<void> => {
      for (let node = left.pop(); node; node = left.pop()) await node.connect();
    };
    await Promise.all(Array.from({ length: CONNECTING }, run));
  }

  /** Follows with all nodes at once, and waits until each has its snapshot. */
  async follow(): Promise<void> {
    for (const node of this.nodes) node.follow();
    for (const startMs = performance.now(); this.nodes.some(({ isComplete }) => !isComplete);) {
      const failed = this.nodes.find(({ failure }) => failure !== undefined);
      if (failed) throw new Error(`${failed.name}: its stream was ended: ${failed.failure}`);
      if (performance.now() - startMs > MAX_WAIT_MS) throw new Error('the nodes do not get their policies');
      await sleep(5);
    }
  }

  /** Bytes of all snapshots. */
  get snapshotBytes(): number {
    return this.nodes.reduce((sum, node) => sum + node.snapshotBytes, 0);
  }

  close(): void {
    for (const node of this.nodes) node.close();
  }
}

export class PolicyNode {
  readonly name: string;
  /** Whether it has its snapshot. */
  isComplete = false;
  snapshotBytes = 0;
  /** Why its stream has ended. */
  failure: string | undefined;
  readonly #connect: () => Promise<LightClient>;
  readonly #events: NodeEvents;
  #client: LightClient | undefined;
  #send: (request: Uint8Array) => void = () => undefined;

  constructor(node: number, connect: () => Promise<LightClient>, events: NodeEvents) {
    this.name = nodeNameOf(node);
    this.#connect = connect;
    this.#events = events;
  }

  /** Its connection. @throws Error before it is connected */
  get client(): LightClient {
    if (!this.#client) throw new Error(`${this.name}: it is not connected`);
    return this.#client;
  }

  /** Also makes a first call. */
  async connect(): Promise<void> {
    this.#client = await this.#connect();
    await this.#client.call('/grpc.health.v1.Health/Check', new Uint8Array());
  }

  follow(): void {
    this.#send = this.client.exchange(`${SERVICE}/FollowPolicies`, encodeRequest({ nodeName: this.name }), {
      received: (message) => this.#read(message),
      ended: (error) => (this.failure = error?.message ?? 'see the log of podwire-ipam'),
    });
  }

  /** @returns the number of nodes that podwire-ipam has waited for */
  async announce(pod: PolicyPodName, lease: Lease): Promise<number> {
    const request = AnnouncePodRequest.fromPartial({ nodeName: this.name, pod, addresses: [lease] });
    const answer = await this.client.call(`${SERVICE}/AnnouncePod`, AnnouncePodRequest.encode(request).finish());
    return AnnouncePodResponse.decode(answer).nodes;
  }

  close(): void {
    this.#client?.close();
  }

  #read(bytes: Buffer): void {
    const { received, added } = this.#events;
    const { number, isComplete } = parsePolicyMessage(bytes, this.isComplete ? added : undefined);
    if (this.isComplete) received();
    else this.snapshotBytes += bytes.length;
    this.isComplete ||= isComplete;
    this.#send(encodeRequest({ acknowledgedNumber: BigInt(number) }));
  }
}

function encodeRequest(fields: Partial<FollowPoliciesRequest>): Uint8Array {
  return FollowPoliciesRequest.encode(FollowPoliciesRequest.fromPartial(fields)).finish();
}
