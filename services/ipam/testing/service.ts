import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { Writable } from 'node:stream';

import { AddressServiceService, AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { BlockServiceService, type Block } from '@podwire/proto/podwire/ipam/v1/block';
import { LeaseServiceService, OpenSessionRequest } from '@podwire/proto/podwire/ipam/v1/lease';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { DeletePoolRequest, Pool, PoolServiceService, SplitPoolRequest } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock, type Clock } from '@podwire/shared/runtime/clock';
import { RecentLines } from '@podwire/shared/runtime/recent-lines';
import { createLogger } from '@podwire/shared/runtime/log';
import { afterEach, beforeEach, expect } from 'vitest';

import { readConfig } from '../config.js';
import { KubernetesApi } from '../api-server/api.js';
import { startService, type RunningService, type ServiceDeps } from '../service.js';

export function outsideOfKubernetes(): KubernetesApi {
  return KubernetesApi.inCluster({});
}

/** A directory with a socket and a datastore, deleted after the test. */
export class Place {
  readonly directory = mkdtempSync(join(tmpdir(), 'podwire-ipam-'));
  readonly address = `unix:${join(this.directory, 'run', 'ipam.sock')}`;
  readonly storeDirectory = join(this.directory, 'store');
  #log = '';

  env(rest: Readonly<Record<string, string>> = {}): Record<string, string> {
    return {
      PODWIRE_IPAM_LISTEN: this.address,
      PODWIRE_IPAM_STORE_DIRECTORY: this.storeDirectory,
      PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/24',
      PODWIRE_IPAM_DEFAULT_POOL_NAME: 'default',
      ...rest,
    };
  }

  /**
   * Starts the service in this process.
   * @param clock - of the service. Default: the system's
   * @param kubernetes - the API server. Default: none
   */
  start(
    rest: Readonly<Record<string, string>> = {},
    clock: Clock = systemClock,
    kubernetes: ServiceDeps['kubernetes'] = outsideOfKubernetes,
  ): Promise<RunningService> {
    const write = (line: Buffer, _encoding: string, done: () => void): void => {
      this.#log += line.toString();
      done();
    };
    const log = createLogger({ service: 'test', level: 'info', destination: new Writable({ write }) });
    const own = {
      random: Math.random,
      newUid: randomUUID,
      pid: process.pid,
      endProcess: () => undefined,
      env: {},
      recentLines: new RecentLines(),
    };
    const surroundings = { ...own, log, clock, kubernetes };
    return startService(readConfig(this.env(rest)), surroundings);
  }

  /** The log lines. */
  get log(): string {
    return this.#log;
  }

  remove(): void {
    rmSync(this.directory, { recursive: true, force: true });
  }
}

const CALL_TIMEOUT_MS = 60_000;

export function attachment(containerId: string, interfaceName = 'eth0') {
  return { network: 'net', containerId, interfaceName };
}

/** The methods of the service, with all fields of a request optional except the required ones. */
export class Caller {
  readonly peer: Peer;
  /** Machine of all sessions. */
  readonly machineId = randomUUID();
  #sessionsCount = 0;

  constructor(address: string) {
    this.peer = new Peer('podwire-ipam', address);
  }

  close(): void {
    this.peer.close();
  }

  allocate(containerId: string, rest: Partial<AllocateRequest> = {}) {
    const usual = { ...AllocateRequest.fromPartial({}), nodeName: 'node-1' };
    const message = { ...usual, attachment: attachment(containerId), ...rest };
    return this.peer.call(AddressServiceService.allocate, message, limits());
  }

  async allocateAddress(containerId: string, rest: Partial<AllocateRequest> = {}): Promise<string> {
    const { endpoint } = await this.allocate(containerId, rest);
    return endpoint?.addresses[0]?.address ?? 'none';
  }

  release(containerId: string, interfaceName = 'eth0') {
    const message = { attachment: attachment(containerId, interfaceName) };
    return this.peer.call(AddressServiceService.release, message, limits());
  }

  getEndpoint(containerId: string) {
    return this.peer.call(AddressServiceService.getEndpoint, { attachment: attachment(containerId) }, limits());
  }

  /** The first session of a node, which is registered if it is not yet. */
  async openSession(nodeName: string, bootId: string) {
    this.#sessionsCount += 1;
    const ipv4Address = `192.0.2.${100 + this.#sessionsCount}/24`;
    const node = RegisterNodeRequest.fromPartial({ name: nodeName, ipv4Address });
    await this.peer.call(NodeServiceService.registerNode, node, limits());
    const message = OpenSessionRequest.fromPartial({ nodeName, machineId: this.machineId, bootId });
    const { generation, revision } = await this.peer.call(LeaseServiceService.openSession, message, limits());
    return { bootId, generation, revision };
  }

