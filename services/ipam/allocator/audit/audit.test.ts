import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { disagreements } from '../../agreement.fixture.js';
import { heldIn } from '../give-back.js';
import type { MapView } from '../map-view.fixture.js';
import type { Node, TunnelKind } from '../records.js';
import { affinity, block, claimedBlock, fullBlock, NOW_MS, poolRecord, prefix } from '../records.fixture.js';
import {
  audit,
  blockAt,
  calicoAttributes,
  change,
  drop,
  found,
  handleRecord,
  healthyView,
  LATER_MS,
  putBlock,
  repairAll,
  takeBehind,
} from './audit.fixture.js';
import { FINDING_KINDS, severityOf, type FindingKind } from './finding.js';

interface Damage {
  readonly name: string;
  readonly kind: FindingKind;
  /** What the finding is about. */
  readonly of: string;
  /** Damages a healthy view of two pools. */
  readonly damage: (view: MapView) => void;
  /** Other findings that the damage brings along, as `kind object`. */
  readonly besides?: readonly string[];
  /** Whether a repair ends it. */
  readonly repaired: boolean;
  /** Held addresses that the repair gives back or, below 0, takes again; 0 unless said. */
  readonly released?: number;
}

/** The block of the first container's IPv4 address. */
function firstBlock(view: MapView): string {
  return formatPrefix(view.blocks()[0]!.prefix);
}

function first(view: MapView) {
  return blockAt(view, firstBlock(view));
}

/** The node record that an allocation made. */
function anyNode(): Node {
  const [node] = healthyView().nodes();
  if (!node) throw new Error('allocations register their nodes');
  return node;
}

function setNode(view: MapView, name: string, tunnels: readonly (readonly [TunnelKind, string])[] = []): void {
  const addresses = tunnels.map(([kind, cidr]) => [kind, { address: prefix(cidr) }] as const);
  view.put({ kind: 'node', value: { ...anyNode(), name, uid: `uid-${name}`, tunnels: new Map(addresses) } });
}

/** The IPv4 address of a container, of full length. */
function addressOf(view: MapView, containerId: string): string {
  const endpoint = view.endpoints().find(({ value }) => value.attachment.containerId === containerId);
  return formatPrefix(endpoint!.value.addresses[0]!.address);
}

function bare(view: MapView, containerId: string): string {
  return addressOf(view, containerId).replace('/32', '');
}

const HEALTHY = healthyView();
const B1 = firstBlock(HEALTHY);
const OF_C1 = bare(HEALTHY, 'c1');
const IN_NO_BLOCK = '10.9.9.9';

