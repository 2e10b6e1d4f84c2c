import { formatAddress, type Address } from '@podwire/shared/net/address';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { beforeEach, describe, expect, test } from 'vitest';

import { explain, type ExplainedJudgement, type Explanation, type PolicyEnd } from './explanation.js';
import { NetworkPolicies } from './network-policies-operations.js';
import { policyStatus, listPolicies } from './status.js';
import type { RawClusterPolicy, RawNetworkPolicy, RawPod, RawRule } from './testing/cluster.js';
import { address, CompiledCluster } from './testing/compiled.js';

let policies: NetworkPolicies;
let compiled: CompiledCluster;
let clock: ManualClock;

beforeEach(() => {
  clock = new ManualClock();
  policies = new NetworkPolicies({ clock, refusal: () => undefined });
  compiled = new CompiledCluster(undefined, policies.profiles);
  compiled.setNamespace({ metadata: { name: 'default', labels: { team: 'a' } } });
  compiled.setPod(pod('web', 'n1', ['10.0.0.1', 'fd00::1'], 'http'));
  compiled.setPod(pod('bot', 'n2', ['10.0.0.2', 'fd00::2']));
});

function pod(name: string, nodeName: string, ips: readonly string[], port?: string): RawPod {
  const containers = [{ ports: port === undefined ? [] : [{ name: port, containerPort: 8080 }] }];
  return {
    metadata: { name, namespace: 'default', uid: name, labels: { app: name } },
    spec: { nodeName, containers },
    status: { podIPs: ips.map((ip) => ({ ip })) },
  };
}

const podEnd = (name: string): PolicyEnd => ({ pod: { namespace: 'default', name } });
const addressEnd = (text: string): PolicyEnd => ({ address: address(text) });

/** Nodes by their addresses; a bridge has the same on each node. */
const NODES_WITH: Readonly<Record<string, readonly string[]>> = {
  '192.0.2.101': ['n1'],
  'fd99::1': ['n1'],
  '172.17.0.1': ['n2', 'n1'],
};

function ask(source: PolicyEnd, destination: PolicyEnd, port: number | string = 8080, protocol = 6): Explanation {
  const nodesWith = ({ family, value }: Address) => NODES_WITH[formatAddress({ family, value })] ?? [];
  return explain({ source, destination, protocol, port }, policies, nodesWith);
}

/** The judgements of the first connection. */
function judgements({ connections }: Explanation): readonly ExplainedJudgement[] {
  return connections[0]?.judgements ?? [];
}

const onWeb = (rest: Omit<RawNetworkPolicy['spec'], 'podSelector'>): RawNetworkPolicy => ({
  metadata: { name: 'web', namespace: 'default' },
  spec: { podSelector: { matchLabels: { app: 'web' } }, ...rest },
});

const onAll = (tier: string, action: string, direction: 'ingress' | 'egress' = 'ingress'): RawClusterPolicy => {
  const everyone = { namespaces: {} };
  const rule = direction === 'ingress' ? { action, from: [everyone] } : { action, to: [everyone] };
  return {
    metadata: { name: `${tier}-${action}`.toLowerCase() },
    spec: { tier, priority: 5, subject: everyone, [direction]: [rule] },
  };
};

