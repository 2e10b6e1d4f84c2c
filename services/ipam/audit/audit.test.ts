import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { inconsistencies } from '../engine/testing/consistency.js';
import { heldAddressesIn } from '../records/block.js';
import type { TestView } from '../testing/test-view.js';
import { ALLOCATION_DAMAGES } from '../testing/allocation-damages.js';
import { BLOCK_DAMAGES } from '../testing/block-damages.js';
import { audit, found, healthyView, LATER_MS, repairAll } from '../testing/damages.js';
import { NOW_MS, poolRecord } from '../testing/records.js';
import { FINDING_KINDS, severityOf } from './finding.js';

const DAMAGES = [...BLOCK_DAMAGES, ...ALLOCATION_DAMAGES];

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

  test(repaired ? 'is repaired, and nothing else changes' : 'is left as it is', () => {
    const view = healthyView();
    damage(view);
    const before = held(view);
    const results = repairAll(view);
    if (repaired) {
      expect(results.map(({ state }) => state)).toContain('repaired');
      expect(found(view)).toEqual([]);
      expect(inconsistencies(view, LATER_MS)).toEqual([]);
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

test('a refused pool may overlap another one', () => {
  const view = healthyView();
  view.put(poolRecord('half', '10.0.0.8/29', { blockSizeBits: 30, notAllocatable: 'CIDROverlap' }));
  expect(found(view)).toEqual([]);
});

test('every kind of finding is among the damages, except one that needs a foreign endpoint', () => {
  const known = new Set<string>(DAMAGES.map(({ kind }) => kind));
  expect(Object.keys(FINDING_KINDS).filter((kind) => !known.has(kind))).toEqual(['addressOutsidePools']);
});

/** The holder of each address, with its sequence number. */
function held(view: TestView): string[] {
  return view
    .blocks()
    .flatMap((value) => heldAddressesIn(value, () => true))
    .map(({ block: { prefix: cidr, sequenceNumbers }, ordinal, attributes }) =>
      [formatPrefix(cidr), ordinal, attributes.handleId, sequenceNumbers[ordinal]].join(' '),
    );
}
