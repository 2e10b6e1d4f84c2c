import type { PodName } from '@podwire/shared/attachment/allocation';
import { identifierFault, MAX_CONTAINER_ID_BYTES, podInterfaceNameFault } from '@podwire/shared/attachment/attachment';
import { Failure, violationsFailure, type Violation } from '@podwire/shared/failure/failure';

import { readAddresses, readMac } from './annotations.js';
import type { ArgsRequest } from './pod-request.js';

/** Commands of CNI (specification 1.1.0, section 2). */
export const COMMANDS = ['ADD', 'DEL', 'CHECK', 'GC', 'STATUS', 'VERSION'] as const;

export type Command = (typeof COMMANDS)[number];

/** The environment variables in which a runtime passes a command (the same section). */
export const VARIABLES = ['CNI_COMMAND', 'CNI_CONTAINERID', 'CNI_NETNS', 'CNI_IFNAME', 'CNI_ARGS', 'CNI_PATH'] as const;

export type Variable = (typeof VARIABLES)[number];

/** The variables as the runtime set them. An empty one counts as absent, as libcni sends inapplicable variables empty. */
export type Variables = Readonly<Partial<Record<Variable, string>>>;

/** One interface of one container. */
export interface ContainerEnvironment {
  readonly containerId: string;
  readonly interfaceName: string;
  /** The Kubernetes pod, if the runtime names one. */
  readonly pod: PodName | undefined;
  readonly argsRequest: ArgsRequest;
}

export interface PodEnvironment extends ContainerEnvironment {
  /** Absolute path of the pod's network namespace. */
  readonly netns: string;
}

/** Required variables of each command. */
const REQUIRED = {
  ADD: ['CNI_CONTAINERID', 'CNI_NETNS', 'CNI_IFNAME'],
  CHECK: ['CNI_CONTAINERID', 'CNI_NETNS', 'CNI_IFNAME'],
  DEL: ['CNI_CONTAINERID', 'CNI_IFNAME'],
  GC: ['CNI_PATH'],
  STATUS: [],
} as const satisfies Partial<Record<Command, readonly Variable[]>>;

/** Checks of a variable's value; undefined if it is valid. */
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
  // libcni compares this exact text.
  throw new Failure('INVALID_ENVIRONMENT', `unknown CNI_COMMAND: ${text}`);
}

/**
 * Reads the variables of ADD and CHECK.
 * @throws Failure INVALID_ENVIRONMENT that lists everything that is missing or malformed
 */
export function readPodEnvironment(command: 'ADD' | 'CHECK', variables: Variables): PodEnvironment {
  return { netns: variables.CNI_NETNS ?? '', ...readContainer(command, variables) };
}