describe('a connection', () => {
  test('is allowed, without a judgement, if no policy restricts its ends', () => {
    const answer = ask(podEnd('bot'), podEnd('web'));
    expect(answer).toMatchObject({ isAllowed: true, source: { pod: { name: 'bot' }, node: { name: 'n2' } } });
    expect(judgements(answer)).toEqual([]);
  });

  test('is denied by the policies that isolate the destination', () => {
    compiled.setPolicy(onWeb({ ingress: [] }));
    const answer = ask(podEnd('bot'), podEnd('web'));
    expect(answer.isAllowed).toBe(false);
    const isolatedBy = ['NetworkPolicy default/web'];
    expect(judgements(answer)).toMatchObject([{ direction: 'ingress', isAllowed: false, rule: undefined, isolatedBy }]);
  });

  test('is allowed by a rule, which is counted in its own policy', () => {
    const other = { name: 'other', namespace: 'default' };
    compiled.setPolicy({ ...onWeb({ ingress: [{ ports: [{ port: 1 }] }] }), metadata: other });
    compiled.setPolicy(onWeb({ ingress: [{ ports: [{ port: 1 }] }, { ports: [{ port: 'http' }] }] }));
    const rule = { policy: 'NetworkPolicy default/web', tier: 'policy', position: 1 };
    expect(judgements(ask(podEnd('bot'), podEnd('web')))).toMatchObject([{ isAllowed: true, rule }]);
    expect(ask(podEnd('bot'), podEnd('web'), 8081).isAllowed).toBe(false);
    expect(ask(podEnd('bot'), podEnd('web'), 8080, 17).isAllowed).toBe(false);
  });

  test('has a judgement in each direction', () => {
    compiled.setPolicy({
      metadata: { name: 'bot', namespace: 'default' },
      spec: { podSelector: { matchLabels: { app: 'bot' } }, policyTypes: ['Egress'] },
    });
    compiled.setPolicy(onWeb({ ingress: [{ from: [{ podSelector: { matchLabels: { app: 'bot' } } }] }] }));
    const answer = ask(podEnd('bot'), podEnd('web'));
    expect(answer.isAllowed).toBe(false);
    expect(judgements(answer)).toMatchObject([
      { direction: 'egress', isAllowed: false, isolatedBy: ['NetworkPolicy default/bot'] },
      { direction: 'ingress', isAllowed: true, rule: { policy: 'NetworkPolicy default/web', position: 0 } },
    ]);
  });

  test.each([
    ['Admin', 'Deny', false, 'admin'],
    ['Admin', 'Accept', true, 'admin'],
    ['Baseline', 'Deny', false, 'baseline'],
    ['Baseline', 'Accept', true, 'baseline'],
  ])('is decided by the tier %s with %s', (tier, action, isAllowed, name) => {
    compiled.setClusterPolicy(onAll(tier, action));
    const policy = `ClusterNetworkPolicy ${`${tier}-${action}`.toLowerCase()}`;
    const rule = { policy, tier: name, position: 0 };
    expect(judgements(ask(podEnd('bot'), podEnd('web')))).toMatchObject([{ isAllowed, rule }]);
  });

  test('without a matching rule of a ClusterNetworkPolicy is allowed', () => {
    compiled.setClusterPolicy(onAll('Admin', 'Pass'));
    const passedBy = { policy: 'ClusterNetworkPolicy admin-pass', tier: 'admin', position: 0 };
    const expected = [{ direction: 'ingress', isAllowed: true, rule: undefined, passedBy, isolatedBy: [] }];
    expect(judgements(ask(podEnd('bot'), podEnd('web')))).toMatchObject(expected);
  });

  test('of a pod to itself is allowed', () => {
    compiled.setPolicy(onWeb({ ingress: [], policyTypes: ['Ingress', 'Egress'] }));
    const answer = ask(podEnd('web'), addressEnd('10.0.0.1'));
    expect(answer.isAllowed).toBe(true);
    expect(judgements(answer)).toEqual([]);
  });

  test.each(['192.0.2.101', 'fd99::1', '172.17.0.1'])('of a pod with its own node is allowed: %s', (text) => {
    compiled.setPolicy(onWeb({ ingress: [], policyTypes: ['Ingress', 'Egress'] }));
    const fromNode = ask(addressEnd(text), podEnd('web'));
    expect(fromNode).toMatchObject({ isAllowed: true, source: { pod: undefined, node: { name: 'n1' } } });
    expect(judgements(fromNode)).toEqual([]);
    expect(ask(podEnd('web'), addressEnd(text)).isAllowed).toBe(true);
  });

  test('of a pod with another node is judged', () => {
    compiled.setPolicy(onWeb({ ingress: [] }));
    compiled.setPod(pod('web', 'n3', ['10.0.0.1', 'fd00::1'], 'http'));
    expect(ask(addressEnd('192.0.2.101'), podEnd('web'))).toMatchObject({
      isAllowed: false,
      source: { node: { name: 'n1' } },
    });
    compiled.setPod(pod('bot', 'n3', ['10.0.0.2']));
    expect(ask(podEnd('bot'), podEnd('web')).isAllowed).toBe(false);
  });

  test('after a rule that is not understood has the position of its own rule', () => {
    const unknown = { action: 'Accept', to: [{ domainNames: ['example.org'] }] };
    const known = { action: 'Deny', to: [{ namespaces: {} }] };
    const spec = { tier: 'Admin', priority: 5, subject: { namespaces: {} }, egress: [unknown, known] };
    compiled.setClusterPolicy({ metadata: { name: 'a' }, spec });
    expect(judgements(ask(podEnd('bot'), podEnd('web')))).toMatchObject([{ isAllowed: false, rule: { position: 1 } }]);
    expect(listPolicies(policies.profiles)).toMatchObject([{ ruleCounts: { egress: 2 } }]);
  });

  test('is judged for each family that both ends have', () => {
    compiled.setPolicy(onWeb({ ingress: [{ from: [{ ipBlock: { cidr: '10.0.0.0/24' } }] }] }));
    const { isAllowed, connections } = ask(podEnd('bot'), podEnd('web'));
    expect(isAllowed).toBe(false);
    expect(connections.map(({ source, judgements: [each] }) => [source.family, each?.isAllowed])).toEqual([
      [4, true],
      [6, false],
    ]);
  });
});

