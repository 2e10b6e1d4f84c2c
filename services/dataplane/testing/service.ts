import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { NetworkPolicyServiceService } from '@podwire/proto/podwire/dataplane/v1/network_policy';
import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService, type PodNetwork } from '@podwire/proto/podwire/dataplane/v1/pod';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Peer } from '@podwire/shared/rpc/client';
import { readSettings } from '@podwire/shared/settings/config-reader';
import { systemClock } from '@podwire/shared/runtime/clock';

import { DATAPLANE_SETTINGS, type Config } from '../config.js';
import type { NodeAddressHooks, OpenNodeAddresses } from '../node-addresses.js';
import { prepareService, startService, type RunningService, type ServiceDeps } from '../service.js';
import { FREE_NAME } from './ipam.js';
import { BOOT, recordingLog } from './pods.js';

/** A node without leases, whose records have no addresses of podwire-ipam. */
const NO_ADDRESSES: NodeAddressHooks = {
  ...FREE_NAME,
  endpoint: () => Promise.resolve(undefined),
  settle: () => undefined,
  follow: () => undefined,
  conditions: () => [],
  counts: () => ({ leaseCount: 0, unboundCount: 0, unreturnedCount: 0 }),
};

export const openAddresses: OpenNodeAddresses = () => Promise.resolve(NO_ADDRESSES);

const limits = (timeoutMs = 30_000) => ({ deadlineMs: Date.now() + timeoutMs });

/** The settings of a dataplane. @param env - settings that differ from the defaults */
export function configOf(env: Readonly<Record<string, string>>, nodeName = 'node-1'): Config {
  const values = readSettings({ settings: DATAPLANE_SETTINGS, prefix: 'PODWIRE_NODE_', env });
  return { ...values, nodeName, drainTimeoutMs: 5_000 };
}

/** podwire-node, built by `npm run build`, which `npm test` does first. */
export const NODE_MAIN = join(import.meta.dirname, '..', '..', 'node', 'dist', 'main.js');

/** Starts the dataplane as podwire-node does. */
export async function startOn(config: Config, deps: ServiceDeps): Promise<RunningService> {
  return startService(config, deps, await prepareService(config));
}

/** Settings and dependencies of a dataplane in its own folder, without podwire-ipam, and a client of it. */
export class ServiceFixture {
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-node-'));
  readonly socket = join(this.folder, 'run', 'dataplane.sock');
  readonly records = join(this.folder, 'attachments');
  readonly env = {
    PODWIRE_NODE_LISTEN: `unix:${this.socket}`,
    PODWIRE_NODE_RECORDS_DIRECTORY: this.records,
  };
  /** Environment of podwire-node with this dataplane. */
  readonly processEnv = {
    ...this.env,
    PODWIRE_NODE_CNI_SOCKET: join(this.folder, 'run', 'cni.sock'),
    PODWIRE_NODE_STATE_DIRECTORY: join(this.folder, 'journal'),
    PODWIRE_NODE_IPAM_ADDRESS: `unix:${join(this.folder, 'no-ipam.sock')}`,
  };
  #peer = this.#connect();

  readonly #ipam = new Peer('podwire-ipam', this.processEnv.PODWIRE_NODE_IPAM_ADDRESS);

  config(): Config {
    return configOf(this.env);
  }

  deps(): ServiceDeps {
    const { log } = recordingLog();
    return {
      log,
      clock: systemClock,
      random: Math.random,
      boot: BOOT,
      ipam: this.#ipam,
      connectIpam: () => new Peer('podwire-ipam', this.processEnv.PODWIRE_NODE_IPAM_ADDRESS),
      openAddresses,
    };
  }

  /** Replaces the connection, as another process listens now. */
  reconnect(): void {
    this.#peer.close();
    this.#peer = this.#connect();
  }

  clear(): void {
    this.#ipam.close();
    this.#peer.close();
    rmSync(this.folder, { recursive: true });
  }

  attach(pod: PodNetwork, timeoutMs?: number) {
    return this.#peer.call(PodServiceService.attachPod, { pod }, limits(timeoutMs));
  }

  detach({ attachment, hostInterfaceName: name }: PodNetwork) {
    return this.#peer.call(PodServiceService.detachPod, { attachment, hostInterfaceName: name }, limits());
  }

  /** @param recorded - an attachment whose wanted state the service reads from its record */
  check(pod: PodNetwork | undefined, recorded?: PodNetwork['attachment']) {
    return this.#peer.call(PodServiceService.checkPod, { pod, recorded }, limits());
  }

  /** Calls RepairPod, as {@link check} calls CheckPod. */
  repair(pod: PodNetwork | undefined, recorded?: PodNetwork['attachment']) {
    return this.#peer.call(PodServiceService.repairPod, { pod, recorded }, limits());
  }

  list(pageSize: number, pageToken = '') {
    return this.#peer.call(PodServiceService.listPods, { pageSize, pageToken }, limits());
  }

  nodeStatus() {
    return this.#peer.call(NodeServiceService.getNodeStatus, {}, limits());
  }

  policyDrops() {
    return this.#peer.call(NetworkPolicyServiceService.listPolicyDrops, { namespace: '', afterNumber: 0n }, limits());
  }

  health() {
    return this.#peer.call(HEALTH, null, limits());
  }

  #connect(): Peer {
    return new Peer('podwire-node', `unix:${this.socket}`);
  }
}

