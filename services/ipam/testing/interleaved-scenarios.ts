import { addressAt } from '@podwire/shared/net/prefix';

import { takeOrdinals } from '../records/block.js';
import { leaseAttributes, leaseHandle } from '../records/lease.js';
import type { RecordValue } from '../records/view.js';
import {
  allocate,
  bind,
  claim,
  createPool,
  deleteNode,
  deletePool,
  endTunnel,
  giveBack,
  makeStrict,
  note,
  POD,
  reboot,
  release,
  releaseHandle,
  releaseSecond,
  repair,
  second,
  splitPool,
  tunnel,
  type Operation,
} from './interleaved-operations.js';
import { affinity, attachment, block, claimedBlock, nodeRecord, NOW_MS, prefix, session } from './records.js';

export interface Scenario {
  readonly name: string;
  /** Executed one after another before. */
  readonly before?: readonly Operation[];
  /** Written directly before. */
  readonly damage?: readonly RecordValue[];
  readonly operations: readonly Operation[];
  /** Whether changes are delivered to replicas at every possible moment, which makes very many orders. */
  readonly isThorough?: boolean;
}

const one = allocate('c1', { pod: POD });
const two = allocate('c2', { pod: POD });
/** The same container and interface on a second network. */
const onSecond = allocate('c1', { pod: POD, attachment: attachment('c1', { network: 'second' }) });
const both = allocate('c4', { pod: undefined, families: [4, 6] });
const far = allocate('c3', { nodeName: 'n2' });
const given = (id: string, nodeName = 'n1', ordinal = 1): Operation =>
  allocate(id, { nodeName, addresses: [addressAt(prefix('10.0.0.0/30'), ordinal)] });
/** The second block is full. */
const FULL = [given('c7', 'n2', 2), given('c8', 'n2', 3)];
/** The first one has a free address, which other nodes can borrow. */
const LENDING = [...FULL, given('c3', 'n3')];
/** The first one is empty, and was claimed by another node long enough ago to be reclaimed. */
const IDLE = claimedBlock(block('10.0.0.0/31', 'n9', { claimTimeMs: NOW_MS - 3_600_000 }));
/** The first block, both addresses of which node n1 leases, from before its last boot. */
const LEASES: readonly RecordValue[] = [
  ...claimedBlock(
    [0, 1].reduce(
      (leased, ordinal) =>
        takeOrdinals(leased, [ordinal], leaseAttributes({ nodeName: 'n1', bootId: 'b1', nowMs: NOW_MS })),
      block('10.0.0.0/31', 'n1'),
    ),
  ),
  { kind: 'handle', value: { id: leaseHandle('n1'), blocks: new Map([['10.0.0.0/31', 2]]) } },
  nodeRecord('n1'),
  { kind: 'nodeSession', value: session('n1', { bootId: 'b2' }) },
];
const owner = allocate('c9', { nodeName: 'n9' });
const lender = allocate('c5', { nodeName: 'n3' });
const six = createPool('six', 'fd00::/126');

const STRAY: RecordValue = { kind: 'handle', value: { id: 'net.c1', blocks: new Map([['10.0.0.0/31', 1]]) } };
const PENDING: RecordValue = { kind: 'affinity', value: affinity('10.0.0.2/31', 'n1', 'pending') };