describe('a connection that no rule matches', () => {
  const bot = { podSelector: { matchLabels: { app: 'bot' } } };
  const other = { podSelector: { matchLabels: { app: 'other' } } };
  const misses = (port: number | string = 8080) =>
    judgements(ask(podEnd('bot'), podEnd('web'), port)).flatMap(({ nearMisses }) => nearMisses);

  test.each<[what: string, ingress: readonly RawRule[], expected: object]>([
    ['the peer', [{ from: [other] }, { from: [bot], ports: [{ port: 9 }] }], { position: 1, matchesPeer: true }],
    ['the port', [{ from: [other], ports: [{ port: 9 }] }, { from: [other] }], { position: 1, matchesPort: true }],
    ['neither', [{ from: [other], ports: [{ port: 9 }] }], { position: 0 }],
    ['nothing, without rules', [], { position: undefined }],
  ])('names the rule of each policy that matches %s', (_, ingress, expected) => {
    compiled.setPolicy(onWeb({ ingress }));
    const none = { policy: 'NetworkPolicy default/web', matchesPeer: false, matchesPort: false, missingPortNames: [] };
    expect(misses()).toEqual([{ ...none, ...expected }]);
  });

  test('names the port names that the destination does not have', () => {
    const ports = [{ port: 'htpp' }, { port: 'http' }, { port: 'dns', protocol: 'UDP' }];
    compiled.setPolicy(onWeb({ ingress: [{ from: [bot], ports }] }));
    expect(misses(9)).toMatchObject([{ position: 0, matchesPeer: true, missingPortNames: ['htpp'] }]);
  });

  test('has none where a policy denies or allows it', () => {
    compiled.setPolicy(onWeb({ ingress: [] }));
    compiled.setClusterPolicy(onAll('Admin', 'Deny'));
    expect(misses()).toEqual([]);
  });
});

