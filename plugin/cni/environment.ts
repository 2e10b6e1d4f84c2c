import { identifierFault, MAX_CONTAINER_ID_BYTES, podInterfaceNameFault } from '@podwire/shared/attachment/attachment';
import { Failure, violationsFailure, type Violation } from '@podwire/shared/failure/failure';

import { readAddresses, readMac } from './annotations.js';
import type { AskedInArgs } from './pod-request.js';

/** What a container runtime can ask for (CNI specification 1.1.0, section 2). */
export const COMMANDS = ['ADD', 'DEL', 'CHECK', 'GC', 'STATUS', 'VERSION'] as const;

export type Command = (typeof COMMANDS)[number];

/** The environment variables in which a runtime passes a command (the same section). */
export const VARIABLES = ['CNI_COMMAND', 'CNI_CONTAINERID', 'CNI_NETNS', 'CNI_IFNAME', 'CNI_ARGS', 'CNI_PATH'] as const;

export type Variable = (typeof VARIABLES)[number];

/** The variables as the runtime set them. An empty one counts as absent: so libcni sends those that do not apply. */
export type Variables = Readonly<Partial<Record<Variable, string>>>;

/** One interface of one container. */
export interface ContainerEnvironment {
  readonly containerId: string;
  readonly interfaceName: string;
  /** The Kubernetes pod, where the runtime names one. */
  readonly pod: Pod | undefined;
  /** What CNI_ARGS asks for. */
  readonly asked: AskedInArgs;
}

/** The same with the network namespace that it is in. */
export interface PodEnvironment extends ContainerEnvironment {
  /** Absolute path of the pod's network namespace. */
  readonly netns: string;
}

/** Variables that a command cannot do without; those that are not here need none. */
const REQUIRED = {
  ADD: ['CNI_CONTAINERID', 'CNI_NETNS', 'CNI_IFNAME'],
  CHECK: ['CNI_CONTAINERID', 'CNI_NETNS', 'CNI_IFNAME'],
  DEL: ['CNI_CONTAINERID', 'CNI_IFNAME'],
  GC: ['CNI_PATH'],
  STATUS: [],
} as const satisfies Partial<Record<Command, readonly Variable[]>>;

/** Why a variable's value is refused, or undefined. */
const FAULT: Partial<Record<Variable, (value: string) => string | undefined>> = {
  CNI_CONTAINERID: (value) => identifierFault(value, MAX_CONTAINER_ID_BYTES),
  CNI_IFNAME: podInterfaceNameFault,
  CNI_NETNS: (value) => (value.startsWith('/') ? undefined : 'is not an absolute path'),
};

/**
 * Reads the command.
 * @throws Failure INVALID_ENVIRONMENT when it is missing or unknown
 */
export function readCommand(variables: Variables): Command {
  const text = variables.CNI_COMMAND ?? '';
  const command = COMMANDS.find((known) => known === text);
  if (command !== undefined) return command;
  if (text === '') {
    const violation = { field: 'CNI_COMMAND', reason: `is missing; set it to one of ${COMMANDS.join(', ')}` };
    throw violationsFailure('INVALID_ENVIRONMENT', 'CNI environment refused', [violation]);
  }
  // libcni compares this very text.
  throw new Failure('INVALID_ENVIRONMENT', `unknown CNI_COMMAND: ${text}`);
}

/**
 * Reads the variables of a command that works inside a pod.
 * @throws Failure INVALID_ENVIRONMENT that lists everything that is missing or malformed
 */
export function readPodEnvironment(command: 'ADD' | 'CHECK', variables: Variables): PodEnvironment {
  return { netns: variables.CNI_NETNS ?? '', ...readContainer(command, variables) };
}

/** The environment of a DEL, which comes with an empty CNI_NETNS when the namespace is gone. */
export interface DelEnvironment extends ContainerEnvironment {
  /** Absolute path of the pod's network namespace; undefined where there is none, as a DEL does without. */
  readonly netns: string | undefined;
}

/**
 * Reads the variables of a DEL.
 * @throws Failure INVALID_ENVIRONMENT that lists everything that is missing or malformed
 */
export function readDelEnvironment(variables: Variables): DelEnvironment {
  const { CNI_NETNS: netns } = variables;
  return { netns: netns?.startsWith('/') ? netns : undefined, ...readContainer('DEL', variables) };
}

/**
 * Checks the variables of a node command. It ignores those of a container.
 * @throws Failure INVALID_ENVIRONMENT that lists everything that is missing
 */
export function checkNodeEnvironment(command: 'GC' | 'STATUS', variables: Variables): void {
  const violations = violationsOf(REQUIRED[command], variables);
  if (violations.length > 0) throw violationsFailure('INVALID_ENVIRONMENT', 'CNI environment refused', violations);
}

function readContainer(command: 'ADD' | 'CHECK' | 'DEL', variables: Variables): ContainerEnvironment {
  const violations = violationsOf(REQUIRED[command], variables);
  const { pod, asked, faults } = parseArgs(variables.CNI_ARGS ?? '');
  // Only ADD uses it. A DEL that fails for it would never succeed.
  if (command === 'ADD') violations.push(...faults.map((reason) => ({ field: 'CNI_ARGS', reason })));
  if (violations.length > 0) throw violationsFailure('INVALID_ENVIRONMENT', 'CNI environment refused', violations);
  return { containerId: variables.CNI_CONTAINERID ?? '', interfaceName: variables.CNI_IFNAME ?? '', pod, asked };
}

