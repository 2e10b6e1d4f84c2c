import process from 'node:process';

import { AddressServiceService } from '@podwire/proto/podwire/ipam/v1/address';
import { EndpointServiceService, ListEndpointsRequest } from '@podwire/proto/podwire/ipam/v1/endpoint';
import {
  AuditRequest,
  AuditServiceService,
  FindingKind,
  RepairOutcome,
  RepairRequest,
  type AuditResponse,
} from '@podwire/proto/podwire/ipam/v1/maintenance';
import { afterEach, describe, expect, test } from 'vitest';

import { EmbeddedStore } from '../engine/embedded/embedded-store.js';
import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { RecordKeys } from '../records/json/keys.js';
import type { RunningService } from '../service.js';
import { Caller, Place } from '../testing/service.js';

const IPAM = '/calico/ipam/v2';
const CR = '\r';

/** Leftovers of an old Calico, as it writes them: the address of a deleted pod, its handles, and incomplete claims and blocks. */
const LEFT_BEHIND: Readonly<Record<string, unknown>> = {
  [`${IPAM}/assignment/ipv4/block/10.65.0.0-26`]: {
    cidr: '10.65.0.0/26',
    affinity: 'host:node-1',
    allocations: [0, 1, ...Array.from({ length: 62 }, () => null)],
    unallocated: Array.from({ length: 62 }, (_, index) => index + 2),
    attributes: [
      {
        handle_id: `k8s-pod-network.9f2c${CR}`,
        secondary: { namespace: 'default', node: 'node-1', pod: 'gone', timestamp: '2026-01-22 06:33:25.1 +0000 UTC' },
      },
      {
        handle_id: 'k8s-pod-network.77aa',
        secondary: { namespace: 'default', node: 'node-1', pod: 'web-0', timestamp: '2026-01-22 06:33:25.1 +0000 UTC' },
      },
    ],
    sequenceNumber: 12,
    sequenceNumberForAllocation: { 0: 10, 1: 11 },
    deleted: false,
  },
  [`${IPAM}/assignment/ipv4/block/10.65.0.128-26`]: {
    cidr: '10.65.0.128/26',
    affinity: null,
    allocations: Array.from({ length: 64 }, () => null),
    unallocated: Array.from({ length: 64 }, (_, index) => index),
    attributes: [],
    deleted: false,
  },
  [`${IPAM}/host/node-1/ipv4/block/10.65.0.0-26`]: { state: 'confirmed', deleted: false },
  [`${IPAM}/host/node-1/ipv4/block/10.65.0.64-26`]: { state: 'pending', deleted: false },
  [`${IPAM}/handle/k8s-pod-network.9f2c`]: { block: { '10.65.0.0/26': 1 }, deleted: false },
  [`${IPAM}/handle/k8s-pod-network.77aa`]: { block: { '10.65.0.0/26': 3, '10.65.0.64/26': 1 }, deleted: false },
  [`${IPAM}/handle/k8s-pod-network.dead`]: { block: { '10.65.0.64/26': 1 }, deleted: false },
  [`${IPAM}/handle/broken`]: { block: 7 },
  '/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--1-k8s-web--0-eth0': {
    kind: 'WorkloadEndpoint',
    spec: { node: 'node-1', pod: 'web-0', containerID: '77aa', endpoint: 'eth0', ipNetworks: ['10.65.0.1/32'] },
  },
};

const FOUND = [
  ['affinityWithoutBlock', FindingKind.FINDING_KIND_AFFINITY_WITHOUT_BLOCK, 'host:node-1/10.65.0.64/26'],
  ['allocationUnused', FindingKind.FINDING_KIND_ALLOCATION_UNUSED, '10.65.0.0'],
  ['blockWithoutOwnerEmpty', FindingKind.FINDING_KIND_BLOCK_WITHOUT_OWNER_EMPTY, '10.65.0.128/26'],
  ['handleCountsWrong', FindingKind.FINDING_KIND_HANDLE_COUNTS_WRONG, 'k8s-pod-network.77aa'],
  ['handleWithoutAddresses', FindingKind.FINDING_KIND_HANDLE_WITHOUT_ADDRESSES, 'k8s-pod-network.dead'],
  ['recordUnreadable', FindingKind.FINDING_KIND_RECORD_UNREADABLE, `${IPAM}/handle/broken`],
] as const;

