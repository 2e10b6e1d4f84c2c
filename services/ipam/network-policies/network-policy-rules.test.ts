import { describe, expect, test } from 'vitest';

import type {
  Attempt,
  Cluster,
  Labels,
  RawNetworkPolicy,
  RawPeer,
  RawPod,
  RawPort,
  RawRule,
  RawSelector,
} from './testing/cluster.js';
import { allows, CompiledCluster } from './testing/compiled.js';
import { Oracle } from './testing/oracle.js';

/** The rules of NetworkPolicy v1 by which an implementation is judged, one test each. */

const ADDRESSES = { web: '10.0.0.1', db: '10.0.0.2', other: '10.0.1.1', six: 'fd00::1', outside: '192.0.2.1' } as const;
type End = keyof typeof ADDRESSES;

function pod(name: End, namespace: string, rest: Partial<RawPod['spec']> = {}): RawPod {
  const ips = name === 'web' ? [ADDRESSES.web, ADDRESSES.six] : [ADDRESSES[name]];
  return {
    metadata: { name, namespace, uid: name, labels: { app: name } },
    spec: { nodeName: 'n1', ...rest },
    status: { phase: 'Running', podIPs: ips.map((ip) => ({ ip })) },
  };
}

const namespace = (name: string, labels: Labels = {}) => ({
  metadata: { name, labels: { 'kubernetes.io/metadata.name': name, ...labels } },
});

const CLUSTER: Cluster = {
  namespaces: [namespace('default', { team: 'a' }), namespace('away', { team: 'b' })],
  pods: [
    pod('web', 'default', {
      containers: [{ ports: [{ name: 'http', containerPort: 80 }] }],
      initContainers: [{ ports: [{ name: 'setup', containerPort: 90, protocol: 'UDP' }] }],
    }),
    pod('db', 'default', { containers: [{ ports: [{ name: 'http', containerPort: 81 }] }] }),
    pod('other', 'away'),
  ],
  networkPolicies: [],
  clusterPolicies: [],
};

let created = 0;

function policy(spec: RawNetworkPolicy['spec'], inNamespace = 'default'): RawNetworkPolicy {
  return { metadata: { name: `policy-${++created}`, namespace: inNamespace }, spec };
}

const selecting = (app: string): RawSelector => ({ matchLabels: { app } });

/** Isolates `web`, which then accepts what the rules allow. */
const webAccepts = (...ingress: readonly RawRule[]) => policy({ podSelector: selecting('web'), ingress });

const webAcceptsFrom = (...from: readonly RawPeer[]) => webAccepts({ from });

const webAcceptsPorts = (...ports: readonly RawPort[]) => webAccepts({ ports });

function connect(source: End, destination: End, port = 80, protocol: Attempt['protocol'] = 'TCP'): Attempt {
  return { source: ADDRESSES[source], destination: ADDRESSES[destination], protocol, port };
}

/** Judges connections by profiles and by the oracle, which have to agree. */
function judged(policies: readonly RawNetworkPolicy[], attempts: readonly Attempt[], rest: Partial<Cluster> = {}) {
  const cluster = { ...CLUSTER, networkPolicies: policies, ...rest };
  const compiled = new CompiledCluster(cluster);
  const verdicts = attempts.map((attempt) => allows(compiled, attempt));
  const oracle = new Oracle(cluster);
  expect(verdicts).toEqual(attempts.map((attempt) => oracle.allows(attempt)));
  return verdicts;
}

test('rule 1: rules only allow, policies add up, and their order has no meaning', () => {
  const policies = [
    webAcceptsFrom({ podSelector: selecting('db') }),
    webAcceptsFrom({ namespaceSelector: {} }),
    webAccepts(),
  ];
  const attempts = [connect('db', 'web'), connect('other', 'web'), connect('outside', 'web')];
  expect(judged(policies, attempts)).toEqual([true, true, false]);
  expect(judged(policies.toReversed(), attempts)).toEqual([true, true, false]);
});

