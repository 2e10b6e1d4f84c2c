import { formatAddress } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { getAddress } from '../addresses/addresses.js';
import { allocate } from '../addresses/allocate/allocate.js';
import { release } from '../addresses/release.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import { encodeRecord, serialize } from '../records/json/registry.js';
import type { RecordValue } from '../records/view.js';
import { address, sessionOf } from '../testing/allocations.js';
import {
  attachment,
  block,
  claimedBlock,
  failureOf,
  NOW_MS,
  nodeRecord,
  poolRecord,
  request,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { bindAddresses, type Binding } from './bindings.js';
import { leaseAddresses, type Lease } from './leases.js';
import { continueReturn } from './returns.js';

const ATTACHED_MS = NOW_MS + 2000;
const BOUND_MS = NOW_MS + 3000;

const dualStack = (...rest: readonly RecordValue[]) =>
  new TestView([
    poolRecord('four', '10.0.0.0/24'),
    poolRecord('six', 'fd00::/112'),
    nodeRecord('n1'),
    nodeRecord('n2'),
    ...rest,
  ]);

function lease(view: TestView, count = 4, rest: { family?: 4 | 6 } = {}): readonly Lease[] {
  const asked = { nodeName: 'n1', bootId: 'b1', family: 4, count, session: sessionOf(view), ...rest } as const;
  const input = { request: asked, unknownNodes: { policy: 'refuse' }, nowMs: NOW_MS } as const;
  return view.apply(leaseAddresses(view, input)).leases;
}

const nameOf = ({ address: { family, value }, sequenceNumber }: Lease) => ({
  address: { family, value },
  sequenceNumber,
});

function binding(id: string, leases: readonly Lease[], rest: Partial<Binding> = {}): Binding {
  return {
    attachment: attachment(id),
    pod: { namespace: 'default', name: `pod-${id}`, uid: 'u1' },
    netns: { bootId: 'b1', inode: 7n },
    addresses: leases.map(nameOf),
    attachedAtMs: ATTACHED_MS,
    ...rest,
  };
}

function bind(view: TestView, bound: Binding, nodeName = 'n1') {
  const outcome = view.apply(
    bindAddresses(view, { nodeName, session: sessionOf(view, nodeName), binding: bound, nowMs: BOUND_MS }),
  );
  expect(inconsistencies(view, NOW_MS)).toEqual([]);
  return outcome;
}

/** The stored bytes without sessions, and without what differs by the number of changes. */
function stored(view: TestView): string[] {
  const withoutNumbers = (record: RecordValue): RecordValue => {
    if (record.kind === 'block') {
      const { value } = record;
      const sequenceNumbers = value.sequenceNumbers.map((number) => (number === null ? null : 1n));
      return { kind: 'block', value: { ...value, sequenceNumber: 2n, sequenceNumbers } };
    }
    if (record.kind !== 'endpoint') return record;
    const addresses = record.value.addresses.map((each) => ({ ...each, sequenceNumber: 1n }));
    return { ...record, value: { ...record.value, addresses } };
  };
  const records = view.snapshot().filter(([, { kind }]) => kind !== 'nodeSession');
  return records.map(([key, record]) => {
    const bytes = serialize(encodeRecord(withoutNumbers(record), undefined));
    return `${key} ${Buffer.from(bytes).toString()}`;
  });
}

describe('a lease that is bound', () => {
  test.each([
    ['of a pod', binding('c1', []).pod],
    ['of a container without a pod', undefined],
  ])('is stored as an allocation %s at that time', (_, pod) => {
    const { netns } = binding('c1', []);
    const blocks = [...claimedBlock(block('10.0.0.0/26', 'n1')), ...claimedBlock(block('fd00::/122', 'n1'))];
    const leased = dualStack(...blocks);
    const leases = [...lease(leased, 1), ...lease(leased, 1, { family: 6 })];
    bind(leased, binding('c1', leases, { pod }));
    const allocated = dualStack(...blocks);
    const asked = request('c1', { pod, netns, families: [4, 6] });
    allocated.apply(allocate(allocated, { request: asked, nowMs: ATTACHED_MS }));
    expect(stored(leased)).toEqual(stored(allocated));
    expect(leased.history).toEqual([]);
  });

  test.each([
    ['before its lease', NOW_MS - 3_600_000, NOW_MS],
    ['in the future', NOW_MS + 3_600_000, BOUND_MS],
  ])('never begins %s, whatever the clock of its node says', (_, attachedAtMs, sinceMs) => {
    const view = dualStack();
    const [first] = lease(view);
    const { endpoint } = bind(view, binding('c1', [first!], { attachedAtMs }));
    expect(endpoint.createTimeMs).toBe(Math.floor(sinceMs / 1000) * 1000);
    const holder = getAddress(view, first!.address, BOUND_MS).state;
    expect(holder).toMatchObject({ sinceMs });
  });

  test('keeps its sequence number, and leaves the other leases', () => {
    const view = dualStack();
    const [first, ...rest] = lease(view);
    const { endpoint, added } = bind(view, binding('c1', [first!]));
    expect(added.map(formatAddress)).toEqual([formatAddress(first!.address)]);
    expect(endpoint.addresses).toMatchObject([
      { address: hostPrefix(first!.address), sequenceNumber: first!.sequenceNumber },
    ]);
    expect(lease(view, 0).map(nameOf)).toEqual(rest.map(nameOf));
    const sum = (id: string) => [...view.handle(id)!.blocks.values()];
    expect(sum('podwire-lease.n1')).toEqual([3]);
    expect(sum('net.c1')).toEqual([1]);
  });

  test('may be bound to the same attachment again', () => {
    const view = dualStack();
    const bound = binding('c1', lease(view, 1));
    const first = bind(view, bound);
    const records = view.snapshot();
    expect(bind(view, bound)).toMatchObject({ endpoint: first.endpoint, added: [] });
    expect(view.snapshot()).toEqual(records);
  });

  test('adds a family to an attachment, and keeps its pod', () => {
    const view = dualStack();
    const before = view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS })).endpoint;
    const six = lease(view, 1, { family: 6 });
    const { endpoint } = bind(view, binding('c1', six, { pod: { namespace: 'other', name: 'x', uid: '' } }));
    expect(endpoint.pod).toEqual(before.pod);
    expect(endpoint.addresses).toHaveLength(2);
    expect(endpoint.netns).toEqual({ bootId: 'b1', inode: 7n });
    expect(view.all('endpoint')).toHaveLength(1);
  });

  test('takes over the endpoint of an earlier sandbox, and gives it back', () => {
    const view = dualStack();
    const pod = { namespace: 'default', name: 'web', uid: '' };
    const [first, second] = lease(view);
    bind(view, binding('c1', [first!], { pod }));
    bind(view, binding('c2', [second!], { pod }));
    const attachments = () => view.all('endpoint').map(({ value }) => value.attachment.containerId);
    expect(attachments()).toEqual(['c2']);
    view.apply(release(view, attachment('c2'), NOW_MS));
    expect(attachments()).toEqual(['c1']);
  });

  test('loses to a release of the attachment that is under way', () => {
    const view = dualStack();
    const { changes } = bindAddresses(view, {
      nodeName: 'n1',
      binding: binding('c1', lease(view, 1)),
      session: sessionOf(view),
      nowMs: BOUND_MS,
    });
    expect(changes).toContainEqual({ type: 'expectUnreleased', handleId: 'net.c1' });
  });
});

