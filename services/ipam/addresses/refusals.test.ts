import { describe, expect, test } from 'vitest';

import { ensureBlock } from '../affinities/affinities.js';
import { MapView } from '../records/testing/map-view.js';
import type { RecordValue } from '../records/view.js';
import { assign, assignment } from '../testing/allocations.js';
import {
  block,
  claimedBlock,
  config,
  failureOf,
  fullBlock,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
} from '../testing/records.js';
import { allocate } from './allocate.js';
import { assignAddresses } from './assign.js';
import { explainAllocation } from './preview.js';

/** The answer of each kind of request when no address is available. */

const REGISTERED = { policy: 'register', uid: 'uid-node' } as const;
const CREATE = /[Cc]reate (a|or enable a) pool/;

const ensure = (view: MapView) =>
  ensureBlock(view, { nodeName: 'n1', family: 4, pools: [], unknownNodes: REGISTERED, nowMs: NOW_MS });

const refused = (view: MapView) => failureOf(() => allocate(view, { request: request('c1'), nowMs: NOW_MS }));

const IN_ZONE_A = nodeRecord('n1', { labels: { zone: 'a' } });

describe('a refusal has one code for one reason, for every kind of request', () => {
  test.each<[string, readonly RecordValue[], string]>([
    ['there is no pool of the family', [poolRecord('six', 'fd00::/64')], 'NO_POOL'],
    [
      'no pool selects the node',
      [IN_ZONE_A, poolRecord('p', '10.0.0.0/24', { nodeSelector: "zone == 'b'" })],
      'NO_POOL_SERVES',
    ],
    ['the only pool is disabled', [poolRecord('p', '10.0.0.0/24', { disabled: true })], 'NO_POOL_SERVES'],
    ['the only pool is Manual', [poolRecord('p', '10.0.0.0/24', { assignmentMode: 'Manual' })], 'NO_POOL_SERVES'],
    ['the only pool is for tunnels', [poolRecord('p', '10.0.0.0/24', { allowedUses: ['Tunnel'] })], 'NO_POOL_SERVES'],
  ])('%s', (_, records, code) => {
    const view = new MapView(records);
    const allocation = { request: request('c1'), nowMs: NOW_MS };
    const codes = {
      Allocate: refused(view).code,
      ExplainAllocation: explainAllocation(view, { ...allocation, maxBlocksCount: 9 }).refusal?.code,
      AssignAddresses: failureOf(() => assign(view, assignment('h'))).code,
      EnsureBlock: failureOf(() => ensure(view)).code,
    };
    expect(codes).toEqual({ Allocate: code, ExplainAllocation: code, AssignAddresses: code, EnsureBlock: code });
  });

  test('pools that serve and are empty are exhausted', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/26'), ...claimedBlock(fullBlock('10.0.0.0/26', 'n2'))]);
    const input = { request: assignment('h', { allOrNothing: true }), nowMs: NOW_MS, left: undefined };
    const failures = [refused(view), failureOf(() => assignAddresses(view, input)), failureOf(() => ensure(view))];
    expect(failures.map(({ code }) => code)).toEqual(['POOLS_EXHAUSTED', 'POOLS_EXHAUSTED', 'POOLS_EXHAUSTED']);
  });
});

describe('a refusal names the remedy of its own reason', () => {
  const strict = config({ strictAffinity: true });
  const full = claimedBlock(fullBlock('10.0.0.0/26', 'n1'));
  const foreign = claimedBlock(block('10.0.0.0/26', 'n2'));
  const p = poolRecord('p', '10.0.0.0/24');
  const small = poolRecord('p', '10.0.0.0/26');
  const reserve = (...cidrs: string[]): RecordValue => {
    return { kind: 'reservation', value: { name: 'r', uid: '', createTimeMs: NOW_MS, prefixes: cidrs.map(prefix) } };
  };

  test.each<[string, readonly RecordValue[], string]>([
    [
      'a node selector',
      [IN_ZONE_A, poolRecord('p', '10.0.0.0/24', { nodeSelector: "zone == 'b'" })],
      'Remedy: change the pool’s nodeSelector or the labels of node n1',
    ],
    [
      'a namespace selector',
      [poolRecord('p', '10.0.0.0/24', { namespaceSelector: "team == 'b'" })],
      'Remedy: change the pool’s namespaceSelector or the labels of the namespace',
    ],
    [
      'an unreadable selector',
      [poolRecord('p', '10.0.0.0/24', { nodeSelector: 'zone ==' })],
      'Remedy: correct the pool’s nodeSelector',
    ],
    ['a disabled pool', [poolRecord('p', '10.0.0.0/24', { disabled: true })], 'Remedy: enable the pool'],
    [
      'a Manual pool',
      [poolRecord('p', '10.0.0.0/24', { assignmentMode: 'Manual' })],
      'Remedy: request the pool by its name, or set its assignmentMode to Automatic',
    ],
    [
      'a pool for another use',
      [poolRecord('p', '10.0.0.0/24', { allowedUses: ['Tunnel'] })],
      'Remedy: add Workload to the pool’s allowedUses',
    ],
    [
      'the cap of blocks',
      [p, config({ strictAffinity: true, maxBlocksPerHostCount: 1 }), ...full],
      'Remedy: raise max_blocks_per_node, or release addresses of the node’s blocks',
    ],
    [
      'disabled claims',
      [p, config({ strictAffinity: true, autoAllocateBlocks: false })],
      'Remedy: switch auto_allocate_blocks on, or claim a block for the node',
    ],
    [
      'strict affinity',
      [small, strict, ...foreign],
      'Remedy: switch strict affinity off, or release addresses of the node’s blocks',
    ],
    ['a reservation', [p, reserve('10.0.0.0/24')], 'Remedy: remove reservations that are not needed'],
  ])('%s', (_, records, remedy) => {
    const { message } = refused(new MapView(records));
    expect(message).toContain(remedy);
    expect(message).not.toMatch(CREATE);
  });

  test('a new pool where one is full, beside the remedy of the pool that does not serve', () => {
    const view = new MapView([
      small,
      ...claimedBlock(fullBlock('10.0.0.0/26', 'n2')),
      poolRecord('q', '10.1.0.0/24', { disabled: true }),
    ]);
    expect(refused(view).message).toMatch(/\. Remedies: create a pool, or release addresses; enable the pool$/);
  });

  test('waiting where released addresses cool down', () => {
    const cooling = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS - 1000 };
    const view = new MapView([
      config({ cooldownSeconds: 30 }),
      small,
      ...claimedBlock({ ...fullBlock('10.0.0.0/26', 'n1'), attributes: [cooling] }),
    ]);
    expect(refused(view).message).toContain('wait until released addresses have cooled down');
  });
});
