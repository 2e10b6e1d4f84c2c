import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { splitUpdate } from './distribution.js';
import { NetworkPolicies, type PolicyMessage } from './network-policies-operations.js';
import { encodeMessage } from './network-policies-rpc.js';
import type { RawPod } from './testing/cluster.js';
import { CompiledCluster } from './testing/compiled.js';

/** Default limit of clients. */
const GRPC_BYTES_MAX = 4 * 1024 * 1024;

let clock: ManualClock;
let policies: NetworkPolicies;
let compiled: CompiledCluster;
let stop: AbortController;

beforeEach(() => {
  clock = new ManualClock();
  let ids = 0;
  policies = new NetworkPolicies({ clock, newUid: () => `stream-${++ids}`, refusal: () => undefined });
  compiled = new CompiledCluster(undefined, policies.profiles);
  stop = new AbortController();
  compiled.setNamespace({ metadata: { name: 'default', labels: {} } });
  compiled.setPod(pod('web', 'n1', '10.0.0.1'));
  compiled.setPolicy({
    metadata: { name: 'web', namespace: 'default' },
    spec: { podSelector: { matchLabels: { app: 'web' } }, ingress: [{ from: [{ podSelector: {} }] }] },
  });
  clock.advance(5);
});

afterEach(() => {
  stop.abort();
  policies.close();
});

function pod(name: string, nodeName: string, ip: string, uid = name): RawPod {
  const metadata = { name, namespace: 'default', uid, labels: { app: name } };
  return { metadata, spec: { nodeName }, status: { podIPs: [{ ip }] } };
}

const numbered = (index: number): RawPod => pod(`p${index}`, 'n2', `10.1.${index >> 8}.${index & 255}`);

function follow(nodeName: string, sets: ReadonlyMap<string, bigint> = new Map()): AsyncGenerator<PolicyMessage> {
  return policies.follow({ nodeName, sets }, stop.signal);
}

async function next(stream: AsyncGenerator<PolicyMessage>): Promise<PolicyMessage> {
  const { value } = await stream.next();
  if (!value) throw new Error('the stream has ended');
  return value;
}

/** The next message, once the present changes are due. */
async function nextAfterBatch(stream: AsyncGenerator<PolicyMessage>): Promise<PolicyMessage> {
  const message = next(stream);
  await new Promise((resolve) => setImmediate(resolve));
  clock.advance(5);
  return message;
}

describe('a stream', () => {
  test('begins with a snapshot of what the pods of the node need', async () => {
    const { isComplete, number, update } = await next(follow('n1'));
    expect({ isComplete, number }).toEqual({ isComplete: true, number: 1 });
    expect(update.pods).toMatchObject([{ name: 'web', ingress: { profile: update.profiles[0] }, egress: undefined }]);
    expect(update.sets).toMatchObject([{ isWhole: true, added: [{ value: { sequenceNumber: 0n } }], removed: [] }]);
    expect(update.unknownPods).toEqual({ all: false, namespaces: ['default'] });
  });

  test('is empty, and complete, for a node without pods', async () => {
    const { isComplete, update } = await next(follow('n9'));
    expect(isComplete).toBe(true);
    expect(update).toMatchObject({ sets: [], profiles: [], pods: [], removedPods: [], removedIds: [] });
  });

  test('gets a burst of pods as one message', async () => {
    const stream = follow('n1');
    await next(stream);
    for (let index = 0; index < 100; index++) compiled.setPod(numbered(index));
    const { update } = await nextAfterBatch(stream);
    expect(update.sets.map(({ isWhole, added }) => [isWhole, added.length])).toEqual([[false, 100]]);
    expect(update).toMatchObject({ profiles: [], pods: [], unknownPods: undefined });
  });

  test('does not mention what came and went meanwhile, nor changes of other nodes', async () => {
    const stream = follow('n1');
    await next(stream);
    compiled.setPod(numbered(1));
    policies.profiles.pods.removePod({ namespace: 'default', name: 'p1' });
    compiled.setPod(numbered(2));
    const { number, update } = await nextAfterBatch(stream);
    expect(number).toBe(2);
    expect(update.sets.map(({ added, removed }) => [added.length, removed.length])).toEqual([[1, 0]]);
  });

  test('replaces a pod that was created again under its name', async () => {
    const stream = follow('n1');
    await next(stream);
    compiled.setPod(pod('web', 'n1', '10.0.0.1', 'second'));
    const { update } = await nextAfterBatch(stream);
    expect(update.removedPods).toMatchObject([{ name: 'web', uid: 'web' }]);
    expect(update.pods).toMatchObject([{ name: 'web', uid: 'second' }]);
  });

  test('drops profiles and sets that no pod uses, after the pod', async () => {
    const stream = follow('n1');
    const first = await next(stream);
    policies.profiles.removePolicy('NetworkPolicy default/web');
    const { update } = await nextAfterBatch(stream);
    expect(update.pods).toMatchObject([{ name: 'web', ingress: undefined }]);
    expect(update.removedIds).toEqual([first.update.profiles[0]?.id, first.update.sets[0]?.id]);
    expect(update.unknownPods?.namespaces).toEqual([]);
  });

  test('sends no set that the node has, and names the ones that it does not need', async () => {
    const first = await next(follow('n1'));
    const [set] = first.update.profiles[0]?.rules[0]?.peers?.sets ?? [];
    const digest = policies.profiles.podOf('n1', 'default/web')?.ingress?.sets[0]?.digest ?? 0n;
    const known = new Map([
      [set ?? '', digest],
      ['a-other', 1n],
    ]);
    expect((await next(follow('n1', known))).update).toMatchObject({ sets: [], removedIds: ['a-other'] });
    const stale = await next(follow('n1', new Map([[set ?? '', digest + 1n]])));
    expect(stale.update.sets).toMatchObject([{ id: set, isWhole: true }]);
  });
});

