import { expect, test } from 'vitest';

import { RecordKeys } from '../../records/json/keys.js';
import { encodeRecord, serialize } from '../../records/json/registry.js';
import type { RecordValue } from '../../records/view.js';
import { affinity, block, nodeRecord, poolRecord, prefix, session } from '../../testing/records.js';
import { planWrites } from './write-plan.js';

const keys = new RecordKeys('/calico');

const BLOCK: RecordValue = { kind: 'block', value: block('10.0.0.0/26', 'n1') };
const AFFINITY: RecordValue = { kind: 'affinity', value: affinity('10.0.0.0/26', 'n1', 'confirmed') };
const SESSION: RecordValue = { kind: 'nodeSession', value: session('n1') };
const EPOCH: RecordValue = { kind: 'storeEpoch', value: { id: 'e2', importId: '', phase: 'waiting' } };
const BARE = nodeRecord('n1');
const TUNNELLED = nodeRecord('n1', {
  tunnels: new Map([['vxlanTunnelAddress', { address: prefix('10.0.0.9/32') }]]),
});

const put = (record: RecordValue) => ({ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) });

interface Changes {
  readonly stored?: readonly RecordValue[];
  readonly puts?: readonly RecordValue[];
  readonly deletes?: readonly RecordValue[];
}

/** The plan as texts: kind of the record, with `-` for a deletion. */
function planOf({ stored = [], puts = [], deletes = [] }: Changes): string[] {
  const values = new Map(stored.map(put).map(({ key, value }) => [key, value]));
  const transaction = { comparisons: [], puts: puts.map(put), deletes: deletes.map((record) => keys.of(record)) };
  const plan = planWrites(transaction, { keys, objectOf: (key) => key, stored: (key) => values.get(key) });
  return plan.map(({ object, puts: written }) => {
    const name = keys.parse(object);
    const [value] = written.values();
    const isMark = value !== undefined && Buffer.from(value).includes('pendingDeletion');
    return `${written.size === 0 ? '-' : ''}${name?.kind ?? object}${isMark ? ' marked' : ''}`;
  });
}

test.each<[string, Changes, readonly string[]]>([
  ['a claim', { puts: [AFFINITY, BLOCK] }, ['block', 'affinity']],
  ['a first address on a new node', { puts: [AFFINITY, BLOCK, BARE] }, ['node', 'block', 'affinity']],
  [
    'a block that is given up',
    { stored: [BLOCK, AFFINITY], deletes: [BLOCK, AFFINITY] },
    ['affinity marked', '-block', '-affinity'],
  ],
  ['leases', { stored: [BLOCK, SESSION], puts: [SESSION, BLOCK] }, ['block', 'nodeSession']],
  ['a session that reveals a restore', { puts: [SESSION, BLOCK, EPOCH] }, ['storeEpoch', 'block', 'nodeSession']],
  ['an address for a tunnel', { stored: [BARE], puts: [TUNNELLED, BLOCK] }, ['block', 'node']],
  ['the end of a tunnel', { stored: [TUNNELLED], puts: [BARE, BLOCK] }, ['node', 'block']],
  [
    'a pool that is split',
    {
      stored: [poolRecord('p', '10.0.0.0/16')],
      puts: [poolRecord('split-p-0', '10.0.0.0/17'), poolRecord('split-p-1', '10.0.128.0/17')],
      deletes: [poolRecord('p', '10.0.0.0/16')],
    },
    ['pool', 'pool', '-pool'],
  ],
  ['the deletion of a missing record', { deletes: [BLOCK] }, []],
])('the order of writes of %s', (_, changes, plan) => {
  expect(planOf(changes)).toEqual(plan);
});
