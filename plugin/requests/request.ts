import type { PodName } from '@podwire/shared/attachment/allocation';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { NS_PER_MS } from '@podwire/shared/runtime/wall-clock';

import { modeOf, type Mode } from '../addresses/address-provider.js';
import {
  readAttachConfig,
  readNetworkConfig,
  readNodeConfig,
  type AttachConfig,
  type NetworkConfig,
} from '../cni/config.js';
import { checkNodeEnvironment, readDelEnvironment, readPodEnvironment, type Variables } from '../cni/environment.js';
import { resolvePodRequest, type PodRequest } from '../cni/pod-request.js';

/** A CNI command as the container runtime sent it. */
export interface CniRequest {
  /** Name under which the shim was executed; undefined if the request does not come from the shim. */
  readonly plugin: string | undefined;
  /** Release of the shim, if it states one. */
  readonly shimRelease?: string | undefined;
  readonly variables: Variables;
  /**
   * CNI_NETNS_OVERRIDE: allows CNI_NETNS to be the node's own network namespace. No specification has it; it is of Go's plugin
   * library (containernetworking/cni, pkg/skel).
   */
  readonly overridesNetns?: boolean;
  /** The network configuration, JSON in UTF-8. */
  readonly configuration: string;
  /** W3C trace context: `traceparent`, `tracestate`, `baggage`. */
  readonly traceContext: Readonly<Record<string, string | undefined>>;
  /** Whether STATUS fails whenever an ADD would, regardless of the plugin's setting; set by `podwirectl node ready`. */
  readonly isStrict?: boolean;
  /** Whether the shim wrote it to the spool, as no process listened. It arrived at that time. */
  readonly isSpooled?: boolean;
  /** When the shim started, in epoch nanoseconds, if known. */
  readonly startedNs: bigint | undefined;
  /** When the request arrived, in epoch nanoseconds. */
  readonly arrivedNs: bigint;
  /** Fires when the caller disconnects. */
  readonly cancel: AbortController;
}

/** When the runtime started the command, or else when its request arrived; in epoch milliseconds. */
export function startedAtMs({ startedNs, arrivedNs }: Pick<CniRequest, 'startedNs' | 'arrivedNs'>): number {
  return Number((startedNs ?? arrivedNs) / NS_PER_MS);
}

/** A validated ADD, CHECK or DEL. */
export interface ContainerRequest<Config extends NetworkConfig = NetworkConfig> {
  readonly attachment: Attachment;
  /** The Kubernetes pod, if the runtime names one. */
  readonly pod: PodName | undefined;
  readonly config: Config;
  readonly mode: Mode;
}

export interface DelRequest extends ContainerRequest {
  /** Absolute path of the pod's network namespace, if the runtime names one. It may no longer exist, or be another pod's. */
  readonly netns: string | undefined;
}

export interface AttachRequest extends ContainerRequest<AttachConfig> {
  /** Path of the pod's network namespace. */
  readonly netns: string;
  /** Whether it may be the node's own; ipam-only mode. */
  readonly overridesNetns: boolean;
  readonly podRequest: PodRequest;
  /** The whole network configuration, a JSON object, for keys of one mode only. */
  readonly configuration: string;
}

/** A validated GC or STATUS. */
export interface NodeRequest {
  /** Name of the network. */
  readonly network: string;
  /** Name of the node instead of the plugin's own setting. */
  readonly nodeName: string | undefined;
  /** The request of a pod without requests of its own. */
  readonly podRequest: PodRequest;
  readonly mode: Mode;
}

/** A node has few networks, and all pods of a network without capabilities send the same text. */
const KEPT_COUNT = 8;

/** A longer text has values of its pod, and is not worth the memory, in characters. */
const LONGEST_TEXT = 16_384;

/** Remembers the last results of a function of a text. Callers do not change a result. A failure is not remembered. */
function remembered<Result extends object>(read: (text: string) => Result): (text: string) => Result {
  const results = new Map<string, Result>();
  return (text) => {
    const known = results.get(text);
    if (known) return known;
    const result = read(text);
    if (text.length > LONGEST_TEXT) return result;
    const [oldest] = results.keys();
    if (oldest !== undefined && results.size >= KEPT_COUNT) results.delete(oldest);
    results.set(text, result);
    return result;
  };
}

const ATTACH_CONFIGS = {
  ADD: remembered((text) => readAttachConfig('ADD', text)),
  CHECK: (text: string) => readAttachConfig('CHECK', text),
};

/** An ADD of another IPAM plugin that is refused never called it: its DEL has nothing to release there. */
const readDelConfig = remembered((text) => {
  const config = readNetworkConfig(text);
  const isRefused = config.otherIpam !== undefined && !collectFailure(() => ATTACH_CONFIGS.ADD(text), []);
  return isRefused ? { ...config, otherIpam: undefined } : config;
});

/** Validates an ADD or CHECK. @throws Failure that lists all faults of environment and configuration */
export function readAttachRequest(command: 'ADD' | 'CHECK', request: CniRequest): AttachRequest {
  const { variables, configuration, overridesNetns = false } = request;
  const [{ netns, pod, argsRequest, ...container }, config] = readBoth(
    () => readPodEnvironment(command, variables),
    () => ATTACH_CONFIGS[command](configuration),
  );
  const podRequest = resolvePodRequest(config.requestSources, argsRequest);
  const mode = modeOf(request, config.otherIpam);
  const attachment = { network: config.name, ...container };
  return { attachment, netns, overridesNetns, pod, config, podRequest, mode, configuration };
}

/** Validates a DEL. @throws Failure that lists all faults of environment and configuration */
export function readDelRequest(request: CniRequest): DelRequest {
  const { variables, configuration } = request;
  const [{ netns, pod, containerId, interfaceName }, config] = readBoth(
    () => readDelEnvironment(variables),
    () => readDelConfig(configuration),
  );
  const mode = modeOf(request, config.otherIpam);
  return { attachment: { network: config.name, containerId, interfaceName }, netns, pod, config, mode };
}

/** Validates a node command, except for its own keys. @throws Failure that lists all faults */
export function readNodeRequest(command: 'GC' | 'STATUS', request: CniRequest): NodeRequest {
  const { variables, configuration } = request;
  const [, config] = readBoth(
    () => checkNodeEnvironment(command, variables),
    () => readNodeConfig(command, configuration),
  );
  const podRequest = resolvePodRequest(config.requestSources, { addresses: undefined, mac: undefined });
  const { name: network, nodeName } = config;
  return { network, nodeName, podRequest, mode: modeOf(request, config.otherIpam) };
}

function readBoth<First, Second>(readFirst: () => First, readSecond: () => Second): [First, Second] {
  const failures: Failure[] = [];
  const first = collectFailure(readFirst, failures);
  const second = collectFailure(readSecond, failures);
  if (!first || !second) throw joinFailures(failures);
  return [first.value, second.value];
}

function collectFailure<Value>(read: () => Value, failures: Failure[]): { readonly value: Value } | undefined {
  try {
    return { value: read() };
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    failures.push(failure);
    return undefined;
  }
}

/** Joins failures under the code of the first, as an error document has one code. */
function joinFailures(failures: readonly Failure[]): Failure {
  const code = failures[0]?.code ?? 'INTERNAL';
  return new Failure(code, failures.map(({ message }) => message).join('; '), {
    violations: failures.flatMap(({ violations }) => violations),
    details: Object.fromEntries(failures.flatMap(({ details }) => Object.entries(details))),
  });
}
