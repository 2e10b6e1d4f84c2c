import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { release } from '../addresses/release.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import { heldAddressesIn, type Block } from '../records/block.js';
import type { RecordValue } from '../records/view.js';
import {
  audit,
  calicoAttributes,
  found,
  handleRecord,
  LATER_MS,
  putBlock,
  repairAll,
  takeUnrecorded,
} from '../testing/damages.js';
import { affinity, attachment, block, claimedBlock, NOW_MS, poolRecord, request } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';

const PODS = [undefined, { namespace: 'default', name: 'web', uid: '' }, { namespace: 'other', name: 'web', uid: '' }];

const operation = fc.record({
  type: fc.constantFrom('allocate', 'allocate', 'release'),
  id: fc.constantFrom('c1', 'c2', 'c3', 'c4', 'c5', 'c6'),
  nodeName: fc.constantFrom('n1', 'n2', 'n3'),
  pod: fc.constantFrom(...PODS),
  families: fc.constantFrom<readonly (4 | 6)[]>([4], [6], [4, 6]),
});
const operations = fc.array(operation, { maxLength: 25 });

type Operation = typeof operation extends fc.Arbitrary<infer Value> ? Value : never;

/** The results of the allocator's decisions; each pod is of one container, so that all endpoints exist. */
function stateAfter(sequence: readonly Operation[], { sharedPods }: { readonly sharedPods: boolean }): TestView {
  const view = new TestView([
    poolRecord('four', '10.0.0.0/28', { blockSizeBits: 30 }),
    poolRecord('six', 'fd00::/124', { blockSizeBits: 126 }),
  ]);
  for (const { type, id, nodeName, families, ...rest } of sequence) {
    const pod = rest.pod && !sharedPods ? { ...rest.pod, name: `web-${id}` } : rest.pod;
    try {
      if (type === 'release') view.apply(release(view, attachment(id), NOW_MS));
      else view.apply(allocate(view, { request: request(id, { nodeName, pod, families }), nowMs: NOW_MS }));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
    }
  }
  return view;
}

/** The holder of each address, with its sequence number. */
function held(view: TestView): string[] {
  return view
    .blocks()
    .flatMap((value) => heldAddressesIn(value, () => true))
    .map(({ block: { prefix, sequenceNumbers }, ordinal, attributes }) =>
      [formatPrefix(prefix), ordinal, attributes.handleId, sequenceNumbers[ordinal]].join(' '),
    );
}

test('property: states of the allocator have no findings, however old they are', () => {
  fc.assert(
    fc.property(operations, (sequence) => {
      const view = stateAfter(sequence, { sharedPods: false });
      expect(found(view, NOW_MS)).toEqual([]);
      expect(found(view, LATER_MS)).toEqual([]);
    }),
    { numRuns: 100, verbose: fc.VerbosityLevel.Verbose },
  );
});

test('property: of sandboxes of one pod, only sandboxes whose endpoint was taken over are reported, and late', () => {
  fc.assert(
    fc.property(operations, (sequence) => {
      const view = stateAfter(sequence, { sharedPods: true });
      expect(found(view, NOW_MS)).toEqual([]);
      const owners = new Set(view.endpoints().map(({ value }) => `net.${value.attachment.containerId}`));
      for (const { kind, objects } of audit(view)) {
        expect(kind).toBe('allocationUnused');
        expect(owners).not.toContain(objects.find(({ type }) => type === 'handle')!.name);
      }
    }),
    { numRuns: 100, verbose: fc.VerbosityLevel.Verbose },
  );
});