test('rule 2: a pod is isolated for each direction, and both ends have to allow', () => {
  const egress = policy({
    podSelector: selecting('db'),
    policyTypes: ['Egress'],
    egress: [{ to: [{ podSelector: {} }] }],
  });
  const attempts = [connect('db', 'web'), connect('db', 'other'), connect('other', 'db'), connect('web', 'db')];
  expect(judged([egress], attempts)).toEqual([true, false, true, true]);
  expect(judged([egress, webAccepts()], attempts)).toEqual([false, false, true, true]);
});

test('rule 3: without policyTypes a policy isolates for ingress, and for egress if it has egress rules', () => {
  const attempts = [connect('other', 'web'), connect('web', 'other')];
  expect(judged([policy({ podSelector: selecting('web') })], attempts)).toEqual([false, true]);
  expect(judged([policy({ podSelector: selecting('web'), policyTypes: [] })], attempts)).toEqual([false, true]);
  const to = [{ podSelector: {} }];
  expect(judged([policy({ podSelector: selecting('web'), egress: [{ to }] })], attempts)).toEqual([false, false]);
  expect(judged([policy({ podSelector: selecting('web'), egress: [] })], attempts)).toEqual([false, true]);
  expect(judged([policy({ podSelector: selecting('web'), policyTypes: ['Egress'] })], attempts)).toEqual([true, false]);
});

test('rule 4: no rules deny everything, and an empty rule allows everything', () => {
  const attempts = [connect('outside', 'web'), connect('db', 'web', 9, 'UDP')];
  expect(judged([webAccepts()], attempts)).toEqual([false, false]);
  expect(judged([policy({ podSelector: selecting('web') })], attempts)).toEqual([false, false]);
  expect(judged([webAccepts({})], attempts)).toEqual([true, true]);
});

test('rule 5: without peers a rule allows everybody, without ports every port and protocol', () => {
  const attempts = [connect('outside', 'web'), connect('outside', 'web', 81), connect('db', 'web', 0, 'ICMP')];
  expect(judged([webAccepts({ from: [], ports: [{ port: 80 }] })], attempts)).toEqual([true, false, false]);
  expect(judged([webAccepts({ from: [{ podSelector: {} }], ports: [] })], attempts)).toEqual([false, false, true]);
});

test('rule 6: selectors of one peer are joined by AND, peers by OR, and an empty selector is no missing one', () => {
  const attempts = [connect('db', 'web'), connect('other', 'web'), connect('outside', 'web')];
  const inAway: RawSelector = { matchLabels: { team: 'b' } };
  expect(judged([webAcceptsFrom({ podSelector: {} })], attempts)).toEqual([true, false, false]);
  expect(judged([webAcceptsFrom({ namespaceSelector: inAway })], attempts)).toEqual([false, true, false]);
  const both = { namespaceSelector: inAway, podSelector: selecting('db') };
  expect(judged([webAcceptsFrom(both)], attempts)).toEqual([false, false, false]);
  const either = [{ namespaceSelector: inAway }, { podSelector: selecting('db') }];
  expect(judged([webAcceptsFrom(...either)], attempts)).toEqual([true, true, false]);
  expect(judged([webAcceptsFrom({ namespaceSelector: {}, podSelector: {} })], attempts)).toEqual([true, true, false]);
});

test('rule 7: except cuts holes of its own peer only', () => {
  const attempts = [connect('db', 'web'), connect('other', 'web'), connect('outside', 'web')];
  const block = { ipBlock: { cidr: '10.0.0.0/16', except: ['10.0.0.0/24'] } };
  expect(judged([webAcceptsFrom(block)], attempts)).toEqual([false, true, false]);
  expect(judged([webAcceptsFrom(block, { ipBlock: { cidr: '10.0.0.2/32' } })], attempts)).toEqual([true, true, false]);
  expect(judged([webAcceptsFrom(block), webAcceptsFrom({ podSelector: {} })], attempts)).toEqual([true, true, false]);
  const nothing = { ipBlock: { cidr: '10.0.0.0/24', except: ['10.0.0.0/16'] } };
  expect(judged([webAcceptsFrom(nothing)], attempts)).toEqual([false, false, false]);
  const six = { source: 'fd00::2', destination: ADDRESSES.six, protocol: 'TCP', port: 80 } as const;
  expect(judged([webAcceptsFrom({ ipBlock: { cidr: '0.0.0.0/0' } })], [six])).toEqual([false]);
});

