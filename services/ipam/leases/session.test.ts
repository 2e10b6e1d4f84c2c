import { formatAddress } from '@podwire/shared/net/address';
import { describe, expect, test } from 'vitest';

import { getAddress } from '../addresses/addresses.js';
import { allocate } from '../addresses/allocate/allocate.js';
import { continueAddressRelease } from '../addresses/release.js';
import { requireReports } from '../blocks/epoch.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import { ALIVE_MS, DISPLACED_MS, type NodeSession } from '../records/session.js';
import { address } from '../testing/allocations.js';
import {
  attachment,
  config,
  failureOf,
  NOW_MS,
  nodeRecord,
  poolRecord,
  request,
  session as sessionOf,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { bindAddresses, type AllocationName } from './bindings.js';
import { leaseAddresses } from './leases.js';
import { reportInventory } from './inventory.js';
import { continueReturn } from './returns.js';
import { openSession, type OpenedSession, type SessionName, type SessionRequest } from './session.js';

const EPOCH = { id: 'e1', importId: '', phase: 'first' } as const;

const withNodes = () =>
  new TestView([
    poolRecord('p', '10.0.0.0/26', { blockSizeBits: 29 }),
    nodeRecord('n1'),
    nodeRecord('n2'),
    { kind: 'storeEpoch', value: EPOCH },
  ]);

function open(view: TestView, rest: Partial<SessionRequest> = {}): OpenedSession {
  const nodeName = rest.nodeName ?? 'n1';
  const expectedGeneration = view.session(nodeName)?.generation ?? 0;
  const usual = { nodeName, machineId: 'm1', bootId: 'b1', expectedGeneration, last: undefined, address: '192.0.2.1' };
  return view.apply(openSession(view, { request: { ...usual, ...rest }, nowMs: NOW_MS, epochId: 'e2' }));
}

function nameOf({ bootId, generation, revision }: NodeSession): SessionName {
  return { bootId, generation, revision };
}

/** The present session of a node. */
function current(view: TestView, nodeName = 'n1'): NodeSession {
  const found = view.session(nodeName);
  if (!found) throw new Error(`node ${nodeName} has no session`);
  return found;
}

function lease(view: TestView, count = 4, session?: SessionName, nodeName = 'n1') {
  const of = session ?? nameOf(current(view, nodeName));
  const asked = { nodeName, bootId: of.bootId, family: 4, count, session: of } as const;
  for (;;) {
    const input = { request: asked, unknownNodes: { policy: 'refuse' }, nowMs: NOW_MS } as const;
    const step = view.apply(leaseAddresses(view, input));
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
    if (step.state === 'done') return step;
  }
}

const listed = (view: TestView, nodeName = 'n1'): string[] =>
  current(view, nodeName).leases.map((each) => `${formatAddress(each.address)} ${each.sequenceNumber}`);

const leasedIn = (step: ReturnType<typeof lease>): string[] =>
  step.leases.map((each) => `${formatAddress(each.address)} ${each.sequenceNumber}`);

function bind(view: TestView, id: string, text: string, rest: { session?: SessionName; sequenceNumber?: bigint } = {}) {
  const { session = nameOf(current(view)), sequenceNumber = 0n } = rest;
  const addresses = [{ address: address(text), sequenceNumber }];
  const binding = { attachment: attachment(id), pod: undefined, netns: undefined, addresses, attachedAtMs: NOW_MS };
  const bound = view.apply(bindAddresses(view, { nodeName: 'n1', session, binding, nowMs: NOW_MS }));
  expect(inconsistencies(view, NOW_MS)).toEqual([]);
  return bound;
}

/** Another tool releases addresses without asking a node. */
function releaseByOtherTool(view: TestView, ...texts: readonly string[]): void {
  const before = view.all('nodeSession');
  for (const { value } of before) view.remove({ kind: 'nodeSession', name: value.name });
  const releases = texts.map((text) => ({ address: address(text), handleId: undefined, sequenceNumber: undefined }));
  view.apply(continueAddressRelease(view, { releases, nowMs: NOW_MS }));
  for (const record of before) view.put(record);
}

describe('a session', () => {
  test('is opened by the process that expects its generation', () => {
    const view = withNodes();
    expect(open(view)).toEqual({ isOpened: true, generation: 1, revision: 1, isRestored: false });
    expect(open(view, { expectedGeneration: 0 })).toMatchObject({ isOpened: false, generation: 1, revision: 1 });
    expect(open(view, { bootId: 'b2', expectedGeneration: 1 })).toMatchObject({ isOpened: true, generation: 2 });
    expect(current(view)).toMatchObject({ machineId: 'm1', bootId: 'b2', address: '192.0.2.1', heardAtMs: NOW_MS });
  });

  test('is refused to another machine while the owner runs; the message names both', () => {
    const view = withNodes();
    open(view);
    const other = { machineId: 'm2', bootId: 'b9', address: '192.0.2.2' };
    view.monotonicMs += ALIVE_MS - 1;
    const { code, message } = failureOf(() => open(view, other));
    expect(code).toBe('NODE_NAME_TAKEN');
    expect(message).toContain('machine m1 (address 192.0.2.1, boot b1)');
    expect(message).toContain('machine m2 (address 192.0.2.2, boot b9)');
    view.monotonicMs += 1;
    expect(open(view, other)).toMatchObject({ isOpened: true, generation: 2 });
    expect(failureOf(() => open(view)).code).toBe('NODE_NAME_TAKEN');
  });

  test('leaves addresses of a displaced machine to it for an hour', () => {
    const view = withNodes();
    open(view);
    const before = leasedIn(lease(view, 2));
    view.monotonicMs += ALIVE_MS;
    open(view, { machineId: 'm2', bootId: 'b2' });
    const session = nameOf(current(view));
    const leaseAgain = () => {
      const asked = { nodeName: 'n1', bootId: 'b2', family: 4, count: 2, session } as const;
      return leaseAddresses(view, { request: asked, unknownNodes: { policy: 'refuse' }, nowMs: NOW_MS });
    };
    const step = leaseAgain().outcome;
    expect(step).toMatchObject({ state: 'done', freedCount: 0 });
    expect(leasedIn(step).filter((each) => before.includes(each))).toEqual([]);
    const inventory = { attachments: [], leases: [] };
    const input = { nodeName: 'n1', session, digest: Buffer.alloc(32), inventory };
    const unknown = () => reportInventory(view, { ...input, nowMs: NOW_MS }).outcome.unknown;
    expect(unknown()).toEqual([]);
    view.monotonicMs += 2 * 3_600_000;
    expect(leaseAgain().outcome).toMatchObject({ state: 'more', freedCount: 2 });
    expect(unknown()).toHaveLength(2);
  });

  test('leaves addresses of each displaced machine to it when further ones take the name over, until it has the name again', () => {
    const view = withNodes();
    const takeOver = (machineId: string, bootId: string) => {
      view.monotonicMs += ALIVE_MS;
      open(view, { machineId, bootId });
      const input = { nodeName: 'n1', session: nameOf(current(view)), digest: Buffer.alloc(32), nowMs: NOW_MS };
      const { unknown } = reportInventory(view, { ...input, inventory: { attachments: [], leases: [] } }).outcome;
      return unknown.map(({ attachment }) => attachment?.containerId);
    };
    const addPod = (bootId: string) => {
      const pod = request(`of ${bootId}`, { nodeName: 'n1', netns: { bootId, inode: 7n } });
      view.apply(allocate(view, { request: pod, nowMs: NOW_MS }));
    };
    open(view);
    addPod('b1');
    expect(takeOver('m2', 'b2')).toEqual([]);
    addPod('b2');
    expect(takeOver('m3', 'b3')).toEqual([]);
    expect(takeOver('m1', 'b4')).toEqual(['of b1']);
    view.monotonicMs += DISPLACED_MS - 2 * ALIVE_MS;
    expect(takeOver('m4', 'b5')).toEqual(['of b1', 'of b2']);
  });

  test('is refused to a node that is not registered, and not to one that is being deleted: its report may end that', () => {
    const view = withNodes();
    expect(failureOf(() => open(view, { nodeName: 'n9' })).code).toBe('NODE_NOT_FOUND');
    view.put(nodeRecord('n1', { deletionTimeMs: NOW_MS }));
    expect(open(view).isOpened).toBe(true);
  });

  test('is refused to a second machine of a node that was deleted while it ran', () => {
    const view = withNodes();
    open(view);
    view.remove({ kind: 'node', name: 'n1' });
    expect(failureOf(() => open(view, { machineId: 'another' })).code).toBe('NODE_NAME_TAKEN');
    view.monotonicMs += ALIVE_MS;
    expect(failureOf(() => open(view, { machineId: 'another' })).code).toBe('NODE_NOT_FOUND');
  });

  test('lets leases that another tool released cool down when another boot opens it: pods may have had them', () => {
    const view = withNodes();
    view.put(config({ cooldownSeconds: 30 }));
    open(view);
    const [held] = lease(view, 1).leases;
    const text = formatAddress(held!.address);
    releaseByOtherTool(view, text);
    open(view);
    open(view, { bootId: 'b2' });
    expect(listed(view)).toEqual([]);
    const asked = request('c1', { addresses: [address(text)] });
    expect(failureOf(() => allocate(view, { request: asked, nowMs: NOW_MS })).message).toContain('cool');
    view.apply(allocate(view, { request: asked, nowMs: NOW_MS + 31_000 }));
    expect(inconsistencies(view, NOW_MS + 31_000)).toEqual([]);
  });

  test('keeps the leases of its boot, and loses leases of another boot', () => {
    const view = withNodes();
    open(view);
    lease(view);
    expect(open(view)).toMatchObject({ generation: 2 });
    expect(listed(view)).toHaveLength(4);
    open(view, { bootId: 'b2' });
    expect(listed(view)).toEqual([]);
    expect(leasedIn(lease(view, 0))).toEqual([]);
    expect(view.handles()).toEqual([]);
  });
});

describe('a call of another session is refused', () => {
  const calls: readonly (readonly [string, (view: TestView, session: SessionName) => unknown])[] = [
    [
      'LeaseAddresses',
      (view, session) => {
        const asked = { nodeName: 'n1', bootId: session.bootId, family: 4, count: 4, session } as const;
        return leaseAddresses(view, { request: asked, unknownNodes: { policy: 'refuse' }, nowMs: NOW_MS });
      },
    ],
    ['BindAddresses', (view, session) => bind(view, 'c1', '10.0.0.1', { session })],
    [
      'ReturnAddresses',
      (view, session) => continueReturn(view, { nodeName: 'n1', session, returns: [], nowMs: NOW_MS }),
    ],
  ];

  test.each(calls)('%s', (_, call) => {
    const view = withNodes();
    open(view);
    const first = nameOf(current(view));
    call(view, first);
    open(view);
    expect(failureOf(() => call(view, first)).code).toBe('SESSION_SUPERSEDED');
    expect(failureOf(() => call(view, { ...nameOf(current(view)), bootId: 'b0' })).code).toBe('SESSION_SUPERSEDED');
    expect(failureOf(() => call(withNodes(), first)).message).toContain('the current one is no session');
    // The datastore went back.
    const later = { ...nameOf(current(view)), revision: current(view).revision + 1 };
    expect(failureOf(() => call(view, later)).message).toContain('restored to an older state');
  });

  test('and its transaction compares the session', () => {
    const view = withNodes();
    open(view);
    const { value } = view.all('nodeSession')[0]!;
    const asked = { nodeName: 'n1', bootId: 'b1', family: 4, count: 1, session: nameOf(value) } as const;
    const decided = leaseAddresses(view, { request: asked, unknownNodes: { policy: 'refuse' }, nowMs: NOW_MS });
    const written = decided.changes.filter((change) => 'record' in change && change.record.kind === 'nodeSession');
    expect(written).toMatchObject([{ type: 'put', record: { value: { revision: value.revision + 1 } } }]);
  });
});

describe('the time at which a node was heard of', () => {
  test('is written once in a minute', () => {
    const view = withNodes();
    view.put({ kind: 'nodeSession', value: sessionOf('n1', { heardAtMs: 0 }) });
    view.monotonicMs += 59_999;
    expect(lease(view, 0).sessionRevision).toBe(1);
    view.monotonicMs += 1;
    expect(lease(view, 0).sessionRevision).toBe(2);
    expect(current(view).heardAtMs).toBe(NOW_MS);
  });
});

describe('the list of leases', () => {
  test('is what the node holds, after each call', () => {
    const view = withNodes();
    open(view);
    const held = lease(view);
    expect(listed(view)).toEqual(leasedIn(held).sort());
    const [first, second, ...rest] = held.leases;
    bind(view, 'c1', formatAddress(first!.address), first);
    const returns = [{ allocation: { ...second!, address: address(formatAddress(second!.address)) }, use: undefined }];
    view.apply(continueReturn(view, { nodeName: 'n1', session: nameOf(current(view)), returns, nowMs: NOW_MS }));
    expect(listed(view)).toEqual(rest.map((each) => `${formatAddress(each.address)} ${each.sequenceNumber}`).sort());
  });

  test('a pod’s lease that another tool released, and the node took back, cools down when the pod has ended', () => {
    const view = withNodes();
    view.put(config({ cooldownSeconds: 30 }));
    open(view);
    const [first] = lease(view, 1).leases;
    const allocation = { ...first!, address: address(formatAddress(first!.address)) };
    releaseByOtherTool(view, formatAddress(first!.address));
    const [again] = lease(view, 1).leases;
    expect(again!.sequenceNumber).toBeGreaterThan(first!.sequenceNumber);
    const use = { attachment: attachment('c1'), netns: undefined, attachedAtMs: NOW_MS, detachedAtMs: NOW_MS };
    const input = { nodeName: 'n1', session: nameOf(current(view)), returns: [{ allocation, use }], nowMs: NOW_MS };
    expect(view.apply(continueReturn(view, input)).results).toMatchObject([{ state: 'released' }]);
    expect(listed(view)).toEqual([]);
    expect(getAddress(view, first!.address, NOW_MS).state.kind).toBe('cooling');
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
  });

  test('keeps a lease that another tool released from other holders, until the node has it again', () => {
    const view = withNodes();
    open(view);
    const before = lease(view).leases.map((each) => formatAddress(each.address));
    releaseByOtherTool(view, ...before);
    const asked = request('c9', { nodeName: 'n2', addresses: [address(before[0]!)] });
    expect(failureOf(() => allocate(view, { request: asked, nowMs: NOW_MS })).code).toBe('ADDRESS_IN_USE');
    const given = [];
    for (let count = 0; count < 60; count++) {
      const pod = request(`c${count}`, { nodeName: count % 2 === 0 ? 'n1' : 'n2' });
      const { endpoint } = view.apply(allocate(view, { request: pod, nowMs: NOW_MS }));
      given.push(...endpoint.addresses.map((each) => formatAddress(each.address)));
    }
    expect(given.filter((text) => before.includes(text))).toEqual([]);
    expect(
      lease(view, 0)
        .leases.map((each) => formatAddress(each.address))
        .sort(),
    ).toEqual(before.sort());
    expect(listed(view)).toEqual(leasedIn(lease(view, 0)).sort());
  });

  test('loses a lease that another holder got, and the node is asked to list again', () => {
    const view = withNodes();
    open(view);
    const [text = ''] = lease(view, 1).leases.map((each) => formatAddress(each.address));
    releaseByOtherTool(view, text);
    const session = current(view);
    view.remove({ kind: 'nodeSession', name: 'n1' });
    view.apply(allocate(view, { request: request('c9', { addresses: [address(text)] }), nowMs: NOW_MS }));
    view.put({ kind: 'nodeSession', value: session });
    expect(lease(view, 0).leases).toEqual([]);
    expect(listed(view)).toEqual([]);
    expect(view.node('n1')?.leaseRecallCount).toBe(1);
  });
});

describe('a binding by address', () => {
  test.each(['is free, in no block', 'was released by another tool', 'is the lease, by another sequence number'])(
    'gets the address that %s',
    (state) => {
      const view = withNodes();
      open(view);
      const [text = ''] = lease(view, 1).leases.map((each) => formatAddress(each.address));
      if (state === 'was released by another tool') releaseByOtherTool(view, text);
      const wanted = state === 'is free, in no block' ? '10.0.0.42' : text;
      const { endpoint, added } = bind(view, 'c1', wanted, { sequenceNumber: 7n });
      expect(added.map(formatAddress)).toEqual([wanted]);
      const [{ sequenceNumber } = { sequenceNumber: 0n }] = endpoint.addresses;
      expect(sequenceNumber).toBeGreaterThan(7n);
      expect(bind(view, 'c1', wanted, { sequenceNumber: 7n })).toMatchObject({ endpoint, added: [] });
      expect(listed(view).some((each) => each.startsWith(`${wanted} `))).toBe(false);
    },
  );

  test.each([
    ['another pod has it', '10.0.0.9'],
    ['another node has leased it', 'leased'],
    ['it is in no pool', '10.9.0.1'],
  ])('is refused when %s', (_, text) => {
    const view = withNodes();
    open(view);
    open(view, { nodeName: 'n2', machineId: 'm2' });
    const [leased = ''] = lease(view, 1, undefined, 'n2').leases.map((each) => formatAddress(each.address));
    releaseByOtherTool(view, leased);
    view.apply(allocate(view, { request: request('c2', { addresses: [address('10.0.0.9')] }), nowMs: NOW_MS }));
    expect(failureOf(() => bind(view, 'c1', text === 'leased' ? leased : text)).code).toBe('ALLOCATION_MISMATCH');
  });
});

describe('an address that the node keeps', () => {
  test.each([true, false])('stays its lease as a new allocation (binding recorded: %s)', (isBound) => {
    const view = withNodes();
    open(view);
    const [held] = lease(view, 1).leases;
    const allocation = { address: address(formatAddress(held!.address)), sequenceNumber: held!.sequenceNumber };
    if (isBound) bind(view, 'c1', formatAddress(held!.address), held);
    const times = { attachedAtMs: NOW_MS - 500, detachedAtMs: NOW_MS };
    const use = { attachment: attachment('c1'), netns: undefined, ...times, isKept: true };
    const session = nameOf(current(view));
    const returnIt = (returned: AllocationName, name = session) =>
      view.apply(
        continueReturn(view, {
          nodeName: 'n1',
          session: name,
          returns: [{ allocation: returned, use }],
          nowMs: NOW_MS,
        }),
      );
    const { results, leaseNumbers } = returnIt(allocation);
    expect(results).toMatchObject([{ state: 'released' }]);
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
    expect(view.history).toMatchObject([{ handleId: 'net.c1', sequenceNumber: held!.sequenceNumber }]);
    const [sequenceNumber = 0n] = leaseNumbers;
    expect(sequenceNumber).toBeGreaterThan(held!.sequenceNumber);
    expect(leasedIn(lease(view, 0))).toEqual([`${formatAddress(held!.address)} ${sequenceNumber}`]);
    expect(listed(view)).toEqual(leasedIn(lease(view, 0)));
    expect(view.endpoints()).toEqual([]);
    // A return whose answer was lost is repeated, and adds nothing to the history; the next tenure has an entry of its own.
    const repeated = returnIt(allocation, nameOf(current(view)));
    expect([repeated.results, repeated.leaseNumbers]).toMatchObject([[{ state: 'mismatch' }], leaseNumbers]);
    expect(view.history).toHaveLength(1);
    returnIt({ ...allocation, sequenceNumber }, nameOf(current(view)));
    expect(view.history).toMatchObject([{ sequenceNumber: held!.sequenceNumber }, { sequenceNumber }]);
  });
});

describe('a node that has seen a later state of the datastore', () => {
  const last = { bootId: 'b1', generation: 7, revision: 90 };

  function restored(...sessions: readonly NodeSession[]): TestView {
    const view = withNodes();
    for (const value of sessions) view.put({ kind: 'nodeSession', value });
    return view;
  }

  test('begins an epoch, in which new addresses wait for the reports of all nodes', () => {
    const view = restored(sessionOf('n1', { machineId: 'm1', epoch: 'e1' }), sessionOf('n2', { epoch: 'e1' }));
    expect(open(view, { last })).toMatchObject({ isRestored: true, generation: 8, revision: 91 });
    const failure = failureOf(() => allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    expect(failure.code).toBe('STORE_RESTORED');
    expect(failure.message).toContain('nodes n1, n2, ');
    expect(failureOf(() => lease(view)).code).toBe('STORE_RESTORED');
    expect(failureOf(() => lease(view, 0)).code).toBe('STORE_RESTORED');
    bind(view, 'c1', '10.0.0.1');
    // The other node has seen a later state too, and begins no further epoch.
    expect(open(view, { nodeName: 'n2', machineId: 'machine-n2', last })).toMatchObject({ isRestored: false });
    for (const name of ['n1', 'n2']) view.put({ kind: 'nodeSession', value: { ...current(view, name), epoch: 'e2' } });
    expect(() => requireReports(view)).not.toThrow();
  });

  test('returns a lease of the backup that a pod of another node has, and that pod gets it', () => {
    const view = withNodes();
    for (const n of [1, 2]) open(view, { nodeName: `n${n}`, machineId: `m${n}` });
    const [held] = lease(view, 1).leases;
    const text = formatAddress(held!.address);
    const pod = { attachment: attachment('c2'), pod: undefined, isEnded: false };
    const report = (): number => {
      const addresses = [{ address: address(text), sequenceNumber: 3n }];
      const inventory = { attachments: [{ ...pod, addresses }], leases: [] };
      const input = { nodeName: 'n2', session: nameOf(current(view, 'n2')), digest: Buffer.alloc(32), inventory };
      return view.apply(reportInventory(view, { ...input, nowMs: NOW_MS })).conflicts.length;
    };
    expect(report()).toBe(1);
    expect(lease(view, 1).leases).toMatchObject([{ isOutdated: true }]);
    const allocation = { address: address(text), sequenceNumber: held!.sequenceNumber };
    const returns = [{ allocation, use: undefined }];
    view.apply(continueReturn(view, { nodeName: 'n1', session: nameOf(current(view)), returns, nowMs: NOW_MS }));
    expect(leasedIn(lease(view, 1))).not.toContainEqual(expect.stringContaining(`${text} `));
    expect(report()).toBe(0);
    const binding = { ...pod, netns: undefined, addresses: [allocation], attachedAtMs: NOW_MS };
    const session = nameOf(current(view, 'n2'));
    expect(view.apply(bindAddresses(view, { nodeName: 'n2', session, binding, nowMs: NOW_MS })).added).toHaveLength(1);
  });

  test('begins none when it was deleted and registered again, since the other nodes have seen nothing', () => {
    const view = restored(sessionOf('n2', { epoch: 'e1' }));
    expect(open(view, { last })).toMatchObject({ isRestored: false, generation: 8 });
    expect(() => requireReports(view)).not.toThrow();
  });

  test('begins one when no node has a session', () => {
    const view = restored();
    expect(open(view, { last })).toMatchObject({ isRestored: true });
    expect(failureOf(() => requireReports(view)).message).toContain('nodes n1, ');
  });

  test('has its blocks to itself until it reports, also after the wait', () => {
    const view = restored(sessionOf('n1', { machineId: 'm1', epoch: 'e1' }), sessionOf('n2', { epoch: 'e1' }));
    view.apply(allocate(view, { request: request('c1', { nodeName: 'n2' }), nowMs: NOW_MS }));
    open(view, { last });
    view.put({ kind: 'nodeSession', value: { ...current(view), epoch: 'e2' } });
    view.monotonicMs += 60_000;
    const given = [];
    for (let count = 0; count < 56; count++) {
      const { endpoint } = view.apply(allocate(view, { request: request(`x${count}`), nowMs: NOW_MS }));
      given.push(...endpoint.addresses.map((each) => each.block.value));
    }
    const [owned] = view.affinitiesOf({ kind: 'host', name: 'n2' });
    expect(given).not.toContain(owned!.block.value);
    expect(failureOf(() => allocate(view, { request: request('y', { nodeName: 'n3' }), nowMs: NOW_MS })).code).toBe(
      'POOLS_EXHAUSTED',
    );
    view.put({ kind: 'nodeSession', value: { ...current(view, 'n2'), epoch: 'e2' } });
    view.apply(allocate(view, { request: request('y', { nodeName: 'n3' }), nowMs: NOW_MS }));
  });
});
