import { FollowPoliciesRequest } from '@podwire/proto/podwire/ipam/v1/network_policy';
import { MAX_REQUEST_BYTES } from '@podwire/shared/rpc/connection';
import { describe, expect, test } from 'vitest';

import {
  accept,
  denied,
  member,
  message,
  network,
  podMessage,
  profile,
  wholeSet,
} from '../testing/network-policy/policies.js';
import { difference, MemberSet } from './members.js';
import { readUpdate } from './messages.js';
import { PolicyView } from './policy-view.js';

const pod = (name: string, namespace = 'default', uid = `uid-${name}`) => ({ namespace, name, uid });

const PROFILE = profile({
  id: 'web',
  direction: 'ingress',
  admin: [accept({ policy: 'ClusterNetworkPolicy first', action: 'pass', ports: { ranges: [], sets: ['p-http'] } })],
  isolatedBy: ['NetworkPolicy default/web'],
  rules: [
    accept({
      peers: { sets: ['a-clients'], networks: [network('10.0.0.0/8'), network('fd00::/8')] },
      ports: { ranges: [{ protocol: 6, first: 80, last: 90 }], sets: [] },
    }),
  ],
  baseline: [accept({ policy: 'ClusterNetworkPolicy last', action: 'deny' })],
});

const SETS = [wholeSet('a-clients', ['10.65.0.1', 'fd00:65::1']), wholeSet('p-http', ['10.65.0.2 6 80'])];

const SNAPSHOT = message({
  isComplete: true,
  profiles: [PROFILE],
  sets: SETS,
  pods: [podMessage('web', { ingress: 'web' }), podMessage('free', {})],
  namespaces: ['default'],
});

function viewOf(...messages: readonly (typeof SNAPSHOT)[]): PolicyView {
  const view = new PolicyView();
  view.beginStream();
  for (const each of messages) view.apply(each);
  return view;
}

const keys = (view: PolicyView, id: string) => [...(view.sets.get(id)?.keys ?? [])];

const ISOLATED = { ingress: 'isolated', egress: 'isolated' };
const OPEN = { ingress: undefined, egress: undefined };