test('rule 8: a port has protocol TCP by default, no number for all, a name, or a range up to endPort', () => {
  const attempts = [
    connect('db', 'web', 80),
    connect('db', 'web', 85),
    connect('db', 'web', 80, 'UDP'),
    connect('db', 'web', 90, 'UDP'),
  ];
  expect(judged([webAcceptsPorts({})], attempts)).toEqual([true, true, false, false]);
  expect(judged([webAcceptsPorts({ protocol: 'UDP' })], attempts)).toEqual([false, false, true, true]);
  expect(judged([webAcceptsPorts({ port: 80 })], attempts)).toEqual([true, false, false, false]);
  expect(judged([webAcceptsPorts({ port: 80, endPort: 85 })], attempts)).toEqual([true, true, false, false]);
  expect(judged([webAcceptsPorts({ port: 'http' })], attempts)).toEqual([true, false, false, false]);
  expect(judged([webAcceptsPorts({ port: 'setup', protocol: 'UDP' })], attempts)).toEqual([false, false, false, true]);
  expect(judged([webAcceptsPorts({ port: 'setup' }, { port: 'none' })], attempts)).toEqual([
    false,
    false,
    false,
    false,
  ]);
  // The destination names the port, and `http` is another number of each pod.
  const egress = policy(
    { podSelector: selecting('other'), policyTypes: ['Egress'], egress: [{ ports: [{ port: 'http' }] }] },
    'away',
  );
  const named = [
    connect('other', 'web', 80),
    connect('other', 'web', 81),
    connect('other', 'db', 81),
    connect('other', 'outside', 80),
  ];
  expect(judged([egress], named)).toEqual([true, false, true, false]);
});

test('rule 9: replies need no rule, as only the first packet of a connection is judged', () => {
  // `web` accepts nothing, and gets the replies of the connections that it opens.
  expect(judged([webAccepts()], [connect('web', 'db'), connect('db', 'web')])).toEqual([true, false]);
});

test('rule 10: another node’s traffic needs a rule; traffic of the own node does not reach the filter of pods', () => {
  const node = { source: '192.0.2.20', destination: ADDRESSES.web, protocol: 'TCP', port: 80 } as const;
  expect(judged([webAcceptsFrom({ namespaceSelector: {} })], [node])).toEqual([false]);
  expect(judged([webAcceptsFrom({ ipBlock: { cidr: '192.0.2.20/32' } })], [node])).toEqual([true]);
});

test('rule 11: a pod is a peer of its own, so that hairpin traffic passes the rules that name the pod', () => {
  expect(judged([webAcceptsFrom({ podSelector: selecting('web') })], [connect('web', 'web')])).toEqual([true]);
});

test('rule 12: pods on the host’s network are neither subjects nor peers', () => {
  const pods = CLUSTER.pods.map((each) =>
    each.metadata.name === 'db' ? { ...each, spec: { ...each.spec, hostNetwork: true } } : each,
  );
  const policies = [policy({}), webAcceptsFrom({ podSelector: {} })];
  expect(judged(policies, [connect('db', 'web'), connect('other', 'db')], { pods })).toEqual([false, true]);
});

test('rule 13: labels of pods and namespaces act at once, and each namespace has its name as a label', () => {
  const byName = { matchExpressions: [{ key: 'kubernetes.io/metadata.name', operator: 'In', values: ['away'] }] };
  expect(judged([webAcceptsFrom({ namespaceSelector: byName })], [connect('other', 'web')])).toEqual([true]);
  const compiled = new CompiledCluster({
    ...CLUSTER,
    networkPolicies: [webAcceptsFrom({ namespaceSelector: { matchLabels: { team: 'a' } } })],
  });
  expect(allows(compiled, connect('other', 'web'))).toBe(false);
  compiled.setNamespace(namespace('away', { team: 'a' }));
  expect(allows(compiled, connect('other', 'web'))).toBe(true);
  const db = CLUSTER.pods[1]!;
  compiled.setPolicy(policy({ podSelector: selecting('quiet'), ingress: [] }));
  expect(allows(compiled, connect('other', 'db'))).toBe(true);
  compiled.setPod({ ...db, metadata: { ...db.metadata, labels: { app: 'quiet' } } });
  expect(allows(compiled, connect('other', 'db'))).toBe(false);
});

