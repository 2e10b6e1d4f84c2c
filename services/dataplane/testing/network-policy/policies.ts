import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  FollowPoliciesResponse,
  NetworkPolicyServiceService,
  type FollowPoliciesRequest,
  PolicyAction,
  PolicyDirection,
  PolicyProfile,
  type PolicyPod,
  type PolicyRule as RuleMessage,
  type PolicySet,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import type { Failure } from '@podwire/shared/failure/failure';
import { parseAddress, type Address } from '@podwire/shared/net/address';
import type { PolicyRule, Profile } from '@podwire/shared/network-policy/policy';
import { rangeOf, type AddressRange } from '@podwire/shared/network-policy/ranges';

import { RpcServer } from '@podwire/shared/rpc/server';
import { systemClock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';

import { addressBytes } from '../../network-policy/messages.js';
import { prefix } from '../nft.js';

/** Network policies for tests, as values and as podwire-ipam's messages. */

export function address(text: string): Address {
  const parsed = parseAddress(text);
  if (!parsed) throw new Error(`${text} must be an address`);
  return parsed;
}

export const network = (cidr: string): AddressRange => rangeOf(prefix(cidr));

export function profile(fields: Partial<Profile> & Pick<Profile, 'id' | 'direction'>): Profile {
  return { admin: [], isolatedBy: [], rules: [], baseline: [], ...fields };
}

/** A profile that denies everything. */
export const denied = (id: string, direction: Profile['direction']) =>
  profile({ id, direction, isolatedBy: ['NetworkPolicy default/deny'] });

export function accept(fields: Partial<PolicyRule> = {}): PolicyRule {
  return { policy: 'NetworkPolicy default/allow', action: 'accept', peers: undefined, ports: undefined, ...fields };
}

/** `10.0.0.1`, or `10.0.0.1 6 80`. */
export function member(text: string, sequenceNumber = 1n) {
  const [at = '', protocol = '0', port = '0'] = text.split(' ');
  return { address: addressBytes(address(at)), sequenceNumber, protocol: Number(protocol), port: Number(port) };
}

export function wholeSet(id: string, members: readonly string[]): PolicySet {
  return { id, isWhole: true, added: members.map((text) => member(text)), removed: [] };
}

/** A pod of the namespace `default`. */
export function podMessage(name: string, profiles: { readonly ingress?: string; readonly egress?: string }): PolicyPod {
  const pod = { namespace: 'default', name, uid: `uid-${name}` };
  return { pod, ingressProfile: profiles.ingress ?? '', egressProfile: profiles.egress ?? '' };
}

const ACTIONS = {
  accept: PolicyAction.POLICY_ACTION_ACCEPT,
  deny: PolicyAction.POLICY_ACTION_DENY,
  pass: PolicyAction.POLICY_ACTION_PASS,
} as const;

const DIRECTIONS = {
  ingress: PolicyDirection.POLICY_DIRECTION_INGRESS,
  egress: PolicyDirection.POLICY_DIRECTION_EGRESS,
} as const;

function profileMessage({ id, direction, admin, isolatedBy, rules, baseline }: Profile): PolicyProfile {
  const ruleMessages = (list: readonly PolicyRule[]) => list.map(ruleMessage);
  return PolicyProfile.fromPartial({
    id,
    direction: DIRECTIONS[direction],
    admin: ruleMessages(admin),
    isolatedBy: [...isolatedBy],
    rules: ruleMessages(rules),
    baseline: ruleMessages(baseline),
  });
}

function ruleMessage({ policy, action, peers, ports }: PolicyRule): RuleMessage {
  return {
    policy,
    action: ACTIONS[action],
    peers: peers && {
      sets: [...peers.sets],
      networks: peers.networks.map(({ first, last }) => ({ first: addressBytes(first), last: addressBytes(last) })),
    },
    ports: ports && { ranges: [...ports.ranges], sets: [...ports.sets] },
  };
}

interface MessageFields {
  readonly number?: bigint;
  readonly isComplete?: boolean;
  readonly profiles?: readonly Profile[];
  readonly sets?: readonly PolicySet[];
  readonly pods?: readonly PolicyPod[];
  readonly removedPods?: readonly string[];
  readonly removedIds?: readonly string[];
  /** Namespaces with policies. */
  readonly namespaces?: readonly string[];
}

export function message(fields: MessageFields): FollowPoliciesResponse {
  const { number = 1n, isComplete = false, profiles = [], namespaces } = fields;
  return FollowPoliciesResponse.fromPartial({
    number,
    isComplete,
    sets: [...(fields.sets ?? [])],
    profiles: profiles.map(profileMessage),
    pods: [...(fields.pods ?? [])],
    removedPods: (fields.removedPods ?? []).map((name) => podMessage(name, {}).pod!),
    removedIds: [...(fields.removedIds ?? [])],
    ...(namespaces && { unknownPods: { all: false, namespaces: [...namespaces] } }),
  });
}

/** podwire-ipam's service of network policies, with messages that a test sends. */
export class FakePolicies {
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-fake-policies-'));
  readonly address = `unix:${join(this.folder, 'ipam.sock')}`;
  /** Requests of streams, oldest first. */
  readonly requests: FollowPoliciesRequest[] = [];
  /** Acknowledged numbers with their streams, oldest first. */
  readonly acknowledged: string[] = [];
  /** Announced pods with their addresses, oldest first. */
  readonly announced: string[] = [];
  /** Other nodes have an announced pod's addresses in force when it resolves, with their number. */
  spread: () => Promise<number> = () => Promise.resolve(1);
  /** The failure of the next stream. */
  refusal: Failure | undefined;
  /** The refusal is also that of every later stream. */
  refusesAlways = false;
  #snapshot: readonly FollowPoliciesResponse[] = [];
  #streams: MessageQueue[] = [];
  #server: RpcServer | undefined;

  async start(): Promise<void> {
    const service = NetworkPolicyServiceService;
    const server = new RpcServer({
      addresses: [this.address],
      log: createLogger({ service: 'test', level: 'fatal' }),
      clock: systemClock,
      defaultCallTimeoutMs: 10_000,
      drainTimeoutMs: 100,
      services: (unary, streaming) => [
        {
          name: 'podwire.ipam.v1.NetworkPolicyService',
          definition: service,
          implementation: {
            followPolicies: streaming(service.followPolicies, (request, { signal, onRequest }) => {
              const stream = `${request.nodeName} stream-${this.requests.length + 1}`;
              onRequest(({ acknowledgedNumber }) => this.acknowledged.push(`${stream} ${acknowledgedNumber}`));
              return this.#follow(request, signal);
            }),
            announcePod: unary(service.announcePod, async ({ nodeName, pod, addresses }) => {
              const texts = addresses.map(({ address, sequenceNumber }) => `${address} ${sequenceNumber}`);
              this.announced.push(`${nodeName} ${pod?.namespace}/${pod?.name} ${pod?.uid} ${texts.join()}`);
              return { nodes: await this.spread() };
            }),
          },
        },
      ],
    });
    await server.listen();
    this.#server = server;
  }

  async stop(): Promise<void> {
    await this.#server?.stop();
    this.#server = undefined;
  }

  async dispose(): Promise<void> {
    await this.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** Sets the messages with which streams begin. */
  set snapshot(messages: readonly FollowPoliciesResponse[]) {
    this.#snapshot = messages;
  }

  /** Sends a change to all streams. */
  send(change: FollowPoliciesResponse): void {
    for (const stream of this.#streams) stream.push(change);
  }

  /** Ends all streams. */
  cut(): void {
    for (const stream of this.#streams) stream.end();
  }

  async *#follow(request: FollowPoliciesRequest, signal: AbortSignal): AsyncGenerator<FollowPoliciesResponse> {
    this.requests.push(request);
    const { refusal } = this;
    if (!this.refusesAlways) this.refusal = undefined;
    if (refusal) throw refusal;
    const queue = new MessageQueue(this.#snapshot);
    signal.addEventListener('abort', () => queue.end());
    this.#streams.push(queue);
    let number = 0n;
    for await (const each of queue) yield { ...each, number: ++number };
    this.#streams = this.#streams.filter((stream) => stream !== queue);
  }
}

class MessageQueue {
  readonly #messages: FollowPoliciesResponse[];
  #isEnded = false;
  #wake: () => void = () => undefined;

  constructor(messages: readonly FollowPoliciesResponse[]) {
    this.#messages = [...messages];
  }

  push(next: FollowPoliciesResponse): void {
    this.#messages.push(next);
    this.#wake();
  }

  end(): void {
    this.#isEnded = true;
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FollowPoliciesResponse> {
    while (!this.#isEnded) {
      const next = this.#messages.shift();
      if (next) yield next;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}