/** The environment of a DEL. Its CNI_NETNS is empty if the namespace no longer exists. */
export interface DelEnvironment extends ContainerEnvironment {
  /** Absolute path of the pod's network namespace; undefined if it is missing or invalid, as DEL does not need it. */
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

/** The pod of a command that may be invalid otherwise; undefined if there is none, or its name is malformed. */
export function podOf({ CNI_ARGS: args = '' }: Variables): PodName | undefined {
  const { pod } = parseArgs(args);
  return pod && isLabel(pod.namespace) && isSubdomain(pod.name) ? pod : undefined;
}

/**
 * Checks the variables of a node command; ignores variables of a container.
 * @throws Failure INVALID_ENVIRONMENT that lists everything that is missing
 */
export function checkNodeEnvironment(command: 'GC' | 'STATUS', variables: Variables): void {
  const violations = violationsOf(REQUIRED[command], variables);
  if (violations.length > 0) throw violationsFailure('INVALID_ENVIRONMENT', 'CNI environment refused', violations);
}

function readContainer(command: 'ADD' | 'CHECK' | 'DEL', variables: Variables): ContainerEnvironment {
  const violations = violationsOf(REQUIRED[command], variables);
  const { pod, argsRequest, faults } = parseArgs(variables.CNI_ARGS ?? '');
  // Only ADD uses CNI_ARGS. A DEL that failed because of it would never succeed.
  if (command === 'ADD') violations.push(...faults.map((reason) => ({ field: 'CNI_ARGS', reason })));
  if (violations.length > 0) throw violationsFailure('INVALID_ENVIRONMENT', 'CNI environment refused', violations);
  return { containerId: variables.CNI_CONTAINERID ?? '', interfaceName: variables.CNI_IFNAME ?? '', pod, argsRequest };
}

/** Malformed required variables, then missing ones. */
function violationsOf(required: readonly Variable[], variables: Variables): Violation[] {
  const [missing, present] = [required.filter((name) => !variables[name]), required.filter((name) => variables[name])];
  const malformed = present.flatMap((name) => {
    const value = variables[name] ?? '';
    const reason = FAULT[name]?.(value);
    return reason === undefined ? [] : [{ field: name, reason: `is ${JSON.stringify(value)}: ${reason}` }];
  });
  return [...malformed, ...missing.map((name) => ({ field: name, reason: 'is missing' }))];
}

interface ParsedArgs {
  /** Pod; undefined unless both its namespace and its name are given. */
  readonly pod: PodName | undefined;
  /** `IP` (comma-separated) and `MAC`. */
  readonly argsRequest: ArgsRequest;
  /** Empty if the text is valid. */
  readonly faults: readonly string[];
}

/** The keys that Kubernetes' runtimes send, including keys that Podwire does not use. */
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
  if (ignoreUnknown === undefined) faults.push('IgnoreUnknown must be 1, true, 0 or false');
  const unknown = [...values.keys()].filter((key) => !KNOWN_KEYS.some((known) => known === key));
  if (ignoreUnknown === false && unknown.length > 0) {
    faults.push(`has the unknown keys ${unknown.join(', ')}; send IgnoreUnknown=1 to have them ignored`);
  }
  const pod = readPod(values, faults);
  return { pod, argsRequest: readArgsRequest(values, faults), faults };
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

/** The spellings that Go's CNI library accepts, in any case. */
function readFlag(text: string): boolean | undefined {
  const word = text.toLowerCase();
  if (word === '1' || word === 'true') return true;
  return word === '0' || word === 'false' ? false : undefined;
}

/** Faults name the key only, as their violation names CNI_ARGS. */
function readArgsRequest(values: ReadonlyMap<string, string>, faults: string[]): ArgsRequest {
  const texts = (values.get('IP') ?? '').split(',').filter((text) => text !== '');
  const refuse = (key: string) => (violation: Violation) => faults.push(`${key} ${violation.reason}`);
  return {
    addresses: readAddresses('CNI_ARGS IP', texts, refuse('IP')),
    mac: readMac('CNI_ARGS MAC', values.get('MAC') ?? '', refuse('MAC')),
  };
}

/** A name without a namespace is not a pod: podman sets K8S_POD_NAME to the container's name. */
function readPod(values: ReadonlyMap<string, string>, faults: string[]): PodName | undefined {
  const namespace = values.get('K8S_POD_NAMESPACE') ?? '';
  const name = values.get('K8S_POD_NAME') ?? '';
  if (namespace === '' || name === '') return undefined;
  if (!isLabel(namespace)) faults.push('K8S_POD_NAMESPACE is not a valid name of a Kubernetes namespace');
  if (!isSubdomain(name)) faults.push('K8S_POD_NAME is not a valid name of a Kubernetes pod');
  return { namespace, name, uid: values.get('K8S_POD_UID') ?? '' };
}

/** Names in Kubernetes (RFC 1123). podwire-ipam checks them again; here the violation names the variable. */

const LABEL = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;
const SUBDOMAIN = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/;
const MAX_SUBDOMAIN_BYTES = 253;

/** Whether a text is a valid namespace name. */
function isLabel(text: string): boolean {
  return LABEL.test(text);
}

/** Whether a text is a valid pod or node name. */
export function isSubdomain(text: string): boolean {
  return text.length <= MAX_SUBDOMAIN_BYTES && SUBDOMAIN.test(text);
}