const DAMAGES: readonly Damage[] = [
  {
    name: 'a record that cannot be read',
    kind: 'recordUnreadable',
    of: '/calico/ipam/v2/handle/x',
    damage: (view) =>
      void view.setAside.push({ key: '/calico/ipam/v2/handle/x', name: { kind: 'handle', id: 'x' }, reason: 'no' }),
    repaired: false,
  },
  {
    name: 'pools that overlap',
    kind: 'poolsOverlap',
    of: 'four',
    damage: (view) => view.put(poolRecord('half', '10.0.0.8/29', { blockSizeBits: 30 })),
    repaired: false,
  },
  {
    name: 'an empty block within another',
    kind: 'blocksOverlap',
    of: B1.replace('/30', '/31'),
    damage: (view) => claimedBlock(block(B1.replace('/30', '/31'), 'n1')).forEach((record) => view.put(record)),
    besides: [`blockOfOtherSize ${B1.replace('/30', '/31')}`],
    repaired: true,
  },
  {
    name: 'a free address that is listed twice',
    kind: 'blockInvalid',
    of: B1,
    damage: (view) => change(view, B1, ({ unallocated }) => ({ unallocated: [...unallocated, unallocated[0]!] })),
    repaired: true,
  },
  {
    name: 'a free address that is not listed',
    kind: 'blockInvalid',
    of: B1,
    damage: (view) => change(view, B1, ({ unallocated }) => ({ unallocated: unallocated.slice(1) })),
    repaired: true,
  },
  {
    name: 'an address both allocated and free',
    kind: 'blockInvalid',
    of: B1,
    damage: (view) => change(view, B1, ({ unallocated }) => ({ unallocated: [...unallocated, 0] })),
    repaired: true,
  },
  {
    name: 'a free ordinal out of range',
    kind: 'blockInvalid',
    of: B1,
    damage: (view) => change(view, B1, ({ unallocated }) => ({ unallocated: [...unallocated, 99] })),
    repaired: true,
  },
  {
    name: 'unreferenced attributes',
    kind: 'blockInvalid',
    of: B1,
    damage: (view) =>
      change(view, B1, ({ attributes }) => ({ attributes: [...attributes, calicoAttributes('x', 'x')] })),
    repaired: true,
  },
  {
    name: 'an allocation whose attributes do not exist',
    kind: 'blockInvalid',
    of: B1,
    damage: (view) => change(view, B1, ({ allocations }) => ({ allocations: allocations.with(0, 9) })),
    besides: [`addressUnallocated ${OF_C1}`, 'handleCountsWrong net.c1'],
    repaired: true,
    released: -1,
  },
  {
    name: 'a sequence number that the block has not reached',
    kind: 'blockInvalid',
    of: B1,
    damage: (view) => change(view, B1, () => ({ sequenceNumber: 5n })),
    repaired: true,
  },
  {
    name: 'an empty block in no pool',
    kind: 'blockWithoutPool',
    of: '192.168.0.0/26',
    damage: (view) => claimedBlock(block('192.168.0.0/26', 'n1')).forEach((record) => view.put(record)),
    repaired: true,
  },
  {
    name: 'a block in no pool with addresses in use',
    kind: 'blockWithoutPool',
    of: '192.168.0.0/31',
    damage: (view) => {
      claimedBlock(fullBlock('192.168.0.0/31', 'n1')).forEach((record) => view.put(record));
      view.put(handleRecord('other.owner', { '192.168.0.0/31': 2 }));
    },
    besides: ['allocationUnexplained 192.168.0.0', 'allocationUnexplained 192.168.0.1'],
    repaired: false,
  },
  {
    name: 'an empty block of another size than its pool’s',
    kind: 'blockOfOtherSize',
    of: '10.0.0.8/31',
    damage: (view) => {
      drop(view, 'block', (record) => record.kind === 'block' && formatPrefix(record.value.prefix) === '10.0.0.8/30');
      claimedBlock(block('10.0.0.8/31', 'n1')).forEach((record) => view.put(record));
    },
    besides: ['*'],
    repaired: true,
  },
  {
    name: 'an empty block that nobody owns',
    kind: 'blockWithoutOwnerEmpty',
    of: 'fd00::c/126',
    damage: (view) => putBlock(view, block('fd00::c/126', 'n1', { owner: undefined, claimTimeMs: undefined })),
    repaired: true,
  },
  {
    name: 'a block whose owner has no affinity',
    kind: 'blockWithoutAffinity',
    of: B1,
    damage: (view) =>
      drop(view, 'affinity', (record) => record.kind === 'affinity' && formatPrefix(record.value.block) === B1),
    repaired: true,
  },
  {
    name: 'a claim that ended after the block was made',
    kind: 'affinityUnconfirmed',
    of: B1,
    damage: (view) => view.put({ kind: 'affinity', value: affinity(B1, first(view).owner!.name, 'pending') }),
    repaired: true,
  },
  {
    name: 'a release that ended before its empty block went',
    kind: 'affinityUnconfirmed',
    of: 'fd00::c/126',
    damage: (view) => claimedBlock(block('fd00::c/126', 'n1'), 'pendingDeletion').forEach((record) => view.put(record)),
    repaired: true,
  },
  {
    name: 'a pending affinity without a block',
    kind: 'affinityWithoutBlock',
    of: 'host:n1/fd00::c/126',
    damage: (view) => view.put({ kind: 'affinity', value: affinity('fd00::c/126', 'n1', 'pending') }),
    repaired: true,
  },
  {
    name: 'an affinity for another node’s block',
    kind: 'affinityOfOthersBlock',
    of: `host:n7/${B1}`,
    damage: (view) => view.put({ kind: 'affinity', value: affinity(B1, 'n7') }),
    repaired: true,
  },
  {
    name: 'an affinity for a block that nobody owns',
    kind: 'affinityOfOthersBlock',
    of: `host:n1/${B1}`,
    damage: (view) => change(view, B1, () => ({ owner: undefined })),
    repaired: true,
  },
  {
    name: 'an empty block of a node that is gone',
    kind: 'blockOfGoneNode',
    of: 'fd00::c/126',
    damage: (view) => {
      setNode(view, 'n1');
      setNode(view, 'n2');
      claimedBlock(block('fd00::c/126', 'n9')).forEach((record) => view.put(record));
    },
    repaired: true,
  },
  {
    name: 'a handle without addresses',
    kind: 'handleWithoutAddresses',
    of: 'net.stray',
    damage: (view) => view.put(handleRecord('net.stray', { [B1]: 1, '10.0.0.12/30': 1 })),
    repaired: true,
  },
  {
    name: 'a handle that counts nothing',
    kind: 'handleWithoutAddresses',
    of: 'net.stray',
    damage: (view) => view.put(handleRecord('net.stray', {})),
    repaired: true,
  },
  {
    name: 'a handle that counts too many',
    kind: 'handleCountsWrong',
    of: 'net.c1',
    damage: (view) => {
      const { blocks } = view.handle('net.c1')!;
      view.put({ kind: 'handle', value: { id: 'net.c1', blocks: new Map(blocks).set(B1, 7).set('10.0.0.12/30', 1) } });
    },
    repaired: true,
  },
  {
    name: 'a handle that lacks a block',
    kind: 'handleCountsWrong',
    of: 'net.c1',
    damage: (view) => {
      const blocks = [...view.handle('net.c1')!.blocks].filter(([cidr]) => cidr !== B1);
      view.put({ kind: 'handle', value: { id: 'net.c1', blocks: new Map(blocks) } });
    },
    repaired: true,
  },
  {
    name: 'addresses whose handle is missing',
    kind: 'handleMissing',
    of: 'net.c1',
    damage: (view) => drop(view, 'handle', (record) => record.kind === 'handle' && record.value.id === 'net.c1'),
    repaired: true,
  },
  {
    name: 'an allocation without an endpoint',
    kind: 'allocationUnused',
    of: OF_C1,
    damage: (view) =>
      drop(view, 'endpoint', (record) => record.kind === 'endpoint' && record.value.attachment.containerId === 'c1'),
    besides: ['*'],
    repaired: true,
    released: 2,
  },
  {
    name: 'an allocation of Calico’s plugin that no endpoint names',
    kind: 'allocationUnused',
    of: 'fd00::c',
    damage: (view) => {
      claimedBlock(takeBehind(block('fd00::c/126', 'n1'), calicoAttributes('c9', 'gone'))).forEach((record) =>
        view.put(record),
      );
      view.put(handleRecord('k8s-pod-network.c9', { 'fd00::c/126': 1 }));
    },
    repaired: true,
    released: 1,
  },
  {
    name: 'an allocation of unknown origin',
    kind: 'allocationUnexplained',
    of: 'fd00::c',
    damage: (view) => {
      const attributes = { handleId: 'my-handle', owner: { note: 'mine' } };
      claimedBlock(takeBehind(block('fd00::c/126', 'n1'), attributes)).forEach((record) => view.put(record));
      view.put(handleRecord('my-handle', { 'fd00::c/126': 1 }));
    },
    repaired: false,
  },
  {
    name: 'an endpoint whose address is free',
    kind: 'addressUnallocated',
    of: OF_C1,
    damage: (view) => {
      change(view, B1, (value) => ({
        allocations: value.allocations.with(0, null),
        unallocated: [...value.unallocated, 0],
        attributes: value.attributes.slice(1),
        sequenceNumbers: new Map([...value.sequenceNumbers].filter(([ordinal]) => ordinal !== 0)),
      }));
      change(view, B1, ({ allocations }) => ({
        allocations: allocations.map((index) => (index === null ? null : index - 1)),
      }));
    },
    besides: ['handleCountsWrong net.c1'],
    repaired: true,
    released: -1,
  },
  {
    name: 'an endpoint whose address is in no pool',
    kind: 'addressUnallocated',
    of: IN_NO_BLOCK,
    damage: (view) => {
      const { key, value } = view.endpoints()[0]!;
      const address = { ...value.addresses[0]!, address: prefix(`${IN_NO_BLOCK}/32`) };
      view.put({ kind: 'endpoint', key, value: { ...value, addresses: [...value.addresses, address] } });
    },
    repaired: false,
  },
  {
    name: 'two endpoints with one address',
    kind: 'addressOfSeveralOwners',
    of: OF_C1,
    damage: (view) => {
      const [one, , three] = view.endpoints();
      const addresses = [...three!.value.addresses, one!.value.addresses[0]!];
      view.put({ kind: 'endpoint', key: three!.key, value: { ...three!.value, addresses } });
    },
    repaired: false,
  },
  {
    name: 'an endpoint with an old sequence number',
    kind: 'endpointOutdated',
    of: 'default/n1-k8s-pod--c1-eth0',
    damage: (view) => {
      const { key, value } = view.endpoints()[0]!;
      const addresses = value.addresses.map((address) => ({ ...address, sequenceNumber: 1n }));
      view.put({ kind: 'endpoint', key, value: { ...value, addresses } });
    },
    repaired: true,
  },
  {
    name: 'an endpoint that lacks an address',
    kind: 'endpointOutdated',
    of: 'default/n1-k8s-pod--c1-eth0',
    damage: (view) => {
      const { key, value } = view.endpoints()[0]!;
      view.put({ kind: 'endpoint', key, value: { ...value, addresses: value.addresses.slice(0, 1) } });
    },
    repaired: true,
  },
  {
    name: 'an endpoint on a node that is gone',
    kind: 'endpointOfGoneNode',
    of: 'default/n2-cni-c3-eth0',
    damage: (view) => {
      drop(view, 'node');
      setNode(view, 'n1');
    },
    besides: ['*'],
    repaired: true,
    released: 1,
  },
  {
    name: 'a tunnel address that is not allocated',
    kind: 'tunnelUnallocated',
    of: 'fd00::c',
    damage: (view) => {
      setNode(view, 'n1', [['vxlanV6TunnelAddress', 'fd00::c/128']]);
      setNode(view, 'n2');
    },
    repaired: false,
  },
  {
    name: 'a tunnel address that its node does not name',
    kind: 'tunnelAllocationUnused',
    of: 'fd00::c',
    damage: (view) => {
      setNode(view, 'n1');
      setNode(view, 'n2');
      const attributes = { handleId: 'vxlan-v6-tunnel-addr-n1', owner: { node: 'n1', type: 'vxlanV6TunnelAddress' } };
      claimedBlock(takeBehind(block('fd00::c/126', 'n1'), attributes)).forEach((record) => view.put(record));
      view.put(handleRecord('vxlan-v6-tunnel-addr-n1', { 'fd00::c/126': 1 }));
    },
    repaired: true,
    released: 1,
  },
  {
    name: 'an address whose cool-down is over',
    kind: 'coolDownOver',
    of: 'fd00::c/126',
    damage: (view) => {
      const attributes = { releasedAtMs: NOW_MS - (NOW_MS % 1000) };
      claimedBlock(takeBehind(block('fd00::c/126', 'n1'), attributes)).forEach((record) => view.put(record));
    },
    repaired: true,
  },
  {
    name: 'an address in use that is reserved',
    kind: 'reservedInUse',
    of: OF_C1,
    damage: (view) => {
      const prefixes = [prefix(`${OF_C1}/32`)];
      view.put({ kind: 'reservation', value: { name: 'r', uid: 'u', createTimeMs: NOW_MS, prefixes } });
    },
    repaired: false,
  },
];