/** Damages of a state, each with a parameter. None removes an address permanently. */
const DAMAGES: Readonly<Record<string, (view: TestView, choice: number) => void>> = {
  'a handle goes': (view, choice) => remove(view, pick(view.all('handle'), choice)),
  'an affinity goes': (view, choice) => remove(view, pick(view.all('affinity'), choice)),
  'an affinity becomes pending': (view, choice) => {
    const record = pick(view.all('affinity'), choice);
    if (record) view.put({ ...record, value: { ...record.value, state: 'pending' } });
  },
  'a block loses its owner': (view, choice) => {
    const value = pick(view.blocks(), choice);
    if (value) putBlock(view, { ...value, owner: undefined });
  },
  'a handle counts too many': (view, choice) => {
    const record = pick(view.all('handle'), choice);
    const blocks = new Map([...(record?.value.blocks ?? [])].map(([cidr, count]) => [cidr, count + 1]));
    if (record) view.put({ ...record, value: { ...record.value, blocks: blocks.set('10.0.0.12/30', 1) } });
  },
  'a handle is left behind': (view, choice) => view.put(handleRecord(`net.orphan${choice}`, { '10.0.0.0/30': 1 })),
  'an affinity is left behind': (view, choice) => {
    const kind = choice % 2 === 0 ? 'pending' : 'pendingDeletion';
    view.put({ kind: 'affinity', value: affinity('10.0.0.12/30', `n${10 + (choice % 5)}`, kind) });
  },
  'an empty block is left behind': (view, choice) => {
    const cidr = ['10.0.0.8/30', '10.0.0.12/30', 'fd00::c/126'][choice % 3]!;
    const value = block(cidr, 'n1', choice % 2 === 0 ? { owner: undefined } : {});
    if (!view.blocks().some(({ prefix }) => formatPrefix(prefix) === cidr)) putBlock(view, value);
  },
  'a block in no pool is left behind': (view, choice) =>
    claimedBlock(block(`192.168.${choice % 4}.0/30`, 'n1')).forEach((record) => view.put(record)),
  'a container of Calico’s is forgotten': (view, choice) =>
    changeOne(view, choice, (value) =>
      value.unallocated.length > 0 ? takeUnrecorded(value, calicoAttributes(`gone${choice}`, 'gone')) : value,
    ),
  'free addresses are forgotten': (view, choice) =>
    changeOne(view, choice, (value) => ({ ...value, unallocated: value.unallocated.slice(0, choice % 2) })),
  'free addresses are repeated': (view, choice) =>
    changeOne(view, choice, (value) => ({ ...value, unallocated: [...value.unallocated, ...value.unallocated] })),
  'attributes are left behind': (view, choice) =>
    changeOne(view, choice, (value) => ({ ...value, attributes: [...value.attributes, calicoAttributes('x', 'x')] })),
  'a sequence number is behind': (view, choice) =>
    changeOne(view, choice, (value) => ({ ...value, sequenceNumber: 3n })),
  'an endpoint is behind': (view, choice) => {
    const record = pick(view.all('endpoint'), choice);
    const addresses = record?.value.addresses.map((address) => ({ ...address, sequenceNumber: 1n })) ?? [];
    if (record) view.put({ ...record, value: { ...record.value, addresses } });
  },
};

function pick<Value>(values: readonly Value[], choice: number): Value | undefined {
  return values[choice % Math.max(1, values.length)];
}

function remove(view: TestView, record: RecordValue | undefined): void {
  if (record) view.apply({ changes: [{ type: 'delete', record }], outcome: undefined });
}

function changeOne(view: TestView, choice: number, by: (value: Block) => Block): void {
  const value = pick(view.blocks(), choice);
  if (value) putBlock(view, by(value));
}

const damages = fc.array(fc.tuple(fc.constantFrom(...Object.keys(DAMAGES)), fc.nat({ max: 30 })), {
  minLength: 1,
  maxLength: 5,
});

test('property: whatever is damaged is found and repaired, and every holder keeps its addresses', () => {
  let damagedCount = 0;
  fc.assert(
    fc.property(operations, damages, (sequence, chosen) => {
      const view = stateAfter(sequence, { sharedPods: false });
      const before = held(view);
      const healthy = view.snapshot();
      for (const [name, choice] of chosen) DAMAGES[name]!(view, choice);
      // Not every damage finds a suitable object.
      if (JSON.stringify(view.snapshot(), bigints) === JSON.stringify(healthy, bigints)) return;
      damagedCount++;
      const disagreeing = inconsistencies(view, LATER_MS);
      if (disagreeing.length > 0) expect(found(view), disagreeing.join('; ')).not.toEqual([]);
      repairAll(view);
      expect(found(view)).toEqual([]);
      expect(inconsistencies(view, LATER_MS)).toEqual([]);
      expect(held(view)).toEqual(before);
    }),
    { numRuns: 200, verbose: fc.VerbosityLevel.Verbose },
  );
  expect(damagedCount).toBeGreaterThan(100);
});

function bigints(_: string, value: unknown): unknown {
  if (value instanceof Map) return [...value];
  return typeof value === 'bigint' ? String(value) : value;
}