  createPool(pool: Partial<Pool>) {
    return this.peer.call(PoolServiceService.createPool, { pool: Pool.fromPartial(pool) }, limits());
  }

  updatePool(pool: Partial<Pool>, ...updateMask: string[]) {
    const message = { pool: Pool.fromPartial(pool), updateMask: updateMask.length === 0 ? undefined : updateMask };
    return this.peer.call(PoolServiceService.updatePool, message, limits());
  }

  getPool(name: string) {
    return this.peer.call(PoolServiceService.getPool, { name }, limits());
  }

  listPools(pageSize = 0, pageToken = '') {
    return this.peer.call(PoolServiceService.listPools, { pageSize, pageToken }, limits());
  }

  deletePool(name: string, rest: Partial<DeletePoolRequest> = {}) {
    const message = { ...DeletePoolRequest.fromPartial({}), name, ...rest };
    return this.peer.call(PoolServiceService.deletePool, message, limits());
  }

  splitPool(name: string, rest: Partial<SplitPoolRequest> = {}) {
    const message = { ...SplitPoolRequest.fromPartial({}), pool: { $case: 'name', value: name } as const, ...rest };
    return this.peer.call(PoolServiceService.splitPool, message, limits());
  }

  listBlocks(rest: { pageSize?: number; pageToken?: string; poolName?: string; nodeName?: string } = {}) {
    const message = { pageSize: 0, pageToken: '', poolName: '', nodeName: '', ...rest };
    return this.peer.call(BlockServiceService.listBlocks, message, limits());
  }

  /** Every block, over all pages. */
  async allBlocks(): Promise<Block[]> {
    const blocks: Block[] = [];
    for (let pageToken = ''; ;) {
      const page = await this.listBlocks({ pageToken });
      blocks.push(...page.blocks);
      pageToken = page.nextPageToken;
      if (pageToken === '') return blocks;
    }
  }

  /** The health of a service: 1 is SERVING, 2 is NOT_SERVING (grpc.health.v1). */
  health(): Promise<number> {
    const method = {
      path: '/grpc.health.v1.Health/Check',
      requestStream: false,
      responseStream: false,
      requestSerialize: () => Buffer.alloc(0),
      requestDeserialize: () => undefined,
      responseSerialize: () => Buffer.alloc(0),
      responseDeserialize: (bytes: Buffer) => bytes[1] ?? 0,
    } as const;
    return this.peer.call(method, undefined, limits());
  }
}

function limits() {
  return { deadlineMs: Date.now() + CALL_TIMEOUT_MS };
}

type Environment = Readonly<Record<string, string>>;

/** A service in this process with an embedded datastore, and its clients. */
export class Served {
  #begun: { readonly place: Place; readonly caller: Caller } | undefined;
  #service: RunningService | undefined;

  get place(): Place {
    return this.#now().place;
  }

  get caller(): Caller {
    return this.#now().caller;
  }

  /** Begins with a new datastore. */
  async begin(env: Environment = {}): Promise<void> {
    const place = new Place();
    this.#begun = { place, caller: new Caller(place.address) };
    await this.start(env);
  }

  async end(): Promise<void> {
    this.caller.close();
    await this.stop();
    this.place.remove();
  }

  async start(env: Environment = {}): Promise<void> {
    this.#service = await this.place.start(env);
  }

  /** The datastore is kept. */
  async stop(): Promise<void> {
    await this.#service?.stop();
    this.#service = undefined;
  }

  async restart(env: Environment = {}): Promise<void> {
    await this.stop();
    await this.start(env);
  }

  #now() {
    if (!this.#begun) throw new Error('the service has not begun');
    return this.#begun;
  }
}

/** A service for the tests of a file, each with a new datastore. */
export function servedForEachTest(env: Environment = {}): Served {
  const served = new Served();
  beforeEach(() => served.begin(env));
  afterEach(() => served.end());
  return served;
}

export const clientLimits = () => ({ deadlineMs: Date.now() + 60_000 });

/** The failure of a call; any other outcome fails the test. */
export async function failureOf(call: Promise<unknown>): Promise<Failure> {
  const [result] = await Promise.allSettled([call]);
  if (result.status === 'fulfilled') throw new Error('the call did not fail');
  if (result.reason instanceof Failure) return result.reason;
  throw result.reason;
}

/** The reasons of a refused request: `<field> <reason>` each. */
export async function faultsOf(call: Promise<unknown>): Promise<string[]> {
  const { code, violations } = await failureOf(call);
  expect(code).toBe('INVALID_REQUEST');
  return violations.map(({ field, reason }) => `${field} ${reason}`);
}
