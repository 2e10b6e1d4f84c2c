import { join } from 'node:path';

import { cniConfiguration, cniEnvironment, type CniCall, type Pod } from '../../support/pods.js';
import { SHIM } from '../../support/root.js';
import type { Execution } from '../exec-timer.js';

/** Debian's package containernetworking-plugins. */
const PEER_PLUGINS = '/usr/lib/cni';

/** The callers of a pod's CNI plugin. */
export type Side = 'own' | 'ptp';

export const SIDES: readonly Side[] = ['own', 'ptp'];

/** The machine of a call. */
export interface Site {
  /** The resident plugin's socket. */
  readonly socket: string;
  /** Where `host-local` keeps its addresses. */
  readonly folder: string;
}

/** How a container runtime calls a pod's plugin. */
export type MakeCall = (command: string, pod: Pod, site: Site) => Execution;

export const CALLS: Readonly<Record<Side, MakeCall>> = { own: ownCall, ptp: ptpCall };

/** The network configuration that users have on a single machine today: Go's `ptp` with `host-local`. */
export function ptpNetwork(folder: string) {
  const ranges = [[{ subnet: '10.201.0.0/16' }]];
  const dataDir = join(folder, 'host-local');
  return { type: 'ptp', ipam: { type: 'host-local', dataDir, ranges, routes: [{ dst: '0.0.0.0/0' }] } };
}

function ptpCall(command: string, pod: Pod, { folder }: Site): Execution {
  const config = { name: 'ptp', socket: undefined, ...ptpNetwork(folder) };
  const call: CniCall = { command, pod, socket: '', config, env: { CNI_PATH: PEER_PLUGINS } };
  return { program: join(PEER_PLUGINS, 'ptp'), stdin: cniConfiguration(call), env: cniEnvironment(call) };
}

function ownCall(command: string, pod: Pod, { socket }: Site): Execution {
  const call: CniCall = { command, pod, socket };
  return { program: SHIM, stdin: cniConfiguration(call), env: cniEnvironment(call) };
}

/** STATUS was added in CNI 1.1.0, and concerns no pod. */
export function statusCall(socket: string): Execution {
  return nodeCall('STATUS', socket);
}

/** libcni sends a version with VERSION too. */
export function versionCall(socket: string): Execution {
  return nodeCall('VERSION', socket);
}

function nodeCall(command: string, socket: string): Execution {
  const none = { CNI_CONTAINERID: undefined, CNI_NETNS: undefined, CNI_IFNAME: undefined, CNI_ARGS: undefined };
  const pod: Pod = { name: '', containerId: '', netns: '' };
  const call: CniCall = { command, pod, socket, config: { cniVersion: '1.1.0' }, env: none };
  return { program: SHIM, stdin: cniConfiguration(call), env: cniEnvironment(call) };
}