test('a healthy datastore has no findings', () => {
  expect(found(healthyView())).toEqual([]);
  expect(found(healthyView(), NOW_MS)).toEqual([]);
});

describe.each(DAMAGES)('$name', ({ kind, of, damage, besides = [], repaired, released = 0 }) => {
  test('is found', () => {
    const view = healthyView();
    damage(view);
    const all = found(view);
    expect(all).toContain(`${kind} ${of}`);
    if (!besides.includes('*')) expect(all).toEqual([`${kind} ${of}`, ...besides].sort());
    const [finding] = audit(view).filter((each) => each.kind === kind);
    expect(finding).toMatchObject({
      explanation: expect.stringMatching(/./),
      id: `${kind}/${finding!.objects[0]!.type}/${of}`,
    });
    expect(['error', 'warning', 'information']).toContain(severityOf(finding!));
  });

  test(repaired ? 'is repaired, and nothing else is touched' : 'is left as it is', () => {
    const view = healthyView();
    damage(view);
    const before = held(view);
    const results = repairAll(view);
    if (repaired) {
      expect(results.map(({ state }) => state)).toContain('repaired');
      expect(found(view)).toEqual([]);
      expect(disagreements(view, LATER_MS)).toEqual([]);
      expect(before.length - held(view).length).toBe(released);
      expect(released > 0 ? before : held(view)).toEqual(expect.arrayContaining(released > 0 ? held(view) : before));
    } else {
      expect(found(view)).toContain(`${kind} ${of}`);
    }
  });

  test('is left as it is by a dry run', () => {
    const view = healthyView();
    damage(view);
    const before = view.snapshot();
    const results = repairAll(view, { dryRun: true, passes: 1 });
    expect(view.snapshot()).toEqual(before);
    expect(results.map(({ state }) => state)).toContain(repaired ? 'possible' : 'refused');
  });
});

test('every kind of finding is among the damages, but one that needs a foreign endpoint', () => {
  const known = new Set<string>(DAMAGES.map(({ kind }) => kind));
  expect(Object.keys(FINDING_KINDS).filter((kind) => !known.has(kind))).toEqual(['addressOutsidePools']);
});

/** Who holds which address, with its sequence number. */
function held(view: MapView): string[] {
  return view
    .blocks()
    .flatMap((value) => heldIn(value, () => true))
    .map(({ block: { prefix: cidr, sequenceNumbers }, ordinal, attributes }) =>
      [formatPrefix(cidr), ordinal, attributes.handleId, sequenceNumbers.get(ordinal)].join(' '),
    );
}
