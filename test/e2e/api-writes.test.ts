import { KubernetesApi } from '@podwire/ipam/api-server/api';
import { ObjectServer } from '@podwire/ipam/testing/object-server';
import { Caller, Place } from '@podwire/ipam/testing/service';
import { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { MemoryRecordStore } from '@podwire/dataplane/testing/memory-record-store';
import { podNetwork } from '@podwire/dataplane/testing/pods';
import { AddressBook } from '@podwire/node/addresses/address-book';
import { AddressEvents } from '@podwire/node/addresses/events';
import { ipamLeaseApi, type LeaseApi } from '@podwire/node/addresses/lease-api';
import { NOTHING_STORED, type StoredLeases } from '@podwire/node/addresses/lease-file';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { parseAddress } from '@podwire/shared/net/address';
import { systemClock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, expect, test } from 'vitest';

/**
 * How many objects podwire-ipam writes for the pods of a node, with the code of podwire-node. The node's clock is simulated, so that
 * the session that podwire-ipam writes every minute while it hears of the node is not counted.
 */

const V3 = '/apis/projectcalico.org/v3';
const BOOT = { id: '0f8fad5b-d9cb-469f-a165-70867728950e', startedAtMs: 0 };
const IDENTITY = { device: 4n, inode: 4_026_532_178n, cookie: 7n };
const NEVER = new AbortController().signal;

let cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanUp of cleanups.toReversed()) await cleanUp();
  cleanups = [];
});

async function scene() {
  const server = await ObjectServer.start();
  cleanups.push(() => server.stop());
  server.groups.set(V3, ['ippools', 'ipamblocks']);
  server.put('/api/v1/nodes', { metadata: { name: 'node-1' } });
  const place = new Place();
  const env = { PODWIRE_IPAM_STORE: 'kubernetes', PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/16' };
  const service = await place.start(env, systemClock, () => new KubernetesApi(server.options));
  const caller = new Caller(place.address);
  cleanups.push(
    () => place.remove(),
    () => service.stop(),
    () => caller.close(),
  );
  const node = RegisterNodeRequest.fromPartial({ name: 'node-1', ipv4Address: '192.0.2.1/24' });
  await caller.peer.call(NodeServiceService.registerNode, node, { deadlineMs: Date.now() + 60_000 });
  return { server, ...(await startNode(ipamLeaseApi(caller.peer, systemClock))) };
}

/** The addresses of podwire-node, by a clock that only the test advances. */
async function startNode(api: LeaseApi) {
  const clock = new ManualClock();
  const registry = new AttachmentRegistry({
    ...{ store: new MemoryRecordStore(), bootId: BOOT.id, clock },
    onStoreFailure: () => undefined,
  });
  await registry.load();
  const file: { saved: StoredLeases } = { saved: NOTHING_STORED };
  let callsInFlight = 0;
  const counted = <Answer>(call: Promise<Answer>): Promise<Answer> => {
    callsInFlight++;
    return call.finally(() => callsInFlight--);
  };
  const book = await AddressBook.open({
    registry,
    links: () => Promise.resolve([]),
    api: {
      ...api,
      openSession: (...args) => counted(api.openSession(...args)),
      leaseAddresses: (...args) => counted(api.leaseAddresses(...args)),
      bindAddresses: (...args) => counted(api.bindAddresses(...args)),
      returnAddresses: (...args) => counted(api.returnAddresses(...args)),
      reportInventory: (...args) => counted(api.reportInventory(...args)),
    },
    file: { load: () => file.saved, save: (saved) => void (file.saved = saved) },
    marks: { lowCount: 4, highCount: 12 },
    ...{ nodeName: 'node-1', machineId: '6fa459ea-ee8a-4ca4-894e-db77e160355e', boot: BOOT },
    ...{ events: new AddressEvents(createLogger({ service: 'test', level: 'fatal' })), clock, random: () => 0.5 },
    bootMs: () => clock.monotonicMs(),
  });
  cleanups.push(() => book.stop());
  book.start({ runExclusive: (_, __, work) => work(), pendingAddresses: () => [], usageOf: () => 'wired' });
  const idle = async () => {
    for (let turns = 0; turns < 20 || callsInFlight > 0; turns++) await new Promise((resolve) => setImmediate(resolve));
  };
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= 50) {
      clock.advance(50);
      await idle();
    }
  };
  const add = async (name: string) => {
    const { network, ...rest } = { network: podNetwork(name), nodeName: 'node-1', pod: undefined, isBound: false };
    const { leases } = await book.take(network.attachment, [4], NEVER);
    const addresses = (leases ?? []).map(({ address, sequenceNumber }) => ({ address, sequenceNumber }));
    const parsed = addresses.flatMap(({ address }) => parseAddress(address) ?? []);
    expect(parsed).toHaveLength(1);
    await registry.record({ ...network, addresses: parsed }, IDENTITY, { addresses, ...rest });
    book.settle(registry.get(network.attachment)!);
  };
  const del = async (name: string) => {
    const dead = await registry.setState(podNetwork(name).attachment, 'dead');
    book.settle(dead!);
  };
  await idle();
  await add('first');
  await pass(10_000);
  return { pass, add, del };
}

/** The writes of a course of events, without leadership. */
async function writesOf({ requests }: ObjectServer, run: () => Promise<void>) {
  const before = requests.length;
  await run();
  const writes = requests.slice(before).filter((line) => !line.startsWith('GET ') && !line.includes('/leases/'));
  const count = (plural: string) => writes.filter((line) => line.includes(plural)).length;
  return { all: writes.length, blocks: count('/ipamblocks'), sessions: count('/nodesessions') };
}

test('110 pods that come and go together cost 0.3 writes each', async () => {
  const { server, add, del, pass } = await scene();
  const names = Array.from({ length: 110 }, (_, index) => `pod-${index}`);
  const { all } = await writesOf(server, async () => {
    for (const act of [add, del]) {
      for (const name of names) {
        await act(name);
        await pass(50);
      }
      await pass(10_000);
    }
  });
  expect(all / 110).toBeLessThanOrEqual(0.3);
});

test('one pod per second costs one binding and one return of five pods, and few refills', async () => {
  const { server, add, del, pass } = await scene();
  const [count, lifeSeconds] = [100, 30];
  const { blocks, sessions } = await writesOf(server, async () => {
    for (let second = 0; second < count + lifeSeconds; second++) {
      if (second < count) await add(`pod-${second}`);
      await pass(500);
      if (second >= lifeSeconds) await del(`pod-${second - lifeSeconds}`);
      await pass(500);
    }
    await pass(10_000);
  });
  expect(blocks / count).toBeLessThanOrEqual(0.55);
  expect(sessions / count).toBeLessThanOrEqual(0.4);
});

test('a lone pod costs one binding and one return of its block, and its share of a refill', async () => {
  const { server, add, del, pass } = await scene();
  const count = 24;
  const { blocks } = await writesOf(server, async () => {
    for (let minute = 0; minute < count; minute++) {
      await add(`pod-${minute}`);
      await pass(30_000);
      await del(`pod-${minute}`);
      await pass(30_000);
    }
  });
  expect(blocks / count).toBeLessThanOrEqual(2.2);
});