describe('an end', () => {
  test('may be the address of a pod, or of none', () => {
    compiled.setPolicy(onWeb({ ingress: [{ from: [{ ipBlock: { cidr: '192.0.2.0/24' } }] }] }));
    const inside = ask(addressEnd('10.0.0.2'), addressEnd('10.0.0.1'));
    expect(inside).toMatchObject({ isAllowed: false, source: { pod: { name: 'bot' } } });
    const outside = ask(addressEnd('192.0.2.1'), podEnd('web'));
    expect(outside).toMatchObject({ isAllowed: true, source: { pod: undefined, node: undefined } });
    expect(outside.connections).toHaveLength(1);
  });

  test('has no node before it is scheduled', () => {
    compiled.setPod(pod('new', '', ['10.0.0.3']));
    expect(ask(podEnd('new'), podEnd('web')).source.node).toBeUndefined();
  });

  test('has a named port only where the pod names it for the protocol', () => {
    const port = (name: string, protocol: number) => ask(podEnd('bot'), podEnd('web'), name, protocol);
    expect(port('http', 6).connections[0]?.destinationPort).toBe(8080);
    expect(() => port('http', 17)).toThrow(/port "http": pod default\/web has none/);
    expect(() => ask(podEnd('bot'), addressEnd('192.0.2.1'), 'http')).toThrow(/destination has none/);
  });

  test.each([
    ['pod default/gone: is not known; check its name', () => ask(podEnd('gone'), podEnd('web'))],
    ['a Service has no policies: name a pod behind it', () => ask(podEnd('gone'), podEnd('web'))],
    ['have no addresses of one family', () => ask(addressEnd('fd00::9'), addressEnd('10.0.0.1'))],
  ])('that cannot be judged is named: %s', (message, act) => {
    expect(act).toThrow(message);
  });

  test('without an address, or in a namespace that is not read, has no judgement', () => {
    compiled.setPod(pod('new', 'n1', []));
    expect(() => ask(podEnd('new'), podEnd('web'))).toThrow(/has no address yet/);
    policies.profiles.pods.removeNamespace('default');
    expect(() => ask(podEnd('bot'), podEnd('web'))).toThrow(/namespace default: is not read/);
  });
});

describe('operators see', () => {
  test('nodes that follow or have pods, and policies with faults', async () => {
    compiled.setPolicy(onWeb({ ingress: [{ ports: [{ protocol: 'QUIC' }] }] }));
    compiled.setClusterPolicy(onAll('Baseline', 'Accept', 'egress'));
    const request = { nodeName: 'n9', sets: new Map(), acknowledged: () => undefined };
    await policies.follow(request, new AbortController().signal).next();
    const { nodes, faultyPolicies, ...counts } = policyStatus(policies, true);
    expect(counts).toEqual({ networkPoliciesCount: 1, clusterNetworkPoliciesCount: 1 });
    expect(nodes).toMatchObject([
      { name: 'n1', isFollowing: false, podsCount: 1, restrictedPodsCount: 1 },
      { name: 'n2', isFollowing: false, podsCount: 1, restrictedPodsCount: 1 },
      { name: 'n9', isFollowing: true, podsCount: 0, restrictedPodsCount: 0, sentNumber: 1 },
    ]);
    expect(faultyPolicies).toMatchObject([
      { name: 'NetworkPolicy default/web', faults: [expect.stringContaining('ingress[0].ports[0]')] },
    ]);
  });

  test('policies with the pods that they select', () => {
    compiled.setPolicy(onWeb({ ingress: [{}, {}] }));
    compiled.setClusterPolicy(onAll('Admin', 'Deny', 'egress'));
    expect(listPolicies(policies.profiles)).toEqual([
      {
        ...{ name: 'ClusterNetworkPolicy admin-deny', tier: 'admin', priority: 5, podsCount: 2, faults: [] },
        ruleCounts: { ingress: undefined, egress: 1 },
      },
      {
        ...{ name: 'NetworkPolicy default/web', tier: 'policy', priority: 0, podsCount: 1, faults: [] },
        ruleCounts: { ingress: 2, egress: undefined },
      },
    ]);
    expect(listPolicies(policies.profiles, 'default')).toHaveLength(1);
    expect(listPolicies(policies.profiles, 'other')).toEqual([]);
  });

  test('with an explanation the policies of the pods that have faults', () => {
    compiled.setPolicy({ ...onWeb({ ingress: [{ ports: [{ port: 1, endPort: 0 }] }] }) });
    const faulty = { metadata: { name: 'c', namespace: 'default' }, spec: { policyTypes: ['Both'], podSelector: {} } };
    compiled.setPolicy({ ...faulty, spec: { ...faulty.spec, podSelector: { matchLabels: { app: 'other' } } } });
    const names = ask(podEnd('bot'), podEnd('web')).faultyPolicies.map(({ name }) => name);
    expect(names).toEqual(['NetworkPolicy default/web']);
  });
});
