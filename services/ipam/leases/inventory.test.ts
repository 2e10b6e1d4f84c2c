import { inventoryDigest } from '@podwire/shared/attachment/inventory-digest';
import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { formatAddress } from '@podwire/shared/net/address';
import { addressAt } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { isAwaited } from '../blocks/epoch.js';
import { attributesFor } from '../addresses/allocate/allocate.js';
import { coolAddresses, takeOrdinals } from '../records/block.js';
import { leaseAttributes } from '../records/lease.js';
import { address } from '../testing/allocations.js';
import {
  attachment,
  block,
  claimedBlock,
  failureOf,
  NOW_MS,
  nodeRecord,
  poolRecord,
  request,
  session as sessionOf,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { compareInventory, reportInventory, storedDigest, type HeldAttachment, type Inventory } from './inventory.js';

const NAME = { bootId: 'boot-n1', generation: 1, revision: 1 };

/** Holders of an address in the datastore. */
const OWNERS = ['free', 'cooling', 'lease n1', 'lease n2', 'a n1', 'b n1', 'c n2', 'foreign n1'] as const;
type Owner = (typeof OWNERS)[number];

const CIDR = '10.0.0.0/29';
const textOf = (ordinal: number): string => formatAddress(addressAt(block(CIDR, 'n1').prefix, ordinal));

/** One address each, and the number of its allocation: 100 and the ordinal. */
function viewOf(owners: readonly Owner[]): TestView {
  let made = block(CIDR, 'n1');
  owners.forEach((owner, ordinal) => {
    const [id = '', nodeName = ''] = owner.split(' ');
    if (owner === 'free') return;
    const attributes =
      id === 'lease' || id === 'cooling'
        ? leaseAttributes({ nodeName, bootId: 'b', nowMs: NOW_MS })
        : id === 'foreign'
          ? { handleId: 'k8s.foreign', owner: { node: nodeName, pod: 'x', namespace: 'y' }, releasedAtMs: undefined }
          : attributesFor({ attachment: attachment(id), nodeName, pod: undefined }, NOW_MS);
    made = takeOrdinals({ ...made, sequenceNumber: BigInt(100 + ordinal) }, [ordinal], attributes);
    if (id === 'cooling') made = coolAddresses(made, [ordinal], NOW_MS);
  });
  return new TestView([
    poolRecord('p', '10.0.0.0/24', { blockSizeBits: 29 }),
    nodeRecord('n1'),
    ...claimedBlock(made),
    { kind: 'nodeSession', value: sessionOf('n1') },
  ]);
}

interface Reported {
  /** `lease`, or the attachment's container. */
  readonly id: string;
  readonly ordinal: number;
  readonly isCurrent: boolean;
  readonly isEnded: boolean;
}

function inventoryOf(reported: readonly Reported[]): Inventory {
  const nameOf = ({ ordinal, isCurrent }: Reported) => ({
    address: address(textOf(ordinal)),
    sequenceNumber: BigInt((isCurrent ? 100 : 200) + ordinal),
  });
  const attachments = reported.flatMap((each): HeldAttachment[] =>
    each.id === 'lease'
      ? []
      : [{ attachment: attachment(each.id), pod: undefined, addresses: [nameOf(each)], isEnded: each.isEnded }],
  );
  return { attachments, leases: reported.filter(({ id }) => id === 'lease').map(nameOf) };
}

/** The same by the rules, one line for each finding and each unknown allocation. */
function expected(owners: readonly Owner[], reported: readonly Reported[]): string[] {
  const lines: string[] = [];
  for (const { id, ordinal, isCurrent, isEnded } of reported) {
    const owner = owners[ordinal]!;
    const text = `${id} ${textOf(ordinal)}`;
    const ended = id !== 'lease' && isEnded;
    if (owner === 'free' || owner === 'cooling') {
      if (!ended) lines.push(`${text}: bind`);
    } else if (owner === `${id} n1`) {
      if (!isCurrent) lines.push(`${text}: number ${100 + ordinal}`);
    } else if (owner === 'lease n1') {
      if (!ended || !isCurrent) lines.push(`${text}: number ${100 + ordinal}`);
    } else {
      const isSettled = reported.some((other) => other.ordinal === ordinal && owner === `${other.id} n1`);
      if (!isSettled || owner.startsWith('lease'))
        lines.push(`${text}: another${ended || id === 'lease' ? '' : ', conflict'}`);
    }
  }
  owners.forEach((owner, ordinal) => {
    const [id = '', nodeName] = owner.split(' ');
    if (nodeName !== 'n1' || id === 'foreign') return;
    const isKnown = reported.some((each) => each.ordinal === ordinal && (id === 'lease' || each.id === id));
    if (!isKnown) lines.push(`unknown ${id} ${textOf(ordinal)} ${100 + ordinal}`);
  });
  return lines.sort();
}

function compared(view: TestView, inventory: Inventory): string[] {
  const { findings, unknown, conflicts } = compareInventory(view, { nodeName: 'n1', inventory });
  const idOf = (of: { containerId: string } | undefined) => of?.containerId ?? 'lease';
  const isConflict = (text: string, name: string) =>
    conflicts.some((each) => formatAddress(each.address) === text && each.attachment === name);
  const found = findings.map(({ attachment: of, allocation, holder, currentSequenceNumber }) => {
    const text = formatAddress(allocation.address);
    const conflict = of && isConflict(text, formatAttachment(of)) ? ', conflict' : '';
    const result = currentSequenceNumber > 0n ? `number ${currentSequenceNumber}` : holder === '' ? 'bind' : 'another';
    return `${idOf(of)} ${text}: ${result}${conflict}`;
  });
  const rest = unknown.map(
    ({ attachment: of, allocation }) =>
      `unknown ${idOf(of)} ${formatAddress(allocation.address)} ${allocation.sequenceNumber}`,
  );
  return [...found, ...rest].sort();
}

const scenario = fc.record({
  owners: fc.array(fc.constantFrom(...OWNERS), { minLength: 6, maxLength: 6 }),
  reported: fc.uniqueArray(
    fc.record({
      id: fc.constantFrom('lease', 'a', 'b', 'c'),
      ordinal: fc.nat(5),
      isCurrent: fc.boolean(),
      isEnded: fc.boolean(),
    }),
    { maxLength: 8, selector: ({ id, ordinal }) => `${id} ${ordinal}` },
  ),
});

test('property: the difference is the one by the rules, and equal digests have none', () => {
  fc.assert(
    fc.property(scenario, ({ owners, reported }) => {
      const view = viewOf(owners);
      const inventory = inventoryOf(reported);
      expect(compared(view, inventory)).toEqual(expected(owners, reported));
      const entries = [
        ...inventory.attachments.flatMap(({ attachment: of, addresses }) =>
          addresses.map((each) => ({ ...each, attachment: of })),
        ),
        ...inventory.leases.map((each) => ({ ...each, attachment: undefined })),
      ].map((each) => ({ ...each, address: formatAddress(each.address) }));
      const isEqual = storedDigest(view, 'n1').equals(inventoryDigest(entries));
      if (isEqual) expect(compared(view, inventory)).toEqual([]);
      // Ended pods may be missing in the datastore, and share their address with their successors.
      const isPlain = reported.every(({ isEnded, id }) => !isEnded && id !== 'c');
      if (isPlain && new Set(reported.map(({ ordinal }) => ordinal)).size === reported.length)
        expect(isEqual).toBe(compared(view, inventory).length === 0);
    }),
    { numRuns: 500, verbose: fc.VerbosityLevel.Verbose },
  );
});

function report(
  view: TestView,
  inventory: Inventory | undefined,
  digest: Buffer = Buffer.alloc(32),
  nowMs = NOW_MS + 5000,
) {
  const { revision } = view.session('n1')!;
  return view.apply(
    reportInventory(view, { nodeName: 'n1', session: { ...NAME, revision }, digest, inventory, nowMs }),
  );
}

describe('a report', () => {
  test('of an equal digest says that the node runs, and that it has reported in the epoch', () => {
    const view = viewOf(['a n1', 'lease n1']);
    const value = { id: 'e2', importId: '', phase: 'waiting' } as const;
    view.put({ kind: 'storeEpoch', value });
    expect(report(view, undefined)).toMatchObject({ isEqual: false, findings: [], unknown: [] });
    expect(view.session('n1')).toMatchObject({ reportedAtMs: undefined, epoch: '', revision: 1 });
    const { sessionRevision } = report(view, undefined, storedDigest(view, 'n1'));
    expect(view.session('n1')).toMatchObject({ reportedAtMs: NOW_MS + 5000, epoch: 'e2', revision: sessionRevision });
  });

  test('of a digest that differs says once in a minute that the node runs', () => {
    const view = viewOf(['a n1']);
    for (const expired of [59_999, 1]) {
      expect(view.session('n1')).toMatchObject({ revision: 1 });
      view.monotonicMs += expired;
      report(view, undefined);
    }
    expect(view.session('n1')).toMatchObject({ heardAtMs: NOW_MS + 5000, reportedAtMs: undefined, revision: 2 });
  });

  test('keeps free addresses of pods from other holders until they are bound, and records conflicts', () => {
    const view = viewOf(['free', 'c n2']);
    const pods = inventoryOf([
      { id: 'a', ordinal: 0, isCurrent: true, isEnded: false },
      { id: 'b', ordinal: 1, isCurrent: true, isEnded: false },
    ]);
    const { conflicts } = report(view, pods);
    expect(conflicts).toEqual([
      { address: address('10.0.0.1'), attachment: 'net/b/eth0', holder: '(net/c/eth0) on node n2' },
    ]);
    expect(view.session('n1')?.conflicts).toEqual(conflicts);
    const asked = request('x', { addresses: [address('10.0.0.0')] });
    expect(failureOf(() => allocate(view, { request: asked, nowMs: NOW_MS })).code).toBe('ADDRESS_IN_USE');
    report(view, { attachments: [], leases: [] });
    expect(view.session('n1')?.conflicts).toEqual([]);
  });

  test('after a restore, keeps the address of an ended pod until its return: the node may give it to another pod', () => {
    const view = viewOf(['free', 'free']);
    const ended = inventoryOf([{ id: 'a', ordinal: 0, isCurrent: true, isEnded: true }]);
    const listed = () => view.session('n1')?.leases.map((each) => formatAddress(each.address));
    report(view, ended);
    expect(listed()).toEqual([]);
    view.put({ kind: 'storeEpoch', value: { id: 'e2', importId: '', phase: 'waiting' } });
    expect(report(view, ended)).toMatchObject({ isEqual: true, findings: [] });
    expect(listed()).toEqual(['10.0.0.0']);
    report(view, { attachments: [], leases: [] });
    expect(listed()).toEqual([]);
  });

  test('writes the block of such an address, so that a replica without the list loses its comparison', () => {
    const view = viewOf(['free']);
    const inventory = inventoryOf([{ id: 'a', ordinal: 0, isCurrent: true, isEnded: false }]);
    const input = { nodeName: 'n1', session: NAME, digest: Buffer.alloc(32), inventory, nowMs: NOW_MS };
    const [value] = view.blocks();
    expect(reportInventory(view, input).changes).toContainEqual({ type: 'put', record: { kind: 'block', value } });
  });

  test('removes listed leases that neither the node nor the datastore has, as after a restore', () => {
    const view = viewOf(['lease n1', 'free', 'free', 'c n2']);
    const [leased, gone, known, taken] = [0, 1, 2, 3].map((last) => address(`10.0.0.${last}`));
    const leases = [leased!, gone!, known!, taken!].map((each) => ({ address: each, sequenceNumber: 1n }));
    view.put({ kind: 'nodeSession', value: { ...view.session('n1')!, leases } });
    report(view, { attachments: [], leases: [{ address: known!, sequenceNumber: 1n }] });
    expect(view.session('n1')?.leases.map((each) => each.address)).toEqual([leased, known]);
  });

  test('of another session is refused', () => {
    const view = viewOf([]);
    view.put({ kind: 'nodeSession', value: sessionOf('n1', { generation: 2 }) });
    expect(failureOf(() => report(view, undefined)).code).toBe('SESSION_SUPERSEDED');
  });
});

test('after a restore, keeps a lost lease for its node: an ADD in progress may have it', () => {
  const view = viewOf(['free', 'free']);
  view.put({ kind: 'storeEpoch', value: { id: 'e2', importId: '', phase: 'waiting' } });
  const { findings } = report(view, inventoryOf([{ id: 'lease', ordinal: 0, isCurrent: true, isEnded: false }]));
  expect(findings).toHaveLength(1);
  expect(isAwaited(view, 'n1')).toBe(false);
  expect(view.lessee(address('10.0.0.0'))).toBe('n1');
  const bound = inventoryOf([{ id: 'a', ordinal: 0, isCurrent: true, isEnded: false }]);
  report(view, bound);
  expect(view.lessee(address('10.0.0.0'))).toBe('n1');
});

describe('after a restore that lost more addresses of a node than one report lists', () => {
  const POD_COUNT = 110;
  const lostView = () =>
    new TestView([
      poolRecord('p', '10.0.0.0/24', { blockSizeBits: 26 }),
      nodeRecord('n1'),
      { kind: 'nodeSession', value: sessionOf('n1') },
      { kind: 'storeEpoch', value: { id: 'e2', importId: '', phase: 'waiting' } },
    ]);
  const held = (count: number, isEnded: boolean, from = 0): HeldAttachment[] =>
    Array.from({ length: count }, (_, at) => ({
      attachment: attachment(`c${from + at}`),
      pod: undefined,
      addresses: [{ address: address(`10.0.0.${from + at}`), sequenceNumber: 1n }],
      isEnded,
    }));

  test('no address of a pod is free once the node counts as reported', () => {
    const view = lostView();
    report(view, { attachments: held(POD_COUNT, false), leases: [] });
    const free = held(POD_COUNT, false).filter(({ addresses: [each] }) => view.lessee(each!.address) === undefined);
    expect(isAwaited(view, 'n1') || free.length === 0, `${free.length} free`).toBe(true);
  });

  test('the node is awaited until a second report, if its addresses are in more blocks than one transaction writes', () => {
    const view = lostView();
    view.put(poolRecord('wide', '10.1.0.0/16', { blockSizeBits: 26 }));
    const blockOf = (at: number) => `10.1.${at}.0/26`;
    for (let at = 0; at < 65; at++) for (const record of claimedBlock(block(blockOf(at), 'n1'))) view.put(record);
    const attachments = Array.from({ length: 65 }, (_, at): HeldAttachment => {
      const addresses = [{ address: address(`10.1.${at}.7`), sequenceNumber: 1n }];
      return { attachment: attachment(`c${at}`), pod: undefined, addresses, isEnded: false };
    });
    report(view, { attachments, leases: [] });
    expect([isAwaited(view, 'n1'), view.session('n1')?.leases.length]).toEqual([true, 64]);
    report(view, { attachments, leases: [] });
    expect([isAwaited(view, 'n1'), view.session('n1')?.leases.length]).toEqual([false, 65]);
  });

  test('addresses of ended pods are kept too', () => {
    const view = lostView();
    const inventory = { attachments: [...held(64, false), ...held(4, true, 64)], leases: [] };
    report(view, inventory);
    report(view, inventory);
    expect(['10.0.0.64', '10.0.0.67'].map((each) => view.lessee(address(each)))).toEqual(['n1', 'n1']);
  });
});