let place: Place | undefined;
let service: RunningService | undefined;
let caller: Caller | undefined;

afterEach(async () => {
  caller?.close();
  await service?.stop();
  place?.remove();
  [place, service, caller] = [undefined, undefined, undefined];
});

/** A service on a datastore with a live pod of Podwire beside the leftovers. */
async function start(): Promise<Caller> {
  place = new Place();
  service = await place.start();
  const first = new Caller(place.address);
  await first.allocate('c1');
  first.close();
  await service.stop();
  const store = await EmbeddedStore.open({ directory: place.storeDirectory, pid: process.pid });
  const puts = Object.entries(LEFT_BEHIND).map(([key, value]) => ({ key, value: Buffer.from(JSON.stringify(value)) }));
  await store.commit({ comparisons: [], puts, deletes: [] }, new AbortController().signal);
  await store.close();
  service = await place.start();
  caller = new Caller(place.address);
  return caller;
}

const limits = () => ({ deadlineMs: Date.now() + 30_000 });

function audit({ peer }: Caller, rest: Partial<AuditRequest> = {}): Promise<AuditResponse> {
  return peer.call(AuditServiceService.audit, AuditRequest.fromPartial({ topNodes: 10, ...rest }), limits());
}

function repair({ peer }: Caller, rest: Partial<RepairRequest> = {}) {
  return peer.call(AuditServiceService.repair, RepairRequest.fromPartial(rest), limits());
}

const shown = ({ findings }: AuditResponse) => findings.map(({ kind, objects: [first] }) => [kind, first?.name]);

