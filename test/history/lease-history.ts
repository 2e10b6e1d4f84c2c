import { setTimeout as sleep } from 'node:timers/promises';

import { inconsistencies } from '@podwire/ipam/engine/testing/consistency';
import type { TestView } from '@podwire/ipam/testing/test-view';
import { AddressServiceService, AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { ConfigServiceService, UpdateConfigRequest } from '@podwire/proto/podwire/ipam/v1/config';
import { HistoryServiceService } from '@podwire/proto/podwire/ipam/v1/history';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { expect } from 'vitest';

import type { CalicoWriter } from '../support/calico-writer.js';
import { until } from '../support/until.js';
import { Callers } from './callers.js';
import { LeasingNodes } from './leasing-nodes.js';
import { History } from './model.js';
import type { ReplicaClient } from './replica.js';
import { boundIn, findings, leasesIn, linesOf } from './stored.js';

/**
 * Callers and nodes with leases on one small pool with a cool-down, under faults; then a caller that uses up the pool, and gets what
 * the nodes only lease.
 */

const CALLERS = 12;
const LEASING_NODES = 4;

/** The pool of the replicas. */
export const POOL = '10.66.0.0/24';
const POOL_ADDRESSES = Array.from({ length: 256 }, (_, index) => `10.66.${index >> 8}.${index & 255}`);

const COOLDOWN_SECONDS = 3;

/** A release is stamped in whole seconds. */
const LEAST_COOLDOWN_MS = (COOLDOWN_SECONDS - 1) * 1000;

/** The minimum of pods that get leased addresses. */
const ADDS = 100;

/** The minimum of addresses that are given again. */
const REUSES = 100;

/** podwire-ipam waits longer for leases before it refuses an allocation, in milliseconds. */
export const LEASE_WAIT_MS = 1900;

/** Most refusals after such a wait until the nodes have returned their leases. */
export const LATE_RETURNS = 20;

interface LeaseHistoryOptions {
  readonly replicas: readonly ReplicaClient[];
  readonly folder: string;
  readonly random: () => number;
  /** Breaks and repairs things for a while. */
  readonly breakThings: () => Promise<void>;
  /** Frees leases behind the back of podwire-ipam; undefined: they stay. */
  readonly calico?: Pick<CalicoWriter, 'release'>;
  /** The least time from a pod's end to the next pod with its address. Default: the cool-down of the replicas. */
  readonly leastCooldownMs?: number;
  /** How many pods get leased addresses at least. Default: 100. */
  readonly addsCount?: number;
  /** Whether the history of each address survives a SIGKILL of podwire-ipam. */
  readonly isHistoryDurable: boolean;
  /** Reads what the datastore has. */
  readonly stored: () => Promise<TestView>;
}

export async function runLeaseHistory(options: LeaseHistoryOptions): Promise<void> {
  const { replicas, random, breakThings, stored, leastCooldownMs = LEAST_COOLDOWN_MS, addsCount = ADDS } = options;
  const [first] = replicas;
  if (!first) throw new Error('no replica');
  const config = UpdateConfigRequest.fromPartial({ cooldownSeconds: COOLDOWN_SECONDS });
  await first.peer.call(ConfigServiceService.updateConfig, config, limits());
  const history = new History();
  const callers = new Callers({ replicas, history, nodesCount: 4, random });
  const leasing = new LeasingNodes({ ...options, count: LEASING_NODES, history });
  const running = Promise.all([callers.run(CALLERS), leasing.run()]);
  await breakThings();
  const adds = (): number => history.outcomes.get('added with a lease') ?? 0;
  // A slow machine gets leases and reuses addresses once nothing disturbs it.
  leasing.calm();
  while (adds() < addsCount || history.reusesCount < REUSES) await sleep(100);
  callers.stop();
  leasing.stop();
  await running;
  await leasing.settle();

  expect(history.violations(leastCooldownMs).join('; ')).toBe('');
  expect(history.held.size).toBeLessThan(POOL_ADDRESSES.length);
  await sleep((COOLDOWN_SECONDS + 1) * 1000);
  for (const node of leasing.nodes) await node.addLasting();
  await until(
    () => leasing.nodes.every(({ isSettled }) => isSettled) && leasing.nodes.some(({ leases }) => leases.length > 0),
    () => `the nodes get no lease, with ${history.held.size} addresses held: ${leasing.state}`,
  );
  await registerIdleNodes(first, POOL_ADDRESSES.length / 4);
  await useUp(first, history, leasing);
  const given = new Set(history.held.values());
  for (const [cidr, id] of leasing.leftovers) if (!given.has(cidr)) history.allocated(id, cidr, performance.now());
  expect(history.violations(leastCooldownMs).join('; ')).toBe('');
  expect([...history.held.values()].sort()).toEqual(POOL_ADDRESSES.map((each) => `${each}/32`).sort());
  leasing.kill();
  for (const replica of replicas) expect(await findings(replica), replica.name).toEqual([]);
  if (options.isHistoryDurable) await expectDistinctTenures(first);

  const view = await stored();
  expect(inconsistencies(view, Date.now())).toEqual([]);
  expect(boundIn(view)).toEqual(linesOf(history.held));
  expect(leasesIn(view)).toEqual([]);
}

/** Registers so many nodes that the pool has fewer than four addresses for each and keeps none, so that one node may use all. */
export async function registerIdleNodes({ peer }: ReplicaClient, count: number): Promise<void> {
  for (let index = 1; index <= count; index++) {
    const request = RegisterNodeRequest.fromPartial({ name: `idle-${index}`, ipv4Address: `198.51.100.${index}/24` });
    await peer.call(NodeServiceService.registerNode, request, limits());
  }
}

/**
 * Allocates until the pool is exhausted. Only after podwire-ipam has waited for leases, which a busy machine returns late, is an
 * allocation repeated.
 */
async function useUp({ peer }: ReplicaClient, history: History, leasing: LeasingNodes): Promise<void> {
  for (let count = 0, lateCount = 0; ; count++) {
    const containerId = `last-${count}`;
    const attachment = { network: 'net', containerId, interfaceName: 'eth0' };
    const request = AllocateRequest.fromPartial({ attachment, nodeName: 'node-0' });
    const startMs = performance.now();
    try {
      const { endpoint } = await peer.call(AddressServiceService.allocate, request, limits());
      history.allocated(containerId, endpoint?.addresses[0]?.address ?? '', performance.now());
    } catch (error) {
      if (!(error instanceof Failure && error.code === 'POOLS_EXHAUSTED')) throw error;
      if (performance.now() - startMs < LEASE_WAIT_MS) return;
      history.count('leases returned late');
      if (++lateCount > LATE_RETURNS) throw new Error(`a node keeps leases: ${leasing.state}`, { cause: error });
    }
  }
}

/** Expects one holder of an address at any moment, by the times of podwire-ipam's history. */
async function expectDistinctTenures({ peer }: ReplicaClient): Promise<void> {
  for (const address of POOL_ADDRESSES) {
    const subject = { $case: 'address', value: address } as const;
    const asked = { subject, from: undefined, until: undefined, pageSize: 1000, pageToken: '' };
    const { tenures } = await peer.call(HistoryServiceService.getAddressHistory, asked, limits());
    const times = tenures
      .toSorted((a, b) => Number(a.sequenceNumber - b.sequenceNumber))
      .flatMap(({ allocateTime, releaseTime }) => [allocateTime, releaseTime].map((time) => time?.getTime()));
    const known = times.filter((time) => time !== undefined);
    expect(known.at(-1), address).toBeLessThanOrEqual(Date.now());
    expect(known, address).toEqual(known.toSorted((a, b) => a - b));
  }
}

function limits() {
  return { deadlineMs: Date.now() + 20_000 };
}