describe('the view of policies', () => {
  test('has the profiles, the sets and the pods of a snapshot', () => {
    const view = viewOf(SNAPSHOT);
    expect(view.profiles.get('web')).toEqual(PROFILE);
    expect(keys(view, 'a-clients')).toEqual(['10.65.0.1', 'fd00:65::1']);
    expect(keys(view, 'p-http')).toEqual(['10.65.0.2 6 80']);
    expect(view.filtering(pod('web'))).toEqual({ ingress: { profile: 'web' }, egress: undefined });
    expect(view.filtering(pod('free'))).toEqual(OPEN);
  });

  test('isolates every pod before the first snapshot, and unknown pods that a policy may concern afterwards', () => {
    expect(new PolicyView().filtering(pod('any', 'open'))).toEqual(ISOLATED);
    const view = viewOf(SNAPSHOT);
    expect(view.filtering(pod('new'))).toEqual(ISOLATED);
    expect(view.filtering(pod('new', 'open'))).toEqual(OPEN);
    // A container without a pod's name.
    expect(view.filtering(undefined)).toEqual(ISOLATED);
    view.apply({ ...message({}), unknownPods: { all: true, namespaces: [] } });
    expect(view.filtering(pod('new', 'open'))).toEqual(ISOLATED);
    view.apply({ ...message({}), unknownPods: { all: false, namespaces: [] } });
    expect(view.filtering(pod('new'))).toEqual(OPEN);
    expect(view.filtering(undefined)).toEqual(OPEN);
  });

  test('knows a pod by its UID where both sides have one', () => {
    const view = viewOf(SNAPSHOT);
    expect(view.filtering(pod('web', 'default', 'another'))).toEqual(ISOLATED);
    expect(view.filtering(pod('web', 'default', ''))).toMatchObject({ ingress: { profile: 'web' } });
    const next = podMessage('free', {});
    view.apply(message({ pods: [{ ...next, pod: pod('web', 'default', 'another') }] }));
    expect(view.filtering(pod('web', 'default', 'another'))).toEqual(OPEN);
    expect(view.filtering(pod('web'))).toMatchObject({ ingress: { profile: 'web' } });
    view.apply(message({ removedPods: ['web'] }));
    expect(view.filtering(pod('web'))).toEqual(ISOLATED);
    expect(view.filtering(pod('web', 'default', 'another'))).toEqual(OPEN);
  });

  test('keeps its content until a snapshot is complete, and drops what that lacks', () => {
    const view = viewOf(SNAPSHOT);
    view.beginStream();
    expect(view.apply(message({ profiles: [denied('other', 'egress')] }))).toBeUndefined();
    expect(view.apply(message({ sets: [wholeSet('a-new', ['10.0.0.1'])] }))).toBeUndefined();
    expect([...view.profiles.keys()]).toEqual(['web']);
    // A stream that breaks leaves nothing behind.
    view.beginStream();
    const change = view.apply(
      message({ isComplete: true, profiles: [denied('last', 'egress')], removedIds: ['p-http'] }),
    );
    expect([...view.profiles.keys()]).toEqual(['last']);
    // A set that is not repeated is one whose digest podwire-ipam knows.
    expect([...view.sets.keys()]).toEqual(['a-clients']);
    expect(change?.sets).toEqual(new Map([['p-http', { added: [], deleted: ['10.65.0.2 6 80'] }]]));
    expect(view.filtering(pod('web'))).toEqual(ISOLATED);
  });

  test('offers as many sets as a request may name, and receives the rest again', () => {
    const sets = Array.from({ length: 25_000 }, (_, index) => wholeSet(`a-${`${index}`.padStart(32, '0')}`, []));
    const view = viewOf(message({ isComplete: true, sets }));
    const request = { nodeName: 'n'.repeat(253), sets: view.beginStream() };
    expect(FollowPoliciesRequest.encode(FollowPoliciesRequest.fromPartial(request)).finish().length).toBeLessThan(
      MAX_REQUEST_BYTES,
    );
    view.apply(message({ isComplete: true, sets: sets.slice(-1) }));
    expect(view.sets.size).toBe(request.sets.length + 1);
  });

  test('reports the elements that a change adds and deletes', () => {
    const view = viewOf(SNAPSHOT);
    const delta = (added: readonly string[], removed: readonly string[], isWhole = false) => {
      const members = (list: readonly string[]) => list.map((text) => member(text));
      const set = { id: 'a-clients', isWhole, added: members(added), removed: members(removed) };
      return view.apply(message({ sets: [set] }))?.sets.get('a-clients');
    };
    expect(delta(['10.65.0.9', '10.65.0.1'], ['fd00:65::1'])).toEqual({
      added: ['10.65.0.9'],
      deleted: ['fd00:65::1'],
    });
    expect(delta(['10.65.0.7'], ['10.65.0.7', '10.65.0.8'])).toEqual({ added: [], deleted: [] });
    expect(delta(['10.65.0.1', '10.65.0.2'], [], true)).toEqual({ added: ['10.65.0.2'], deleted: ['10.65.0.9'] });
  });

  test('a message that is invalid in one part changes nothing', () => {
    const view = viewOf(SNAPSHOT);
    const unknown = { id: 'a-unknown', isWhole: false, added: [], removed: [] };
    const known = { id: 'a-clients', isWhole: false, added: [member('10.65.0.9')], removed: [] };
    const changes = message({ sets: [known, unknown], removedPods: ['web'] });
    expect(() => view.apply(changes)).toThrow('a change of set a-unknown, which this node does not have');
    expect(keys(view, 'a-clients')).toEqual(['10.65.0.1', 'fd00:65::1']);
    expect(view.filtering(pod('web'))).toMatchObject({ ingress: { profile: 'web' } });
  });

  test('is stored and restored whole', () => {
    const view = viewOf(SNAPSHOT);
    const restored = new PolicyView();
    restored.restore(view.encodePolicies(), view.encodeSets());
    expect(restored.profiles).toEqual(view.profiles);
    expect(restored.beginStream()).toEqual(view.beginStream());
    expect(restored.filtering(pod('web'))).toEqual(view.filtering(pod('web')));
    expect(restored.filtering(pod('new'))).toEqual(ISOLATED);
    expect([view.isCurrent, restored.isCurrent]).toEqual([true, false]);
    const never = new PolicyView();
    never.restore(new PolicyView().encodePolicies(), undefined);
    expect(never.filtering(pod('any', 'open'))).toEqual(ISOLATED);
  });
});

