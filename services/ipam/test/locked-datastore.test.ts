import {
  AddressServiceService,
  AssignAddressesRequest,
  ExplainAllocationRequest,
  IpFamily,
} from '@podwire/proto/podwire/ipam/v1/address';
import { AuditServiceService, RepairRequest } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { DeleteNodeRequest, NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { AddressUse } from '@podwire/proto/podwire/ipam/v1/pool';
import { WatchKind, WatchPhase, WatchRequest, WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { EtcdServer } from '../engine/testing/etcd-server.js';
import { attachment, Caller, failureOf, Place } from '../testing/service.js';

/** The effects of Calico's `calicoctl datastore migrate lock` on the service. */

const USE = AddressUse.ADDRESS_USE_WORKLOAD;
const TIMEOUT_MS = 40_000;
const KEY = '/calico/resources/v3/projectcalico.org/clusterinformations/default';
const limits = () => ({ deadlineMs: Date.now() + TIMEOUT_MS });
const cleanups: (() => unknown)[] = [];
let etcd: EtcdServer;
let place: Place;
let caller: Caller;

beforeEach(async () => {
  etcd = await EtcdServer.start();
  cleanups.push(() => etcd.dispose());
  [place, caller] = await startReplica();
}, TIMEOUT_MS);

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function startReplica(): Promise<[Place, Caller]> {
  const made = new Place();
  cleanups.push(() => made.remove());
  const service = await made.start({
    PODWIRE_IPAM_STORE: 'etcd',
    PODWIRE_IPAM_UNKNOWN_NODES: 'register',
    PODWIRE_IPAM_ETCD_ENDPOINTS: etcd.url,
    PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/24',
  });
  cleanups.push(() => service.stop());
  const called = new Caller(made.address);
  cleanups.push(() => called.close());
  return [made, called];
}

/** Writes the setting as calicoctl 3.32 does. */
function setReady(datastoreReady: boolean | undefined): void {
  const value = {
    kind: 'ClusterInformation',
    apiVersion: 'projectcalico.org/v3',
    metadata: {
      name: 'default',
      uid: 'f7d6a9d2-52e5-4d0f-9f0c-5a8f3b1f0001',
      creationTimestamp: '2026-08-22T06:33:20Z',
    },
    spec: {
      clusterGUID: '4f1c7b0d3f4e4f0a8f5d8a5b0f6f2a11',
      clusterType: 'typha',
      calicoVersion: 'v3.32',
      datastoreReady,
    },
  };
  etcd.ctl('put', KEY, JSON.stringify(value));
}

const LOCKED = {
  code: 'STORE_LOCKED',
  retryable: false,
  message: expect.stringContaining('datastoreReady'),
};

describe('while Calico has locked the datastore', () => {
  test('nothing is allocated or released, and written records stay', { timeout: TIMEOUT_MS }, async () => {
    await caller.allocate('held');
    setReady(true);
    await caller.allocate('before');
    setReady(false);
    // The lock is compared in the transaction: the first request after it is refused, whether or not the watch has delivered it.
    expect(await failureOf(caller.allocate('c1'))).toMatchObject(LOCKED);
    const stored = etcd.dump('/calico/');
    const { peer } = caller;
    const assign = AssignAddressesRequest.fromPartial({ handleId: 'lb-1', nodeName: 'node-1', use: USE, ipv4Count: 1 });
    const refused: (() => Promise<unknown>)[] = [
      () => caller.allocate('c2', { nodeName: 'node-2' }),
      () => caller.release('held'),
      () => peer.call(AddressServiceService.assignAddresses, assign, limits()),
      () => peer.call(NodeServiceService.deleteNode, DeleteNodeRequest.fromPartial({ name: 'node-1' }), limits()),
      () => caller.deletePool('default'),
    ];
    for (const call of refused) expect(await failureOf(call())).toMatchObject(LOCKED);
    expect(etcd.dump('/calico/')).toEqual(stored);
    expect(await caller.allocateAddress('held')).toBe(await caller.allocateAddress('held'));
    expect(await caller.release('never-held')).toMatchObject({ addresses: [] });

    setReady(true);
    await caller.allocate('c1');
    await caller.release('held');
    expect([...etcd.dump('/calico/').keys()].filter((key) => key.endsWith('/net.held'))).toEqual([]);
  });

  test('other writes of operators and nodes are accepted', { timeout: TIMEOUT_MS }, async () => {
    setReady(false);
    expect(await caller.createPool({ name: 'second', cidr: '10.66.0.0/24' })).toMatchObject({
      pool: { name: 'second' },
    });
    await caller.updatePool({ name: 'second', disabled: true }, 'disabled');
    const registration = RegisterNodeRequest.fromPartial({ name: 'node-1', ipv4Address: '192.0.2.7/24' });
    expect(await caller.peer.call(NodeServiceService.registerNode, registration, limits())).toMatchObject({
      created: true,
    });
    expect(await caller.allBlocks()).toEqual([]);
  });

  test('an explanation reports it, and so does a service that starts then', { timeout: TIMEOUT_MS }, async () => {
    setReady(false);
    const [, late] = await startReplica();
    const request = { attachment: attachment('c1'), nodeName: 'node-1', families: [IpFamily.IP_FAMILY_IPV4] };
    const asked = ExplainAllocationRequest.fromPartial({ request });
    for (const { peer } of [caller, late])
      expect(await peer.call(AddressServiceService.explainAllocation, asked, limits())).toMatchObject({
        refusalCode: 'STORE_LOCKED',
      });
    expect(await failureOf(late.allocate('c1'))).toMatchObject(LOCKED);
  });

  test('a watch reports it, and its end, at once', { timeout: TIMEOUT_MS }, async () => {
    const request = WatchRequest.fromPartial({ kinds: [WatchKind.WATCH_KIND_ROUTES] });
    const stream = caller.peer.stream(WatchServiceService.watch, request, new AbortController().signal);
    const next = async () => (await stream.next()).value;
    expect(await next()).toMatchObject({ phase: WatchPhase.WATCH_PHASE_SNAPSHOT_COMPLETE, datastoreLocked: false });
    for (const isLocked of [true, false]) {
      const startedAtMs = Date.now();
      setReady(!isLocked);
      expect(await next()).toMatchObject({ phase: WatchPhase.WATCH_PHASE_BOOKMARK, datastoreLocked: isLocked });
      // A bookmark that has no cause is sent after 30 s.
      expect(Date.now() - startedAtMs).toBeLessThan(15_000);
    }
    setReady(false);
    await stream.return();
    const [, late] = await startReplica();
    const second = late.peer.stream(WatchServiceService.watch, request, new AbortController().signal);
    expect((await second.next()).value).toMatchObject({ reset: true, datastoreLocked: true });
    await second.return();
  });

  test('repairs wait, and a record without datastoreReady is not a lock', { timeout: TIMEOUT_MS }, async () => {
    await caller.allocate('c1');
    etcd.ctl('del', '/calico/ipam/v2/handle/net.c1');
    setReady(false);
    const repair = () =>
      caller.peer.call(AuditServiceService.repair, RepairRequest.fromPartial({ dryRun: false }), limits());
    expect(await failureOf(repair())).toMatchObject(LOCKED);
    expect(etcd.dump('/calico/ipam/v2/handle/').size).toBe(0);
    setReady(undefined);
    await repair();
    expect(etcd.dump('/calico/ipam/v2/handle/').size).toBe(1);
    expect(place.log).not.toContain('"level":50');
  });
});
