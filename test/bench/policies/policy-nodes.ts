import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

import {
  AnnouncePodRequest,
  AnnouncePodResponse,
  FollowPoliciesRequest,
} from '@podwire/proto/podwire/ipam/v1/network_policy';

import { nodeNameOf } from '../ipam/population.js';
import { LightClient } from '../ipam/light-client.js';
import { parsePolicyMessage } from './policy-message.js';

const SERVICE = '/podwire.ipam.v1.NetworkPolicyService';

const MAX_WAIT_MS = 300_000;

export interface NodeEvents {
  /** A set of a node has got an address, as a number. */
  readonly added: (address: number) => void;
  /** A node has got a message. */
  readonly received: (node: number) => void;
}

/**
 * Nodes that follow the policies and acknowledge each message at once, each over a connection of its own. Their messages are
 * parsed no further than needed: 5,000 clients that decode would be the load.
 */
export class PolicyNodes {
  readonly nodes: readonly PolicyNode[];
  readonly events: NodeEvents;

  constructor(count: number, connect: (node: number) => Promise<LightClient>, events: NodeEvents) {
    this.events = events;
    this.nodes = Array.from({ length: count }, (_, node) => new PolicyNode(node, () => connect(node), events));
  }

  /** Connects all nodes, and follows over each connection at once. */
  async follow(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.follow()));
  }

  /** Waits until each node has its snapshot. */
  async untilComplete(): Promise<void> {
    for (const startMs = performance.now(); this.nodes.some(({ isComplete }) => !isComplete);) {
      const ended = this.nodes.find(({ failure }) => failure !== undefined);
      if (ended) throw new Error(`a stream was ended: ${ended.failure}`);
      if (performance.now() - startMs > MAX_WAIT_MS) throw new Error('the nodes do not get their policies');
      await sleep(5);
    }
  }

  /** Bytes that all nodes have received. */
  get bytes(): number {
    return this.nodes.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  get messages(): number {
    return this.nodes.reduce((sum, { messages }) => sum + messages, 0);
  }

  close(): void {
    for (const node of this.nodes) node.close();
  }
}

export class PolicyNode {
  readonly name: string;
  isComplete = false;
  bytes = 0;
  messages = 0;
  /** Why the stream has ended. */
  failure: string | undefined;
  readonly #node: number;
  readonly #connect: () => Promise<LightClient>;
  #client: LightClient | undefined;
  readonly #events: NodeEvents;
  #send: (request: Uint8Array) => void = () => undefined;

  constructor(node: number, connect: () => Promise<LightClient>, events: NodeEvents) {
    this.name = nodeNameOf(node);
    this.#node = node;
    this.#connect = connect;
    this.#events = events;
  }

  /** The node's connection. @throws Error before it follows */
  get client(): LightClient {
    if (!this.#client) throw new Error(`${this.name}: is not connected`);
    return this.#client;
  }

  async follow(): Promise<void> {
    this.#client = await this.#connect();
    const request = encodeRequest({ nodeName: this.name });
    this.#send = this.client.exchange(`${SERVICE}/FollowPolicies`, request, {
      received: (message) => this.#read(message),
      ended: (error) => (this.failure = error?.message ?? 'by podwire-ipam'),
    });
  }

  /** @returns the number of nodes that podwire-ipam has waited for */
  async announce(
    pod: { readonly namespace: string; readonly name: string; readonly uid: string },
    allocation: { readonly address: string; readonly sequenceNumber: bigint },
  ): Promise<number> {
    const request = AnnouncePodRequest.fromPartial({ nodeName: this.name, pod, addresses: [allocation] });
    const answer = await this.client.call(`${SERVICE}/AnnouncePod`, AnnouncePodRequest.encode(request).finish());
    return AnnouncePodResponse.decode(answer).nodes;
  }

  close(): void {
    this.#client?.close();
  }

  #read(bytes: Buffer): void {
    this.bytes += bytes.length;
    this.messages++;
    const { number, isComplete } = parsePolicyMessage(bytes, this.isComplete ? this.#events.added : undefined);
    this.isComplete ||= isComplete;
    this.#events.received(this.#node);
    this.#send(encodeRequest({ acknowledgedNumber: BigInt(number) }));
  }
}

function encodeRequest(fields: Partial<FollowPoliciesRequest>): Uint8Array {
  return FollowPoliciesRequest.encode(FollowPoliciesRequest.fromPartial(fields)).finish();
}
