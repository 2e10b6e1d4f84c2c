import { release } from '../addresses/release.js';
import { leaseAttributes } from '../records/lease.js';
import {
  B1,
  calicoAttributes,
  change,
  drop,
  allocateFor,
  handleRecord,
  IN_NO_BLOCK,
  LATER_MS,
  OF_C1,
  setNode,
  takeUnrecorded,
  type Damage,
} from './damages.js';
import { block, claimedBlock, nodeRecord, NOW_MS, prefix, request, session } from './records.js';

/** Damages of handles, endpoints and tunnels, and of addresses and their holders. */
export const ALLOCATION_DAMAGES: readonly Damage[] = [
  {
    name: 'a handle without addresses',
    kind: 'handleWithoutAddresses',
    of: 'net.orphan',
    damage: (view) => view.put(handleRecord('net.orphan', { [B1]: 1, '10.0.0.12/30': 1 })),
    repaired: true,
  },
  {
    name: 'a handle that counts nothing',
    kind: 'handleWithoutAddresses',
    of: 'net.orphan',
    damage: (view) => view.put(handleRecord('net.orphan', {})),
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
    kind: 'endpointMissing',
    of: 'default/n1-k8s-pod--c1-eth0',
    damage: (view) =>
      drop(view, 'endpoint', (record) => record.kind === 'endpoint' && record.value.attachment.containerId === 'c1'),
    repaired: true,
  },
  {
    name: 'an allocation without an endpoint on a node that is gone',
    kind: 'allocationUnused',
    of: OF_C1,
    damage: (view) => {
      drop(view, 'endpoint', (record) => record.kind === 'endpoint' && record.value.attachment.containerId === 'c1');
      drop(view, 'node');
      setNode(view, 'n2');
    },
    besides: ['*'],
    repaired: true,
    released: 3,
  },
  {
    name: 'an allocation of a sandbox that another one of its pod replaced',
    kind: 'allocationUnused',
    of: OF_C1,
    damage: (view) => allocateFor(view, request('next', { pod: { namespace: 'default', name: 'pod-c1', uid: '' } })),
    besides: ['*'],
    repaired: false,
  },
  {
    name: 'an endpoint whose address was allocated to another since',
    kind: 'addressOfSeveralOwners',
    of: OF_C1,
    damage: (view) => {
      const { key, value } = view.endpoints()[0]!;
      view.apply(release(view, value.attachment, NOW_MS));
      allocateFor(view, request('heir', { addresses: [prefix(`${OF_C1}/32`)] }));
      view.put({ kind: 'endpoint', key, value: { ...value, addresses: value.addresses.slice(0, 1) } });
    },
    repaired: true,
  },
  {
    name: 'the address of a virtual machine that is stopped',
    kind: 'allocationUnexplained',
    of: 'fd00::c',
    damage: (view) => {
      const handleId = 'k8s-pod-network.vmi.default.vm1';
      const { owner } = calicoAttributes('c9', 'virt-launcher-vm1');
      const attributes = { handleId, owner: { ...owner, 'vmi-name': 'vm1', 'vm-uid': 'u1' } };
      claimedBlock(takeUnrecorded(block('fd00::c/126', 'n1'), attributes)).forEach((record) => view.put(record));
      view.put(handleRecord(handleId, { 'fd00::c/126': 1 }));
    },
    repaired: false,
  },
  {
    name: 'an allocation of Calico’s plugin that no endpoint names',
    kind: 'allocationUnused',
    of: 'fd00::c',
    damage: (view) => {
      claimedBlock(takeUnrecorded(block('fd00::c/126', 'n1'), calicoAttributes('c9', 'gone'))).forEach((record) =>
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
      claimedBlock(takeUnrecorded(block('fd00::c/126', 'n1'), attributes)).forEach((record) => view.put(record));
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
        sequenceNumbers: value.sequenceNumbers.with(0, null),
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
      claimedBlock(takeUnrecorded(block('fd00::c/126', 'n1'), attributes)).forEach((record) => view.put(record));
      view.put(handleRecord('vxlan-v6-tunnel-addr-n1', { 'fd00::c/126': 1 }));
    },
    repaired: true,
    released: 1,
  },
  {
    name: 'a lease of a node that is not registered',
    kind: 'leaseOfGoneNode',
    of: 'fd00::c',
    damage: (view) => {
      const attributes = leaseAttributes({ nodeName: 'n9', bootId: 'b', nowMs: NOW_MS });
      claimedBlock(takeUnrecorded(block('fd00::c/126', 'n1'), attributes)).forEach((record) => view.put(record));
      view.put(handleRecord('podwire-lease.n9', { 'fd00::c/126': 1 }));
    },
    repaired: true,
    released: 1,
  },
  {
    name: 'a lease that names no boot',
    kind: 'leaseWithoutBoot',
    of: 'fd00::c',
    damage: (view) => {
      const attributes = leaseAttributes({ nodeName: 'n1', bootId: '', nowMs: NOW_MS });
      claimedBlock(takeUnrecorded(block('fd00::c/126', 'n1'), attributes)).forEach((record) => view.put(record));
      view.put(handleRecord('podwire-lease.n1', { 'fd00::c/126': 1 }));
    },
    repaired: false,
  },
  {
    name: 'a pod whose address the datastore has allocated to another one',
    kind: 'addressConflict',
    of: OF_C1,
    damage: (view) => {
      const conflicts = [{ address: prefix(`${OF_C1}/32`), attachment: 'net/c9/eth0', holder: 'net/c1/eth0 on n1' }];
      view.put({ kind: 'nodeSession', value: session('n2', { conflicts, reportedAtMs: LATER_MS }) });
    },
    repaired: false,
  },
  {
    name: 'a node that runs without reports',
    kind: 'nodeUnreported',
    of: 'n1',
    damage: (view) => {
      view.put({ kind: 'nodeSession', value: session('n1') });
      view.monotonicMs += 600_000;
      view.put({ kind: 'nodeSession', value: session('n1', { revision: 2 }) });
    },
    repaired: false,
  },
  {
    name: 'a node in the range of a pool',
    kind: 'nodeInPool',
    of: 'n9',
    damage: (view) => {
      view.put(nodeRecord('n9', { ipv4: { address: prefix('10.0.9.7/32'), subnetBits: 16 } }));
    },
    repaired: false,
  },
  {
    name: 'an address of two nodes',
    kind: 'addressOfSeveralOwners',
    of: '192.0.2.7',
    damage: (view) => {
      const ipv4 = { address: prefix('192.0.2.7/32'), subnetBits: 24 };
      for (const name of ['n8', 'n9']) view.put(nodeRecord(name, { ipv4 }));
    },
    repaired: false,
  },
  {
    name: 'an address whose cool-down is over',
    kind: 'coolDownOver',
    of: 'fd00::c/126',
    damage: (view) => {
      const attributes = { releasedAtMs: NOW_MS - (NOW_MS % 1000) };
      claimedBlock(takeUnrecorded(block('fd00::c/126', 'n1'), attributes)).forEach((record) => view.put(record));
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