/** A pod as a plugin requests it. @param name - also the name of its network namespace */
export function podMessage(name: string, address: string): PodNetwork {
  const attachment = { network: 'net', containerId: name, interfaceName: 'eth0' };
  return {
    attachment,
    netns: `/run/netns/${name}`,
    hostInterfaceName: hostInterfaceName(attachment),
    macAddress: podMac(attachment),
    addresses: [`${address}/32`],
    routes: [],
    mtuBytes: 0,
    ipForwarding: true,
    sourcePrefixes: [],
    hostPorts: [],
    txQueueLength: 0,
    queueCount: 0,
  };
}

/**
 * Calico's plugin as its dataplane sees it. Messages are written and read by the contract's field numbers, so
 * that the test does not share code with the service.
 */

/** Field number → value: text, number or boolean as they are, objects as nested messages, lists as repeated fields. */
export interface Fields {
  readonly [number: number]: Value | readonly Value[];
}

type Value = string | number | boolean | Fields;

interface Reply {
  readonly successful: boolean;
  readonly errorMessage: string;
  readonly hostInterfaceName: string;
  readonly containerMac: string;
}

function varint(value: number | bigint): Buffer {
  const bytes: number[] = [];
  // Negative numbers of int32 travel as 64 bits.
  let rest = BigInt.asUintN(64, BigInt(value));
  do {
    bytes.push(Number(rest & 0x7fn) | (rest > 0x7fn ? 0x80 : 0));
    rest >>= 7n;
  } while (rest > 0n);
  return Buffer.from(bytes);
}

function field(number: number, value: Value): Buffer {
  if (typeof value === 'number' || typeof value === 'boolean') {
    return Buffer.concat([varint(number << 3), varint(Number(value))]);
  }
  const bytes = typeof value === 'string' ? Buffer.from(value) : encode(value);
  return Buffer.concat([varint((number << 3) | 2), varint(bytes.length), bytes]);
}

function encode(fields: Fields): Buffer {
  const parts = Object.entries(fields).flatMap(([number, value]) =>
    (Array.isArray(value) ? value : [value]).map((one: Value) => field(Number(number), one)),
  );
  return Buffer.concat(parts);
}

/** A reply: field 1 is the success, fields 2 to 4 are texts, all shorter than 16 KiB. */
function decode(bytes: Buffer): Reply {
  const texts = new Map<number, string>();
  let successful = false;
  for (let at = 0; at < bytes.length;) {
    const key = bytes[at++]!;
    const first = bytes[at++]!;
    if (key === 8) successful = first === 1;
    else {
      const length = first < 0x80 ? first : (first & 0x7f) | (bytes[at++]! << 7);
      texts.set(key >> 3, bytes.toString('utf8', at, at + length));
      at += length;
    }
  }
  const text = (number: number) => texts.get(number) ?? '';
  return { successful, errorMessage: text(2), hostInterfaceName: text(3), containerMac: text(4) };
}

const method = (name: 'Add' | 'Del') => ({
  path: `/cni.CniDataplane/${name}`,
  requestStream: false as const,
  responseStream: false as const,
  requestSerialize: encode,
  requestDeserialize: () => ({}),
  responseSerialize: () => Buffer.alloc(0),
  responseDeserialize: decode,
});

const ADD = method('Add');
const DEL = method('Del');

/** More than the plugin's own timeout of 5 s, which a busy machine may exceed. */
const pluginLimits = () => ({ deadlineMs: Date.now() + 30_000 });

export class CalicoPlugin {
  readonly #peer: Peer;

  constructor(peer: Peer) {
    this.#peer = peer;
  }

  add(request: Fields): Promise<Reply> {
    return this.#peer.call(ADD, request, pluginLimits());
  }

  del(request: Fields): Promise<Reply> {
    return this.#peer.call(DEL, request, pluginLimits());
  }
}

/** The plugin's request for a pod of Kubernetes, with every field of the contract. */
export function addRequest(pod: string, address: string, changes: Fields = {}): Fields {
  return {
    1: 'eth0',
    2: `/run/netns/${pod}`,
    3: `cali${pod}`,
    4: { 1: true, 2: 1400 },
    5: [{ 1: `${address}/26`, 2: '<nil>' }],
    6: ['0.0.0.0/0', '::/0'],
    7: {
      1: 'node--1-k8s-pod-eth0',
      2: 'default',
      3: [{ 1: 'app', 2: 'web' }],
      4: [{ 1: 'note', 2: 'hello' }],
      5: 'eth0',
      6: 'node-1',
      7: 'k8s',
      8: pod,
      9: [{ 1: 'http', 2: 'TCP', 3: 80, 4: 8080, 5: '192.0.2.1' }],
    },
    8: [{ 1: 'type', 2: 'grpc' }],
    ...changes,
  };
}

export function delRequest(pod: string, changes: Fields = {}): Fields {
  return { 1: 'eth0', 2: `/run/netns/${pod}`, 3: [{ 1: 'type', 2: 'grpc' }], ...changes };
}

/** `Check` of grpc.health.v1, as a client calls it: for the whole server. Its answer is the status: 1 serving, 2 not serving. */
export const HEALTH = {
  path: '/grpc.health.v1.Health/Check',
  requestStream: false,
  responseStream: false,
  requestSerialize: () => Buffer.alloc(0),
  requestDeserialize: () => null,
  responseSerialize: () => Buffer.alloc(0),
  // The status is the message's only field.
  responseDeserialize: (bytes: Buffer) => bytes.at(1),
} as const;