describe('a set', () => {
  test('keeps an address until its last holder goes, in any order', () => {
    const set = new MemberSet();
    const [older, newer] = [1n, 2n].map((sequenceNumber) => ({ ...address(), sequenceNumber }));
    expect([set.add(older!), set.add(newer!), set.add(newer!)]).toEqual([true, false, false]);
    expect([set.remove(older!), set.remove(older!)]).toEqual([false, false]);
    expect([...set.keys]).toEqual(['10.65.0.1']);
    expect(set.remove(newer!)).toBe(true);
    expect([...set.keys, set.digest]).toEqual([0n]);
  });

  test('differs from another in the elements that only one has', () => {
    const [one, other] = [new MemberSet(), new MemberSet()];
    one.add({ ...address(), sequenceNumber: 1n });
    other.add({ ...address(), sequenceNumber: 2n });
    expect(difference(one, other)).toEqual({ added: [], deleted: [] });
    expect(difference(undefined, other)).toEqual({ added: ['10.65.0.1'], deleted: [] });
    expect(difference(one, undefined)).toEqual({ added: [], deleted: ['10.65.0.1'] });
  });
});

const address = () => ({ address: { family: 4, value: 0x0a_41_00_01n } }) as const;

test.each<[string, Parameters<typeof readUpdate>[0], string]>([
  [
    'an address of 5 bytes',
    message({ sets: [{ ...SETS[0]!, added: [{ ...member('10.0.0.1'), address: Buffer.alloc(5) }] }] }),
    'an address has 5 bytes',
  ],
  ['a set without a kind', message({ sets: [wholeSet('clients', [])] }), '"clients" is no ID of such a set'],
  ['a name that nft would read as more', message({ sets: [wholeSet('a-x; flush', [])] }), 'is no ID of such a set'],
  ['a port of ICMP', message({ sets: [wholeSet('p-x', ['10.0.0.1 1 8'])] }), 'protocol 1 has no ports'],
  ['a port that is too large', message({ sets: [wholeSet('p-x', ['10.0.0.1 6 65536'])] }), 'port 65536 is above 65535'],
  ['a pod without a name', message({ pods: [{ ...podMessage('', {}) }] }), 'a pod has no name'],
  ['a profile with a space', message({ profiles: [denied('a b', 'egress')] }), '"a b" is no ID of a profile'],
  [
    'a NetworkPolicy that denies',
    message({ profiles: [profile({ id: 'x', direction: 'egress', rules: [accept({ action: 'deny' })] })] }),
    'a NetworkPolicy of profile x denies',
  ],
  [
    'ports in reverse',
    message({ profiles: [ruled({ ports: { ranges: [{ protocol: 6, first: 9, last: 1 }], sets: [] } })] }),
    'ports 9 to 1 are reversed',
  ],
  [
    'a set of ports as a peer',
    message({ profiles: [ruled({ peers: { sets: ['p-x'], networks: [] } })] }),
    '"p-x" is no ID of such a set',
  ],
  [
    'a range of both families',
    message({
      profiles: [
        ruled({ peers: { sets: [], networks: [{ first: network('10.0.0.0/8').first, last: network('::/0').last }] } }),
      ],
    }),
    'a range of addresses is reversed',
  ],
])('refuses %s', (_, bad, text) => {
  expect(() => readUpdate(bad)).toThrow(text);
});

function ruled(rule: Parameters<typeof accept>[0]) {
  return profile({ id: 'x', direction: 'ingress', rules: [accept(rule)] });
}
