import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';

import { run } from './programs.js';
import { SHIM } from './root.js';

/** A pod as its container runtime knows it. */
export interface Pod {
  /** Name of the network namespace, and of the Kubernetes pod unless {@link podName} is set. */
  readonly name: string;
  /** Name of the Kubernetes pod, which several sandboxes may share. */
  readonly podName?: string;
  readonly containerId: string;
  /** Path of its network namespace. */
  readonly netns: string;
}

/** Creates a network namespace for a pod. Only in the namespaces of test/support/isolated.mjs. */
export function makePod(name: string): Pod {
  run('ip', 'netns', 'add', name);
  return { name, containerId: createHash('sha256').update(name).digest('hex'), netns: `/run/netns/${name}` };
}

export function removePod(pod: Pod): void {
  run('ip', 'netns', 'delete', pod.name);
}

export interface CniCall {
  readonly command: string;
  readonly pod: Pod;
  /** The resident plugin's socket. */
  readonly socket: string;
  readonly interfaceName?: string;
  /** Keys of the network configuration that replace or extend the usual ones; undefined removes one. */
  readonly config?: Readonly<Record<string, unknown>>;
  /** Environment variables that replace or extend the usual ones; undefined removes one. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Standard input instead of the configuration. */
  readonly stdin?: string;
  /** The program to run; the shim when undefined. */
  readonly program?: string;
  /** Path of the program's network namespace; the caller's own when undefined. */
  readonly node?: string;
}

export interface CniAnswer {
  readonly exitCode: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export const NETWORK = 'k8s-pod-network';

export function cniEnvironment({ command, pod, interfaceName = 'eth0', env = {} }: CniCall): Record<string, string> {
  const all: Record<string, string | undefined> = {
    PATH: process.env.PATH,
    CNI_COMMAND: command,
    CNI_CONTAINERID: pod.containerId,
    CNI_NETNS: pod.netns,
    CNI_IFNAME: interfaceName,
    CNI_PATH: '/usr/lib/cni',
    CNI_ARGS: `IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=${pod.podName ?? pod.name};K8S_POD_INFRA_CONTAINER_ID=${pod.containerId}`,
    ...env,
  };
  const given = Object.entries(all).filter((entry): entry is [string, string] => entry[1] !== undefined);
  return Object.fromEntries(given);
}

export function cniConfiguration({ socket, config = {}, stdin }: CniCall): string {
  if (stdin !== undefined) return stdin;
  const usual = { cniVersion: '1.0.0', name: NETWORK, type: 'podwire', socket, ipam: { type: 'podwire-ipam' } };
  return JSON.stringify({ ...usual, ...config });
}

/** Runs a CNI plugin as a container runtime does: environment and stdin in, stdout and exit code out. */
export async function callCni(call: CniCall): Promise<CniAnswer> {
  const enter = call.node === undefined ? [] : ['nsenter', `--net=${call.node}`];
  const child = spawn('env', [...enter, call.program ?? SHIM], { env: cniEnvironment(call), stdio: 'pipe' });
  const read = (stream: NodeJS.ReadableStream) => {
    let text = '';
    stream.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
    return () => text;
  };
  const [stdout, stderr] = [read(child.stdout), read(child.stderr)];
  child.stdin.on('error', () => undefined).end(cniConfiguration(call));
  const exitCode = await new Promise<number | null>((resolve, reject) => {
    child.once('close', resolve).once('error', reject);
  });
  return { exitCode, stdout: stdout(), stderr: stderr() };
}