describe('a large set', () => {
  beforeEach(() => {
    for (let index = 0; index < 12_000; index++) compiled.setPod(numbered(index));
  });

  test('comes in parts, before the profile that uses it', async () => {
    const stream = follow('n1');
    const messages = [await next(stream), await next(stream)];
    while (!messages.at(-1)?.isComplete) messages.push(await next(stream));
    const parts = messages.flatMap(({ update }) => update.sets);
    expect(parts.map(({ isWhole, added }) => [isWhole, added.length])).toEqual([
      [true, 5000],
      [false, 5000],
      [false, 2001],
    ]);
    expect(messages.map(({ number }) => number)).toEqual(messages.map((_, index) => index + 1));
    expect(messages.at(-1)?.update.pods).toHaveLength(1);
    expect(messages[0]?.update.profiles).toEqual([]);
  });

  test('ends the stream of a node that has not read for thousands of changes', async () => {
    const stream = follow('n1');
    while (!(await next(stream)).isComplete);
    for (let index = 0; index < 5000; index++)
      policies.profiles.pods.removePod({ namespace: 'default', name: `p${index}` });
    const message = nextAfterBatch(stream);
    await expect(message).rejects.toMatchObject({ code: 'UNREACHABLE' });
    expect(policies.nodes.following).toBe(0);
  });
});

describe('many large policies of one namespace', () => {
  test('isolate its pods if they are more than a node can enforce', async () => {
    for (let number = 0; number < 30; number++) {
      const from = Array.from({ length: 4096 }, (_, peer) => ({
        ipBlock: { cidr: `2001:db8:${number}:${peer.toString(16)}::/65` },
      }));
      compiled.setPolicy({
        metadata: { name: `p${number}`, namespace: 'default' },
        spec: { podSelector: {}, ingress: [{ from }] },
      });
    }
    compiled.setNamespace({ metadata: { name: 'other', labels: {} } });
    compiled.setPod({ ...pod('free', 'n1', '10.0.0.2'), metadata: { name: 'free', namespace: 'other' } });
    const message = await next(follow('n1'));
    expect(encodeMessage(message).length).toBeLessThan(GRPC_BYTES_MAX);
    expect(message.isComplete).toBe(true);
    expect(message.update.pods).toHaveLength(2);
    expect(message.update.profiles).toMatchObject([
      { rules: [], isolatedBy: [expect.stringMatching('NetworkPolicy default/p0 and further policies')] },
    ]);
  });

  test('are sent and removed in parts', () => {
    const ids = Array.from({ length: 120_000 }, (_, number) => `a-${`${number}`.padStart(32, '0')}`);
    const sets = ids.map((id) => ({ id, isWhole: true, added: [], removed: [] }));
    const update = { sets, profiles: [], pods: [], removedPods: [], removedIds: ids, unknownPods: undefined };
    const parts = splitUpdate(update);
    expect(parts.flatMap((part) => part.sets)).toHaveLength(ids.length);
    expect(parts.flatMap(({ removedIds }) => removedIds)).toEqual(ids);
    for (const part of parts)
      expect(encodeMessage({ streamId: '', number: 1, isComplete: false, update: part }).length).toBeLessThan(
        GRPC_BYTES_MAX,
      );
  });
});

test('a small set that has changed too often is sent whole', async () => {
  const stream = follow('n1');
  await next(stream);
  for (let round = 0; round < 5000; round++) {
    compiled.setPod(numbered(1));
    policies.profiles.pods.removePod({ namespace: 'default', name: 'p1' });
  }
  const { update } = await nextAfterBatch(stream);
  expect(update.sets).toMatchObject([{ isWhole: true, added: [{}] }]);
});