/** What is malformed, and behind that what is missing. Only what a command cannot do without is looked at. */
function violationsOf(required: readonly Variable[], variables: Variables): Violation[] {
  const [missing, present] = [required.filter((name) => !variables[name]), required.filter((name) => variables[name])];
  const malformed = present.flatMap((name) => {
    const value = variables[name] ?? '';
    const reason = FAULT[name]?.(value);
    return reason === undefined ? [] : [{ field: name, reason: `is ${JSON.stringify(value)}: ${reason}` }];
  });
  return [...malformed, ...missing.map((name) => ({ field: name, reason: 'is missing' }))];
}

/** A Kubernetes pod, as the container runtime names it in CNI_ARGS. */
export interface Pod {
  readonly namespace: string;
  readonly name: string;
  /** Empty when the runtime did not pass it on. */
  readonly uid: string;
}

interface ParsedArgs {
  /** The pod, where both its namespace and its name are given. */
  readonly pod: Pod | undefined;
  /** Requested addresses (`IP`, comma-separated) and MAC address (`MAC`). */
  readonly asked: AskedInArgs;
  /** All that is wrong with the text; empty when it is valid. */
  readonly faults: readonly string[];
}

/** The keys that Kubernetes' runtimes send. Those that have no use here are known all the same. */
const KNOWN_KEYS = [
  'IgnoreUnknown',
  'K8S_POD_NAMESPACE',
  'K8S_POD_NAME',
  'K8S_POD_INFRA_CONTAINER_ID',
  'K8S_POD_UID',
  'IP',
  'MAC',
] as const;

/** Reads CNI_ARGS: `KEY=VALUE;KEY=VALUE`, in any order. Unknown keys are faults unless `IgnoreUnknown` is set. */
export function parseArgs(text: string): ParsedArgs {
  const { values, faults } = splitPairs(text);
  const ignoreUnknown = readFlag(values.get('IgnoreUnknown') ?? '0');
  if (ignoreUnknown === undefined) faults.push('IgnoreUnknown is not one of 1, true, 0, false');
  const unknown = [...values.keys()].filter((key) => !KNOWN_KEYS.some((known) => known === key));
  if (ignoreUnknown === false && unknown.length > 0) {
    faults.push(`has the unknown keys ${unknown.join(', ')}; send IgnoreUnknown=1 to have them ignored`);
  }
  const pod = readPod(values, faults);
  return { pod, asked: readAsked(values, faults), faults };
}

function splitPairs(text: string): { readonly values: Map<string, string>; readonly faults: string[] } {
  const values = new Map<string, string>();
  const faults: string[] = [];
  for (const pair of text.split(';')) {
    const separator = pair.indexOf('=');
    if (separator > 0) values.set(pair.slice(0, separator), pair.slice(separator + 1));
    else if (pair !== '') faults.push(`holds ${JSON.stringify(pair)}, which is not of the form KEY=VALUE`);
  }
  return { values, faults };
}

/** The two spellings that Go's CNI library takes for each value, in any case. */
function readFlag(text: string): boolean | undefined {
  const word = text.toLowerCase();
  if (word === '1' || word === 'true') return true;
  return word === '0' || word === 'false' ? false : undefined;
}

/** Faults already say that they are of CNI_ARGS, so that they need the key alone. */
function readAsked(values: ReadonlyMap<string, string>, faults: string[]): AskedInArgs {
  const texts = (values.get('IP') ?? '').split(',').filter((text) => text !== '');
  const refuse = (key: string) => (violation: Violation) => faults.push(`${key} ${violation.reason}`);
  return {
    addresses: readAddresses('CNI_ARGS IP', texts, refuse('IP')),
    mac: readMac('CNI_ARGS MAC', values.get('MAC') ?? '', refuse('MAC')),
  };
}

/** podman names the container in K8S_POD_NAME, without a namespace: that is no pod. */
function readPod(values: ReadonlyMap<string, string>, faults: string[]): Pod | undefined {
  const namespace = values.get('K8S_POD_NAMESPACE') ?? '';
  const name = values.get('K8S_POD_NAME') ?? '';
  if (namespace === '' || name === '') return undefined;
  if (!isLabel(namespace)) faults.push('K8S_POD_NAMESPACE is no name of a Kubernetes namespace');
  if (!isSubdomain(name)) faults.push('K8S_POD_NAME is no name of a Kubernetes pod');
  return { namespace, name, uid: values.get('K8S_POD_UID') ?? '' };
}

/** Names as Kubernetes allows them (RFC 1123). IPAM checks them again; here a fault is named by the variable that brought it. */

const LABEL = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;
const SUBDOMAIN = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/;
const MAX_SUBDOMAIN_BYTES = 253;

/** Whether a text can be the name of a namespace. */
function isLabel(text: string): boolean {
  return LABEL.test(text);
}

/** Whether a text can be the name of a pod or a node. */
export function isSubdomain(text: string): boolean {
  return text.length <= MAX_SUBDOMAIN_BYTES && SUBDOMAIN.test(text);
}
