import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

import { shareOf, type Share } from '../addresses/mode.js';
import {
  readAttachConfig,
  readNetworkConfig,
  readNodeConfig,
  type AttachConfig,
  type NetworkConfig,
} from '../cni/config.js';
import {
  checkNodeEnvironment,
  readDelEnvironment,
  readPodEnvironment,
  type Pod,
  type Variables,
} from '../cni/environment.js';
import { wishOf, type Wish } from '../cni/pod-request.js';

/** A CNI command as the container runtime sent it. */
export interface CniRequest {
  /** Name that the executable was run as; undefined where the request does not come from the shim. */
  readonly plugin: string | undefined;
  /** What the shim states of its release; undefined where it states none. */
  readonly shimRelease?: string | undefined;
  readonly variables: Variables;
  /**
   * Whether the node's own network namespace is meant where CNI_NETNS names it. No specification has the variable, CNI_NETNS_OVERRIDE;
   * it is of Go's library for plugins (containernetworking/cni, pkg/skel), which refuses a plugin's own namespace without it.
   */
  readonly overridesNetns?: boolean;
  /** The network configuration, JSON in UTF-8. */
  readonly configuration: string;
  /** W3C trace context: `traceparent`, `tracestate`, `baggage`. */
  readonly traceContext: Readonly<Record<string, string | undefined>>;
  /** Whether STATUS fails whenever an ADD would, regardless of the plugin's setting; set by `podwirectl node ready`. */
  readonly isStrict?: boolean;
  /** When the shim started, in epoch nanoseconds, where it is known. */
  readonly startedNs: bigint | undefined;
  /** When the request arrived, in epoch nanoseconds. */
  readonly arrivedNs: bigint;
  /** Fires when the caller disconnects. */
  readonly cancel: AbortController;
}

/** When the runtime began the command, in epoch milliseconds; when its request arrived, where that is not known. */
export function begunAtMs({ startedNs, arrivedNs }: Pick<CniRequest, 'startedNs' | 'arrivedNs'>): number {
  return Number((startedNs ?? arrivedNs) / NS_PER_MS);
}

/** What a command is about. */
export interface AttachmentRequest<Config extends NetworkConfig = NetworkConfig> {
  readonly attachment: Attachment;
  /** The Kubernetes pod, where the runtime names one. */
  readonly pod: Pod | undefined;
  readonly config: Config;
  /** What of the pod's network is to be done here. */
  readonly share: Share;
}

export interface DelRequest extends AttachmentRequest {
  /** Absolute path of the pod's network namespace, where the runtime names one; it may lead nowhere by now, or to another pod's. */
  readonly netns: string | undefined;
}

export interface PodRequest extends AttachmentRequest<AttachConfig> {
  /** Path of the pod's network namespace. */
  readonly netns: string;
  /** Whether that may be the node's own, where no wire is made. */
  readonly overridesNetns: boolean;
  /** What the pod is to get of all that was asked for. */
  readonly wish: Wish;
  /** The whole network configuration, a JSON object, for keys that one share alone has. */
  readonly configuration: string;
}

/** What a command about the node is about. */
export interface NodeRequest {
  /** Name of the network. */
  readonly network: string;
  /** Name of the node instead of the plugin's own setting. */
  readonly nodeName: string | undefined;
  /** What a pod gets that asks for nothing. */
  readonly wish: Wish;
  readonly share: Share;
}

/** Checks all of a request that works inside a pod. @throws Failure that lists all faults of environment and configuration */
export function readPodRequest(command: 'ADD' | 'CHECK', request: CniRequest): PodRequest {
  const { variables, configuration, overridesNetns = false } = request;
  const [{ netns, pod, asked, ...container }, config] = readBoth(
    () => readPodEnvironment(command, variables),
    () => readAttachConfig(command, configuration),
  );
  const wish = wishOf(config.requested, asked);
  const share = shareOf(request, config.otherIpam);
  const attachment = { network: config.name, ...container };
  return { attachment, netns, overridesNetns, pod, config, wish, share, configuration };
}

/** Checks all of a DEL. @throws Failure that lists all faults of environment and configuration */
export function readDelRequest(request: CniRequest): DelRequest {
  const { variables, configuration } = request;
  const [{ netns, pod, containerId, interfaceName }, config] = readBoth(
    () => readDelEnvironment(variables),
    () => readNetworkConfig(configuration),
  );
  const share = shareOf(request, config.otherIpam);
  return { attachment: { network: config.name, containerId, interfaceName }, netns, pod, config, share };
}

/** Validates a node command, except for its own keys. @throws Failure that lists all faults */
export function readNodeRequest(command: 'GC' | 'STATUS', request: CniRequest): NodeRequest {
  const { variables, configuration } = request;
  const [, config] = readBoth(
    () => checkNodeEnvironment(command, variables),
    () => readNodeConfig(command, configuration),
  );
  const wish = wishOf(config.requested, { addresses: undefined, mac: undefined });
  const { name: network, nodeName } = config;
  return { network, nodeName, wish, share: shareOf(request, config.otherIpam) };
}

function readBoth<First, Second>(readFirst: () => First, readSecond: () => Second): [First, Second] {
  const failures: Failure[] = [];
  const first = collect(readFirst, failures);
  const second = collect(readSecond, failures);
  if (!first || !second) throw joined(failures);
  return [first.value, second.value];
}

function collect<Value>(read: () => Value, failures: Failure[]): { readonly value: Value } | undefined {
  try {
    return { value: read() };
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    failures.push(failure);
    return undefined;
  }
}

/** All faults in one failure, under the code of the first: an answer has room for one code. */
function joined(failures: readonly Failure[]): Failure {
  const code = failures[0]?.code ?? 'INTERNAL';
  return new Failure(code, failures.map(({ message }) => message).join('; '), {
    violations: failures.flatMap(({ violations }) => violations),
    details: Object.fromEntries(failures.flatMap(({ details }) => Object.entries(details))),
  });
}

/** Why a command ends that the end of the process cuts off: the next process carries it out. */
export class Stopping extends Failure {
  /** @param rest - what cannot be left to the next process, where that is why the command is not done */
  constructor(rest?: string) {
    const reason = 'podwire-plugin is being stopped, and the next one carries it out; repeat it';
    super('CANCELLED', rest === undefined ? reason : `${reason}: ${rest}`);
  }
}

export const NS_PER_MS = 1_000_000n;

/** A time that only moves forward, in milliseconds with their fractions. */
export interface Stopwatch {
  now(): number;
}

/**
 * Wall clock in epoch nanoseconds, to compare with that of the shim, which ends before a clock of whole milliseconds moves on.
 * The fractions are a stopwatch's, kept within the clock's millisecond, however long the two run and drift apart.
 */
export function wallTimeNs(clock: Clock, stopwatch: Stopwatch): () => bigint {
  let offsetMs = clock.nowMs() - stopwatch.now();
  return () => {
    const earliestMs = clock.nowMs();
    const latestMs = earliestMs + 1;
    const elapsedMs = stopwatch.now();
    offsetMs = Math.min(Math.max(offsetMs, earliestMs - elapsedMs), latestMs - elapsedMs);
    const fractionNs = Math.floor((offsetMs + elapsedMs - earliestMs) * Number(NS_PER_MS));
    return BigInt(earliestMs) * NS_PER_MS + BigInt(fractionNs);
  };
}
