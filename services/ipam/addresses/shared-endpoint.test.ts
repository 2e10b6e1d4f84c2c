import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { MapView } from '../records/testing/map-view.js';
import { attachment, nodeRecord, NOW_MS, poolRecord, request } from '../testing/records.js';
import { allocate, type AllocationRequest } from './allocate.js';
import { continueAddressRelease, release } from './release.js';

/** An endpoint's key has neither network nor, for a pod, container: several attachments share one. */

const POD = { namespace: 'default', name: 'web', uid: 'u1' };
const NETNS = { bootId: '8d3ff0c2-1d3f-4a51-94dd-0e7d3a1b1b5a', inode: 4_026_532_001n };
const KEY = { namespace: 'default', name: 'n1-k8s-web-eth0' };

const add = (view: MapView, asked: AllocationRequest) => view.apply(allocate(view, { request: asked, nowMs: NOW_MS }));

function started(): MapView {
  return new MapView([
    poolRecord('four', '10.0.0.0/28', { blockSizeBits: 30 }),
    poolRecord('six', 'fd00::/124', { blockSizeBits: 126 }),
    nodeRecord('n1'),
  ]);
}

/** All but the blocks, whose sequence numbers and free lists show an earlier allocation. */
const recorded = (view: MapView) => view.snapshot().filter(([, { kind }]) => kind !== 'block' && kind !== 'affinity');

/** The first one has both families, in another order. */
const FIRST = request('c1', { pod: POD, netns: NETNS, families: [6, 4] });

const LATER = [
  [
    'the same interface on a second network',
    request('c1', { pod: POD, attachment: attachment('c1', { network: 'b' }) }),
  ],
  ['a second sandbox of the pod', request('c2', { pod: POD })],
] as const;

describe.each(LATER)('an undone ADD of %s', (_, second) => {
  test.each([
    ['by a release of the attachment', (view: MapView) => void view.apply(release(view, second.attachment, NOW_MS))],
    [
      'by a release of the allocation',
      (view: MapView) => {
        const { addresses } = view.endpoint(KEY)!;
        const releases = addresses.map(({ address, sequenceNumber }) => ({
          address,
          sequenceNumber,
          handleId: `${second.attachment.network}.${second.attachment.containerId}`,
        }));
        view.apply(continueAddressRelease(view, { releases, nowMs: NOW_MS }));
      },
    ],
  ])('%s leaves everything unchanged', (_name, undo) => {
    const view = started();
    add(view, FIRST);
    const before = recorded(view);
    add(view, second);
    undo(view);
    expect(recorded(view)).toEqual(before);
    // A runtime sends a DEL after a failed ADD.
    view.apply(release(view, second.attachment, NOW_MS));
    expect(recorded(view)).toEqual(before);
  });
});

test('property: of attachments that share a key, those with addresses are recorded, and a temporary one changes nothing', () => {
  const steps = fc.array(
    fc.record({
      type: fc.constantFrom('add', 'add', 'release', 'come and go'),
      network: fc.constantFrom('net', 'b'),
      id: fc.constantFrom('c1', 'c2', 'c3'),
      families: fc.constantFrom<readonly (4 | 6)[]>([4], [6], [6, 4]),
      netns: fc.constantFrom(undefined, NETNS),
    }),
    { maxLength: 20 },
  );
  fc.assert(
    fc.property(steps, (sequence) => {
      const view = started();
      for (const { type, network, id, families, netns } of sequence) {
        const asked = request(id, { pod: POD, attachment: attachment(id, { network }), families, netns });
        const before = recorded(view);
        const isHeld = view.handle(`${network}.${id}`) !== undefined;
        if (type === 'come and go' && isHeld) continue;
        if (type !== 'release') add(view, asked);
        if (type !== 'add') view.apply(release(view, asked.attachment, NOW_MS));
        if (type === 'come and go') expect(recorded(view)).toEqual(before);
        const current = view.endpoint(KEY);
        const isAnyHeld = view.handles().length > 0;
        expect(current !== undefined).toBe(isAnyHeld);
      }
    }),
    { numRuns: 200, verbose: fc.VerbosityLevel.Verbose },
  );
});