describe('leftovers of an old Calico', () => {
  test('are found, page by page, with a summary', async () => {
    const ipam = await start();
    const all = await audit(ipam);
    expect(shown(all)).toEqual(FOUND.map(([, kind, name]) => [kind, name]));
    expect(all.findings.map(({ explanation }) => explanation)).not.toContain('');
    expect(all.summary).toMatchObject({ blocks: 3n, addressesInUse: 3n, addressesCooling: 0n });
    expect(all.summary?.topNodes[0]).toMatchObject({ nodeName: 'node-1', addressesInUse: 3n, addressesBorrowed: 0n });
    expect(all.summary?.namespaces).toEqual([{ namespace: 'default', addressesInUse: 2n }]);
    expect(all.summary?.findings.map(({ count }) => count)).toEqual(FOUND.map(() => 1n));
    const paged: unknown[] = [];
    for (let pageToken = ''; ;) {
      const page = await audit(ipam, { pageSize: 4, pageToken });
      paged.push(...shown(page));
      pageToken = page.nextPageToken;
      if (pageToken === '') break;
    }
    expect(paged).toEqual(shown(all));
    const affinities = [FindingKind.FINDING_KIND_AFFINITY_WITHOUT_BLOCK];
    expect(shown(await audit(ipam, { kinds: affinities }))).toEqual([[affinities[0], 'host:node-1/10.65.0.64/26']]);
  });

  test('are only reported without a repair', async () => {
    const ipam = await start();
    const before = shown(await audit(ipam));
    const { results } = await repair(ipam, { releaseUnused: true });
    expect(
      results.map(({ outcome }) => outcome).filter((each) => each !== RepairOutcome.REPAIR_OUTCOME_POSSIBLE),
    ).toEqual([RepairOutcome.REPAIR_OUTCOME_REFUSED]);
    expect(shown(await audit(ipam))).toEqual(before);
  });

  test('are removed, the unused address only on request, and live objects stay', async () => {
    const ipam = await start();
    const living = await ipam.getEndpoint('c1');
    const first = await repair(ipam, { dryRun: false });
    expect(first.results.filter(({ outcome }) => outcome === RepairOutcome.REPAIR_OUTCOME_REFUSED)).toMatchObject([
      { explanation: expect.stringContaining('correct or delete it') },
      { explanation: expect.stringContaining('must be requested') },
    ]);
    const second = await repair(ipam, { dryRun: false, releaseUnused: true });
    expect(second.results.map(({ outcome }) => outcome)).toContain(RepairOutcome.REPAIR_OUTCOME_REPAIRED);
    expect(shown(await audit(ipam))).toEqual([[FindingKind.FINDING_KIND_RECORD_UNREADABLE, `${IPAM}/handle/broken`]]);
    expect(await ipam.getEndpoint('c1')).toEqual(living);
    await service?.stop();
    service = undefined;
    await expectSound();
  });

  async function expectSound(): Promise<void> {
    const store = await EmbeddedStore.open({ directory: place!.storeDirectory, pid: process.pid });
    try {
      const { signal } = new AbortController();
      await store.commit({ comparisons: [], puts: [], deletes: [`${IPAM}/handle/broken`] }, signal);
      const view = await readAll(store, new RecordKeys('/calico'));
      const handles = view.all('handle').map(({ value }) => [value.id, ...value.blocks]);
      expect(handles).toContainEqual(['k8s-pod-network.77aa', ['10.65.0.0/26', 1]]);
      expect(handles.map(([id]) => id)).not.toContain('k8s-pod-network.9f2c');
      // The agreement requires an endpoint of Podwire's for every address; the other writer's has its own.
      const left = inconsistencies(view, Date.now()).filter((text) => !text.startsWith('10.65.0.1/32 is held without'));
      expect(left).toEqual([]);
    } finally {
      await store.close();
    }
  }
});

test('an endpoint of Calico’s is listed without an attachment, and released with its container', async () => {
  const ipam = await start();
  const list = async () => {
    const message = ListEndpointsRequest.fromPartial({});
    const { endpoints } = await ipam.peer.call(EndpointServiceService.listEndpoints, message, limits());
    return endpoints.map(({ name, attachment, addresses }) => [
      name,
      attachment?.containerId,
      ...addresses.map(({ address, blockCidr, poolName }) => `${address} ${blockCidr} ${poolName}`),
    ]);
  };
  const own = ['node--1-cni-c1-eth0', 'c1', expect.stringMatching(/^10\.65\..* default$/)];
  expect(await list()).toEqual([own, ['node--1-k8s-web--0-eth0', undefined, '10.65.0.1/32 10.65.0.0/26 default']]);
  const attachment = { network: 'k8s-pod-network', containerId: '77aa', interfaceName: 'eth0' };
  await ipam.peer.call(AddressServiceService.release, { attachment }, limits());
  expect(await list()).toEqual([own]);
});

test('malformed requests are refused with every fault', async () => {
  const ipam = await start();
  await expect(
    audit(ipam, { pageSize: -1, topNodes: 2000, kinds: [FindingKind.UNRECOGNIZED], pageToken: 'x' }),
  ).rejects.toMatchObject({
    code: 'INVALID_REQUEST',
    violations: ['top_nodes', 'page_token', 'page_size', 'kinds[0]'].map((field) => ({
      field,
      reason: expect.any(String),
    })),
  });
  await expect(
    repair(ipam, { graceSeconds: 1, limit: -1, kinds: [FindingKind.FINDING_KIND_UNSPECIFIED] }),
  ).rejects.toMatchObject({
    violations: ['grace_seconds', 'limit', 'kinds[0]'].map((field) => ({ field, reason: expect.any(String) })),
  });
});