describe('a binding is refused', () => {
  function refusal(view: TestView, bound: Binding, nodeName = 'n1'): string {
    sessionOf(view, nodeName);
    const records = view.snapshot();
    const { code, message } = failureOf(() => bind(view, bound, nodeName));
    expect(code).toBe('ALLOCATION_MISMATCH');
    expect(view.snapshot()).toEqual(records);
    return message;
  }

  test('when the lease was returned, and another attachment has its address', () => {
    const view = dualStack();
    const [first] = lease(view, 1);
    const returns = [{ allocation: nameOf(first!), use: undefined }];
    view.apply(continueReturn(view, { nodeName: 'n1', session: sessionOf(view), returns, nowMs: NOW_MS }));
    view.apply(allocate(view, { request: request('c2', { addresses: [nameOf(first!).address] }), nowMs: NOW_MS }));
    expect(refusal(view, binding('c1', [first!]))).toContain('is held by handle net.c2');
  });

  test('when it is the lease of another node, or bound to another attachment', () => {
    const view = dualStack();
    const [first] = lease(view, 1);
    expect(refusal(view, binding('c1', [first!]), 'n2')).toContain('is held by handle podwire-lease.n1');
    bind(view, binding('c2', [first!]));
    expect(refusal(view, binding('c1', [first!]))).toContain('is held by handle net.c2');
  });

  test('when the attachment has another address of the family', () => {
    const view = dualStack();
    const [first, second] = lease(view);
    bind(view, binding('c1', [first!]));
    expect(refusal(view, binding('c1', [second!]))).toContain(`holds ${formatAddress(first!.address)}`);
  });

  test('when the attachment is on another node', () => {
    const view = dualStack();
    view.apply(allocate(view, { request: request('c1', { nodeName: 'n2' }), nowMs: NOW_MS }));
    expect(refusal(view, binding('c1', lease(view, 1, { family: 6 })))).toContain('is on node n2');
  });

  test('as a whole when one of its addresses is', () => {
    const view = dualStack();
    const four = lease(view, 1);
    const taken = { address: address('fd00::9'), sequenceNumber: 1n };
    view.apply(
      allocate(view, { request: request('c2', { families: [6], addresses: [taken.address] }), nowMs: NOW_MS }),
    );
    expect(refusal(view, binding('c1', [], { addresses: [nameOf(four[0]!), taken] }))).toContain('fd00::9');
  });

  test('when the handle of the attachment cannot be read', () => {
    const view = dualStack();
    const four = lease(view, 1);
    view.setAside({ kind: 'handle', id: 'net.c1' }, 'damaged');
    expect(failureOf(() => bind(view, binding('c1', four))).code).toBe('STORE_CORRUPT');
  });
});