describe('the progress of a node', () => {
  test('counts messages and acknowledgements; after 10 s without any the node is behind', async () => {
    const stream = follow('n1');
    const { streamId } = await next(stream);
    clock.advance(10_000);
    expect(policies.nodes).toEqual({ following: 1, behind: 0 });
    clock.advance(1);
    expect(policies.nodes).toEqual({ following: 1, behind: 1 });
    expect(policies.progressOf('n1')).toEqual({
      ...{ isFollowing: true, forMs: 10_001, behindForMs: 10_001, isBehind: true },
      ...{ sentNumber: 1, acknowledgedNumber: 0 },
    });
    policies.acknowledge({ nodeName: 'n1', streamId, number: 1 });
    policies.acknowledge({ nodeName: 'n1', streamId, number: 0 });
    expect(policies.progressOf('n1')).toMatchObject({ acknowledgedNumber: 1, behindForMs: undefined });
    expect(() => policies.acknowledge({ nodeName: 'n1', streamId: 'other', number: 1 })).toThrow(/another stream/);
  });

  test('begins to wait with the first message after an acknowledgement of all', async () => {
    const stream = follow('n1');
    const { streamId } = await next(stream);
    policies.acknowledge({ nodeName: 'n1', streamId, number: 1 });
    clock.advance(60_000);
    for (const index of [1, 2]) {
      compiled.setPod(numbered(index));
      await nextAfterBatch(stream);
      clock.advance(3000);
    }
    expect(policies.progressOf('n1')).toMatchObject({ sentNumber: 3, behindForMs: 6005 });
    policies.acknowledge({ nodeName: 'n1', streamId, number: 2 });
    clock.advance(100);
    policies.acknowledge({ nodeName: 'n1', streamId, number: 2 });
    expect(policies.progressOf('n1')).toMatchObject({ acknowledgedNumber: 2, behindForMs: 100 });
  });

  test('remembers the end of the last stream', async () => {
    expect(policies.progressOf('n1')).toMatchObject({ isFollowing: false, forMs: undefined });
    const first = follow('n1');
    await next(first);
    const second = follow('n1');
    await next(second);
    await expect(first.next()).rejects.toMatchObject({ code: 'SESSION_SUPERSEDED' });
    expect(policies.progressOf('n1')).toMatchObject({ isFollowing: true, sentNumber: 1 });
    await second.return(undefined);
    clock.advance(500);
    expect(policies.progressOf('n1')).toMatchObject({ isFollowing: false, forMs: 500, sentNumber: 0 });
  });
});

describe('an announcement', () => {
  const announced = (): Promise<number> =>
    policies.announce(
      { nodeName: 'n2', pod: { namespace: 'default', name: 'p1', uid: 'p1' }, addresses: [] },
      stop.signal,
    );
  const isPending = (promise: Promise<unknown>): Promise<boolean> =>
    Promise.race([promise.then(() => false), new Promise<boolean>((resolve) => setImmediate(resolve, true))]);

  test('waits for the nodes that need the pod, until they have acknowledged its addresses', async () => {
    const [stream, other] = [follow('n1'), follow('n9')];
    const { streamId } = await next(stream);
    await next(other);
    policies.acknowledge({ nodeName: 'n1', streamId, number: 1 });
    expect(await announced()).toBe(0);
    compiled.setPod(numbered(1));
    const known = announced();
    await nextAfterBatch(stream);
    expect(await isPending(known)).toBe(true);
    // A later change needs no acknowledgement.
    compiled.setPod(numbered(2));
    await nextAfterBatch(stream);
    policies.acknowledge({ nodeName: 'n1', streamId, number: 2 });
    expect(await known).toBe(1);
  });

  test('does not wait for a node that has been behind for seconds, or has gone', async () => {
    const stream = follow('n1');
    await next(stream);
    compiled.setPod(numbered(1));
    const known = announced();
    expect(await isPending(known)).toBe(true);
    await follow('n1').next();
    expect(await known).toBe(1);
    compiled.setPod(numbered(2));
    clock.advance(2000);
    expect(await announced()).toBe(0);
    const third = follow('n1');
    await next(third);
    const silent = announced();
    clock.advance(1999);
    expect(await isPending(silent)).toBe(true);
    clock.advance(2000);
    expect(await silent).toBe(1);
  });

  test('waits for a node that had nothing to do for a minute', async () => {
    const stream = follow('n1');
    const { streamId } = await next(stream);
    policies.acknowledge({ nodeName: 'n1', streamId, number: 1 });
    clock.advance(60_000);
    compiled.setPod(numbered(1));
    const known = announced();
    expect(await isPending(known)).toBe(true);
    await nextAfterBatch(stream);
    policies.acknowledge({ nodeName: 'n1', streamId, number: 2 });
    expect(await known).toBe(1);
  });

  test('ends with its call', async () => {
    const stream = follow('n1');
    await next(stream);
    compiled.setPod(numbered(1));
    const known = announced();
    stop.abort();
    expect(await known).toBe(1);
  });
});

test('an address that two pods report is a member until the last of them is gone', () => {
  compiled.setPod(pod('a', 'n2', '10.0.0.9'));
  compiled.setPod(pod('b', 'n2', '10.0.0.9'));
  const members = (): number =>
    [...(policies.profiles.podOf('n1', 'default/web')?.ingress?.sets[0]?.members ?? [])].length;
  expect(members()).toBe(2);
  policies.profiles.pods.removePod({ namespace: 'default', name: 'a' });
  expect(members()).toBe(2);
  policies.profiles.pods.removePod({ namespace: 'default', name: 'b' });
  expect(members()).toBe(1);
});
