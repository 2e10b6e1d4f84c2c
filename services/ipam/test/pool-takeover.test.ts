import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import {
  AddressServiceService,
  AllocateRequest,
  ExplainAllocationRequest,
  IpFamily,
} from '@podwire/proto/podwire/ipam/v1/address';
import { ConfigServiceService, UpdateConfigRequest } from '@podwire/proto/podwire/ipam/v1/config';
import {
  BindAddressesRequest,
  LeaseAddressesRequest,
  LeaseServiceService,
  OpenSessionRequest,
  ReportInventoryRequest,
  type NodeSession,
} from '@podwire/proto/podwire/ipam/v1/lease';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';
import { Peer } from '@podwire/shared/rpc/client';
import { certificateSource, CertificateFolder } from '@podwire/shared/testing/certificates';
import { IPAM_SERVER_NAME } from '@podwire/shared/tls/caller';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';

import type { RunningService } from '../service.js';
import { attachment, Caller, clientLimits, Place } from '../testing/service.js';

/** A node's certificate in the wrong hands: whatever it requests, the other nodes get addresses of the pool. */

const POOL_SIZE = 1024;
const BOOT = '11111111-1111-4111-8111-111111111111';
const MACHINE = '33333333-3333-4333-8333-333333333333';

const root = new Place();
let folder: CertificateFolder;
let place: Place;
let service: RunningService;
let local: Caller;
let peers: Peer[];

beforeAll(async () => {
  folder = await CertificateFolder.create(join(root.directory, 'certificates'));
});
afterAll(() => root.remove());

beforeEach(async () => {
  place = new Place();
  peers = [];
  const { ca, identity } = await folder.server();
  service = await place.start({
    PODWIRE_IPAM_LISTEN: `${place.address},127.0.0.1:0`,
    PODWIRE_IPAM_TLS_CERT_FILE: identity!.certificate.path,
    PODWIRE_IPAM_TLS_KEY_FILE: identity!.key.path,
    PODWIRE_IPAM_TLS_CLIENT_CA_FILE: ca!.path,
    PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/22',
  });
  local = new Caller(place.address);
});
afterEach(async () => {
  for (const peer of peers) peer.close();
  local.close();
  await service.stop();
  place.remove();
});

/** Connects with the certificate of a node. */
async function nodePeer(name: string): Promise<Peer> {
  const tls = {
    certificates: certificateSource(await folder.client('node', name)).source,
    serverName: IPAM_SERVER_NAME,
  };
  const peer = new Peer('podwire-ipam', service.addresses[1]!, { tls });
  peers.push(peer);
  return peer;
}

async function register(count: number): Promise<string[]> {
  const names = Array.from({ length: count }, (_, index) => `node-${index + 1}`);
  for (const [index, name] of names.entries()) {
    const message = RegisterNodeRequest.fromPartial({ name, ipv4Address: `192.0.2.${index + 1}/24` });
    await local.peer.call(NodeServiceService.registerNode, message, clientLimits());
  }
  return names;
}

const allocateAt = (peer: Peer, nodeName: string, containerId: string, addresses: string[] = []) =>
  peer.call(
    AddressServiceService.allocate,
    AllocateRequest.fromPartial({ attachment: attachment(containerId), nodeName, addresses }),
    clientLimits(),
  );

const addressOf = (index: number) => `10.65.${index >> 8}.${index & 255}`;

/** Runs calls, 16 at once, until each of the last ones was refused. A caller of too many calls loses its connection. */
async function untilRefused(call: (index: number) => Promise<unknown>): Promise<void> {
  let index = 0;
  let refusals = 0;
  const repeated = async (at: number): Promise<unknown> => {
    for (;;)
      try {
        return await call(at);
      } catch (error) {
        if (!(error instanceof Failure) || error.code !== 'UNREACHABLE') throw error;
        await sleep(100);
      }
  };
  const worker = async (): Promise<void> => {
    while (index < 3 * POOL_SIZE && refusals < 64)
      try {
        await repeated(index++);
        refusals = 0;
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
        if (!['POOLS_EXHAUSTED', 'ADDRESS_REFUSED', 'ADDRESS_IN_USE'].includes(error.code)) throw error;
        else refusals++;
      }
  };
  await Promise.all(Array.from({ length: 16 }, worker));
}

type Attack = (peer: Peer) => Promise<void>;

async function openSession(peer: Peer): Promise<NodeSession> {
  const message = OpenSessionRequest.fromPartial({ nodeName: 'node-1', machineId: MACHINE, bootId: BOOT });
  const opened = await peer.call(LeaseServiceService.openSession, message, clientLimits());
  return { bootId: BOOT, generation: opened.generation, revision: opened.revision };
}