test.each(['Succeeded', 'Failed'])('rule 14: a pod that has %s holds no address', (phase) => {
  const pods = CLUSTER.pods.map((each) =>
    each.metadata.name === 'db' ? { ...each, status: { ...each.status, phase } } : each,
  );
  expect(judged([webAcceptsFrom({ podSelector: {} })], [connect('db', 'web')], { pods })).toEqual([false]);
});

describe('rule 15: a new pod is isolated before its containers start', () => {
  test('its profiles are known once it is scheduled, without an address', () => {
    const compiled = new CompiledCluster({ ...CLUSTER, networkPolicies: [policy({})] });
    compiled.setPod({
      metadata: { name: 'new', namespace: 'default', uid: 'u', labels: {} },
      spec: { nodeName: 'n1' },
    });
    expect(compiled.profiles.podOf('n1', 'default/new')).toMatchObject({
      uid: 'u',
      ingress: { profile: { isolatedBy: [expect.any(String)] } },
    });
  });

  test('pods that are not known yet are isolated where policies exist', () => {
    expect(new CompiledCluster(CLUSTER).profiles.unknownPods).toEqual({ all: false, namespaces: [] });
    const compiled = new CompiledCluster({ ...CLUSTER, networkPolicies: [policy({}), policy({}, 'away'), policy({})] });
    expect(compiled.profiles.unknownPods).toEqual({ all: false, namespaces: ['away', 'default'] });
    const subject = { namespaces: {} };
    compiled.setClusterPolicy({ metadata: { name: 'a' }, spec: { tier: 'Admin', priority: 1, subject } });
    expect(compiled.profiles.unknownPods.all).toBe(true);
  });
});

test('rule 16: a change of rules is a new profile, by which nodes judge established connections again', () => {
  const compiled = new CompiledCluster(CLUSTER);
  const idOf = (): string | undefined => compiled.profiles.podOf('n1', 'default/web')?.ingress?.profile.id;
  const { metadata } = policy({});
  const ids = [undefined, 80, 81, 80].map((port) => {
    if (port !== undefined) compiled.setPolicy({ metadata, spec: { ingress: [{ ports: [{ port }] }] } });
    return idOf();
  });
  expect(new Set(ids).size).toBe(3);
  expect(ids[1]).toBe(ids[3]);
});

test('rule 17: addresses are judged as pods have them: an ipBlock with the address of a pod allows the pod', () => {
  expect(judged([webAcceptsFrom({ ipBlock: { cidr: '10.0.0.2/32' } })], [connect('db', 'web')])).toEqual([true]);
});

test('rule 18: SCTP is never read as TCP, and protocols without ports need a rule without ports', () => {
  const attempts = [connect('db', 'web', 80, 'SCTP'), connect('db', 'web', 80, 'TCP'), connect('db', 'web', 0, 'ICMP')];
  expect(judged([webAcceptsPorts({ protocol: 'SCTP', port: 80 })], attempts)).toEqual([true, false, false]);
  expect(judged([webAcceptsPorts({ port: 80 })], attempts)).toEqual([false, true, false]);
  expect(judged([webAcceptsFrom({ podSelector: {} })], attempts)).toEqual([true, true, true]);
});

test('rule 19: ICMPv6 is denied like every protocol; only nodes know neighbour discovery, by its types', () => {
  const echo = { source: 'fd00::2', destination: ADDRESSES.six, protocol: 'ICMP', port: 0 } as const;
  expect(judged([webAcceptsPorts({})], [echo])).toEqual([false]);
});