/** A pool of two blocks of two addresses, and a block or two in use. */
export const SCENARIOS: readonly Scenario[] = [
  { name: 'one attachment twice', operations: [one, one], isThorough: true },
  { name: 'two containers, no block', operations: [one, two], isThorough: true },
  { name: 'two containers, one address left', before: [far, allocate('c0'), allocate('c9')], operations: [one, two] },
  { name: 'two nodes', operations: [one, far], isThorough: true },
  { name: 'the last block', before: [far], operations: [one, allocate('c5', { nodeName: 'n3' })] },
  { name: 'an attachment comes and goes', before: [one], operations: [one, release('c1')], isThorough: true },
  { name: 'a sandbox replaces another', before: [one], operations: [two, release('c1')], isThorough: true },
  {
    name: 'a release and a request that waits for its address',
    before: [one, two, far, allocate('c0', { nodeName: 'n2' })],
    operations: [release('c1'), allocate('c5')],
  },
  {
    name: 'a second network is undone while the first one goes',
    before: [one, onSecond],
    operations: [releaseSecond('c1'), release('c1')],
    isThorough: true,
  },
  {
    name: 'a second network is undone while the first one is repeated',
    before: [one, onSecond],
    operations: [releaseSecond('c1'), one],
  },
  {
    name: 'two sandboxes are undone while the first one goes',
    before: [one, two, onSecond],
    operations: [releaseSecond('c1'), release('c2'), release('c1')],
  },
  { name: 'one release twice', before: [one], operations: [release('c1'), release('c1')] },
  { name: 'two releases', before: [one, two], operations: [release('c1'), release('c2')] },
  {
    name: 'a release by handle and one by attachment',
    before: [one],
    operations: [releaseHandle('c1'), release('c1')],
  },
  { name: 'a release by handle and the attachment’s return', before: [one], operations: [releaseHandle('c1'), one] },
  { name: 'both families', before: [six], operations: [both, both] },
  { name: 'both families and a release of them', before: [six, both], operations: [both, release('c4')] },
  { name: 'a given address twice', operations: [given('c1'), given('c2', 'n2')] },
  {
    name: 'a given address and one that comes by itself',
    before: [allocate('c0')],
    operations: [given('c1'), allocate('c2')],
  },
  { name: 'pools that overlap', operations: [createPool('a', '10.1.0.0/30'), createPool('b', '10.1.0.0/29')] },
  { name: 'claims of one block', operations: [claim('10.0.0.0/31', 'n1'), claim('10.0.0.0/31', 'n2')] },
  { name: 'a claim and an allocation', operations: [claim('10.0.0.0/30', 'n2'), one] },
  { name: 'a pool goes while an address is given', operations: [deletePool('drain'), one] },
  { name: 'a pool is to go unless it is used', operations: [deletePool('refuse'), one] },
  { name: 'a pool goes with its addresses', before: [one], operations: [deletePool('release'), two] },
  { name: 'a pool goes with its last address', before: [one], operations: [deletePool('drain'), release('c1')] },
  { name: 'a pool is split while an address is given', operations: [splitPool, one] },
  { name: 'a pool is split while addresses go and come', before: [one], operations: [splitPool, release('c1'), far] },
  { name: 'a pool is split while a block is claimed', operations: [splitPool, claim('10.0.0.0/31', 'n1'), far] },
  { name: 'a pool is split twice', operations: [splitPool, splitPool] },
  { name: 'a pool is split and goes', before: [one], operations: [splitPool, deletePool('drain')] },
  { name: 'a node goes while it gets an address', before: [one], operations: [deleteNode('n1'), two] },
  { name: 'a node goes while it gives one back', before: [one, two], operations: [deleteNode('n1'), release('c1')] },
  { name: 'a node goes twice', before: [one], operations: [deleteNode('n1'), deleteNode('n1')] },
  { name: 'a repair of a coming block', damage: [STRAY, PENDING], operations: [repair, one] },
  { name: 'a repair of a going block', before: [one], damage: [STRAY, PENDING], operations: [repair, release('c1')] },
  { name: 'two repairs', damage: [STRAY, PENDING], operations: [repair, repair] },
  { name: 'three containers', operations: [one, two, allocate('c5')] },
  { name: 'three nodes and two blocks', operations: [one, far, allocate('c5', { nodeName: 'n3' })] },
  {
    name: 'a container comes, another goes, a third takes its name',
    before: [one],
    operations: [release('c1'), two, allocate('c5', { pod: POD })],
  },
  { name: 'an attachment comes twice and goes', operations: [one, one, release('c1')] },
  { name: 'three releases', before: [one, two], operations: [release('c1'), releaseHandle('c1'), release('c2')] },
  {
    name: 'a handle that its leftovers make right',
    damage: [STRAY],
    operations: [one, release('c1')],
    isThorough: true,
  },
  { name: 'a handle that is read before its block', damage: [STRAY], operations: [two, one, release('c1')] },
  { name: 'a repair among other operations', damage: [STRAY], operations: [repair, one, release('c1')] },
  { name: 'attributes that are set twice', before: [given('c1')], operations: [note('c1', 'a'), note('c1', 'b')] },
  { name: 'a second owner, twice', before: [given('c1')], operations: [second('c1', 'a'), second('c1', 'b')] },
  { name: 'a second owner and attributes', before: [given('c1')], operations: [second('c1', 'a'), note('c1', 'b')] },
  { name: 'attributes of an address that goes', before: [given('c1')], operations: [note('c1', 'a'), release('c1')] },
  { name: 'attributes beside an allocation', before: [given('c1')], operations: [note('c1', 'a'), allocate('c2')] },
  { name: 'attributes while the node goes', before: [given('c1')], operations: [note('c1', 'a'), deleteNode('n1')] },
  {
    name: 'attributes of an address that goes to another',
    before: [given('c1'), allocate('c0'), ...FULL],
    operations: [note('c1', 'a'), release('c1'), given('c2')],
  },
  {
    name: 'attributes while the pool goes with its last address',
    before: [given('c1'), deletePool('drain')],
    operations: [note('c1', 'a'), release('c1')],
  },
  { name: 'an empty block of another node, twice', before: FULL, damage: IDLE, operations: [one, lender] },
  { name: 'an empty block that its node uses', before: FULL, damage: IDLE, operations: [one, owner] },
  { name: 'an empty block whose node goes', before: FULL, damage: IDLE, operations: [one, deleteNode('n9')] },
  { name: 'an empty block whose pool goes', before: FULL, damage: IDLE, operations: [one, deletePool('drain')] },
  { name: 'an empty block, used and left', before: FULL, damage: IDLE, operations: [one, owner, release('c9')] },
  { name: 'the last address, borrowed', before: LENDING, operations: [one, lender] },
  { name: 'an address, borrowed while another comes back', before: LENDING, operations: [one, release('c3')] },
  {
    name: 'nothing is borrowed once affinity is known to be strict',
    before: LENDING,
    operations: [one, makeStrict],
  },
  { name: 'an address, borrowed while its node goes', before: LENDING, operations: [one, deleteNode('n3')] },
  { name: 'an address, borrowed while its pool goes', before: LENDING, operations: [one, deletePool('drain')] },
  {
    name: 'a borrowed address that comes back, and two who wait',
    before: [...LENDING, one],
    operations: [release('c1'), lender, allocate('c6', { nodeName: 'n4' })],
  },
  { name: 'a tunnel’s address twice', before: [one], operations: [tunnel('n1'), tunnel('n1')] },
  {
    name: 'a tunnel’s address that comes and goes',
    before: [one, tunnel('n1')],
    operations: [endTunnel('n1'), tunnel('n1')],
  },
  { name: 'a tunnel’s address and a container’s', before: [one, ...FULL], operations: [tunnel('n1'), two] },
  { name: 'a tunnel’s address while the node goes', before: [one], operations: [tunnel('n1'), deleteNode('n1')] },
  { name: 'a tunnel’s address while the pool goes', before: [one], operations: [tunnel('n1'), deletePool('drain')] },
  {
    name: 'a tunnel’s address that comes and goes, and a container',
    before: [one, tunnel('n1')],
    operations: [endTunnel('n1'), tunnel('n1'), two],
  },
  {
    name: 'two leases are bound',
    damage: LEASES,
    operations: [bind('c1', 0), bind('c2', 1)],
    isThorough: true,
  },
  { name: 'a lease is bound twice', damage: LEASES, operations: [bind('c1', 0), bind('c1', 0)] },
  { name: 'a lease is bound to two attachments', damage: LEASES, operations: [bind('c1', 0), bind('c2', 0)] },
  { name: 'two leases are bound to one attachment', damage: LEASES, operations: [bind('c1', 0), bind('c1', 1)] },
  {
    name: 'a lease is bound while it is returned unused',
    damage: LEASES,
    operations: [bind('c1', 0), giveBack(0)],
    isThorough: true,
  },
  { name: 'a lease is bound while its pod ends', damage: LEASES, operations: [bind('c1', 0), giveBack(0, 'c1')] },
  { name: 'a lease is bound while the node boots', damage: LEASES, operations: [bind('c1', 0), reboot] },
  { name: 'a lease is bound while the node goes', damage: LEASES, operations: [bind('c1', 0), deleteNode('n1')] },
  { name: 'a lease is bound while the pool goes', damage: LEASES, operations: [bind('c1', 0), deletePool('release')] },
  {
    name: 'a lease is bound while the attachment is released',
    damage: LEASES,
    operations: [bind('c1', 0), release('c1')],
  },
  {
    name: 'a lease is bound while the attachment gets an address otherwise',
    damage: LEASES,
    operations: [bind('c1', 0), allocate('c1', { pod: POD })],
  },
  {
    name: 'a lease that is returned goes to another while it is bound',
    damage: LEASES,
    operations: [bind('c1', 0), giveBack(0, 'c1'), { ...given('c2', 'n2', 0), isAtomic: false }],
  },
  { name: 'leases are returned while the node boots', damage: LEASES, operations: [giveBack(0), reboot] },
  {
    name: 'a lease is recalled and returned',
    before: FULL,
    damage: LEASES,
    operations: [{ ...lender, isAtomic: false }, giveBack(0)],
  },
  {
    name: 'a pool, a node and an allocation',
    operations: [createPool('a', '10.1.0.0/31'), claim('10.0.0.2/31', 'n2'), one],
  },
];