/** Binds addresses, in calls of at most 128. */
async function bind(peer: Peer, session: NodeSession, addresses: readonly string[]): Promise<number> {
  let boundCount = 0;
  for (let done = 0; done < addresses.length; done += 128) {
    const message = BindAddressesRequest.fromPartial({
      nodeName: 'node-1',
      session,
      bindings: addresses.slice(done, done + 128).map((address) => ({
        attachment: attachment(`b-${address.replaceAll('.', '-')}`),
        addresses: [{ address, sequenceNumber: 1n }],
        attachTime: new Date(),
      })),
    });
    const { results } = await peer.call(LeaseServiceService.bindAddresses, message, clientLimits());
    boundCount += results.filter(({ refusalCode }) => refusalCode === '').length;
  }
  return boundCount;
}

const EVERY_ADDRESS = Array.from({ length: POOL_SIZE }, (_, index) => addressOf(index));

const ATTACKS: Readonly<Record<string, Attack>> = {
  Allocate: (peer) => untilRefused((index) => allocateAt(peer, 'node-1', `c${index}`)),
  'requested addresses': (peer) =>
    untilRefused((index) => allocateAt(peer, 'node-1', `c${index}`, [addressOf((index * 65) % POOL_SIZE)])),
  LeaseAddresses: async (peer) => {
    const session = await openSession(peer);
    for (let boundCount = 1; boundCount > 0;) {
      const message = LeaseAddressesRequest.fromPartial({
        nodeName: 'node-1',
        bootId: BOOT,
        family: IpFamily.IP_FAMILY_IPV4,
        count: 256,
        session,
      });
      const { addresses } = await peer.call(LeaseServiceService.leaseAddresses, message, clientLimits());
      boundCount = await bind(
        peer,
        session,
        addresses.map(({ address }) => address),
      );
    }
  },
  BindAddresses: async (peer) => {
    await bind(peer, await openSession(peer), EVERY_ADDRESS);
  },
  ReportInventory: async (peer) => {
    const session = await openSession(peer);
    const attachments = EVERY_ADDRESS.map((address) => ({
      attachment: attachment(`b-${address.replaceAll('.', '-')}`),
      addresses: [{ address, sequenceNumber: 1n }],
    }));
    const digest = Buffer.alloc(32);
    const message = ReportInventoryRequest.fromPartial({
      nodeName: 'node-1',
      session,
      whole: true,
      digest,
      attachments,
    });
    for (let count = 0; count < POOL_SIZE / 64; count++)
      await peer.call(LeaseServiceService.reportInventory, message, clientLimits());
  },
};

async function heldBy(nodeName: string): Promise<number> {
  const blocks = await local.allBlocks();
  return blocks.flatMap(({ allocations }) => allocations).filter(({ attributes }) => attributes.node === nodeName)
    .length;
}

/** How much a node can still allocate, up to a count. */
async function takenBy(peer: Peer, nodeName: string, most: number): Promise<number> {
  for (let count = 0; count < most; count++)
    try {
      await allocateAt(peer, nodeName, `own-${nodeName}-${count}`);
    } catch (error) {
      if (error instanceof Failure && error.code === 'POOLS_EXHAUSTED') return count;
      throw error;
    }
  return most;
}

/** Answer of ExplainAllocation to a node about its next pod. */
function explain(peer: Peer, nodeName: string) {
  const request = AllocateRequest.fromPartial({ attachment: attachment('next'), nodeName });
  const message = ExplainAllocationRequest.fromPartial({ request });
  return peer.call(AddressServiceService.explainAllocation, message, clientLimits());
}

test.each(Object.keys(ATTACKS).flatMap((name) => [2, 8].map((count) => [name, count] as const)))(
  'by %s, one of %i nodes leaves each other node its share',
  async (name, nodeCount) => {
    const [, ...remaining] = await register(nodeCount);
    const greedy = await nodePeer('node-1');
    await ATTACKS[name]!(greedy);

    const share = POOL_SIZE / (4 * nodeCount);
    const keptCount = (nodeCount - 1) * share;
    if (name !== 'ReportInventory') expect(await heldBy('node-1')).toBe(POOL_SIZE - keptCount);
    const kept = `its last ${keptCount} free addresses are kept for ${formatCount(nodeCount - 1, 'node')} with fewer than ${share} addresses`;
    expect(await explain(greedy, 'node-1')).toMatchObject({
      refusalCode: 'POOLS_EXHAUSTED',
      refusal: expect.stringContaining('Remedy: create a pool'),
      families: [{ pools: [{ passedOverReason: kept }] }],
    });
    for (const other of remaining) expect(await takenBy(await nodePeer(other), other, share)).toBe(share);
  },
);

test.each(Object.keys(ATTACKS))(
  'by %s with strict affinity, one of 8 nodes leaves each other node a block',
  async (name) => {
    const strict = UpdateConfigRequest.fromPartial({ strictAffinity: true });
    await local.peer.call(ConfigServiceService.updateConfig, strict, clientLimits());
    const [, ...remaining] = await register(8);
    const greedy = await nodePeer('node-1');
    await ATTACKS[name]!(greedy);

    expect(await heldBy('node-1')).toBeLessThanOrEqual(9 * 64);
    for (const other of remaining) expect(await takenBy(await nodePeer(other), other, 64)).toBe(64);
    expect(await takenBy(await nodePeer('node-2'), 'node-2', 65)).toBe(64);
  },
);
