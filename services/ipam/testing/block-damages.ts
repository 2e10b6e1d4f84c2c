import { formatPrefix } from '@podwire/shared/net/prefix';

import {
  B1,
  calicoAttributes,
  change,
  drop,
  first,
  handleRecord,
  OF_C1,
  putBlock,
  setNode,
  type Damage,
} from './damages.js';
import { affinity, block, claimedBlock, fullBlock, poolRecord } from './records.js';

/** Damages of whole records, of pools, and of blocks and their owners. */
export const BLOCK_DAMAGES: readonly Damage[] = [
  {
    name: 'a record that cannot be read',
    kind: 'recordUnreadable',
    of: '/calico/ipam/v2/handle/x',
    damage: (view) => view.setAside({ kind: 'handle', id: 'x' }, 'no'),
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
    name: 'an empty block without an owner',
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
    name: 'an affinity for a block without an owner',
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
];
