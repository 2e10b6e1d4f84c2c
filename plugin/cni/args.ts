import type { Violation } from '@podwire/shared/failure/failure';

import { readAddresses, readMac } from './address-list.js';
import { isLabel, isSubdomain } from './kubernetes-names.js';
import type { AskedInArgs } from './pod-request.js';

/** A Kubernetes pod, as the container runtime names it in CNI_ARGS. */
export interface Pod {
  readonly namespace: string;
  readonly name: string;
  /** Empty when the runtime did not pass it on. */
  readonly uid: string;
}

export interface ParsedArgs {
  /** The pod, where both its namespace and its name are given. */
  readonly pod: Pod | undefined;
  /** Addresses and the MAC address that are asked for (`IP`, several with commas between them, and `MAC`). */
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

/** Reads CNI_ARGS: `KEY=VALUE;KEY=VALUE`, in any order. Keys that nobody knows are faults unless `IgnoreUnknown` is set. */
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
