import { describe, expect, test } from 'vitest';

import { readClusterNetworkPolicy } from './cluster-network-policy.js';
import { allows, CompiledCluster } from './testing/compiled.js';

const ADDRESSES = { web: '10.0.0.1', db: '10.0.0.2' } as const;

function pod(name: keyof typeof ADDRESSES, namespace: string) {
  return {
    metadata: { name, namespace, uid: name, labels: { app: name } },
    spec: { nodeName: 'n1', containers: [{ ports: [{ name: 'http', containerPort: 80 }] }] },
    status: { podIPs: [{ ip: ADDRESSES[name] }] },
  };
}

const EVERYBODY = { namespaces: {} };

/** A policy for ingress of all pods. */
function policy(spec: object, name = 'a') {
  const usual = { tier: 'Admin', priority: 10, subject: EVERYBODY };
  const read = readClusterNetworkPolicy({ metadata: { name }, spec: { ...usual, ...spec } });
  if (!read) throw new Error('no policy');
  return read;
}

const rule = (action: string, rest: object = { from: [EVERYBODY] }) => ({ action, ...rest });
const ingress = (...rules: readonly unknown[]) => ({ ingress: rules });

/** Whether `web` accepts a connection from `db`, with a NetworkPolicy that isolates it or without. */
function accepts(policies: readonly object[], { isIsolated = false, port = 80 } = {}): boolean {
  const compiled = new CompiledCluster();
  for (const name of ['front', 'back']) compiled.setNamespace({ metadata: { name, labels: { name } } });
  compiled.setPod(pod('web', 'front'));
  compiled.setPod(pod('db', 'back'));
  policies.forEach((spec, index) => compiled.profiles.setPolicy(policy(spec, `policy-${index}`)));
  if (isIsolated) compiled.setPolicy({ metadata: { name: 'deny', namespace: 'front' }, spec: {} });
  return allows(compiled, { source: ADDRESSES.db, destination: ADDRESSES.web, protocol: 'TCP', port });
}

describe('tiers', () => {
  test('Admin decides before NetworkPolicies, which decide before Baseline', () => {
    expect(accepts([ingress(rule('Accept'))], { isIsolated: true })).toBe(true);
    expect(accepts([ingress(rule('Deny'))])).toBe(false);
    const baseline = { tier: 'Baseline', ...ingress(rule('Accept')) };
    expect(accepts([baseline], { isIsolated: true })).toBe(false);
    expect(accepts([{ tier: 'Baseline', ...ingress(rule('Deny')) }])).toBe(false);
  });

  test('Pass leaves its tier', () => {
    const passes = ingress(rule('Pass'), rule('Deny'));
    expect(accepts([passes])).toBe(true);
    expect(accepts([passes], { isIsolated: true })).toBe(false);
    expect(accepts([passes, { tier: 'Baseline', ...ingress(rule('Deny')) }])).toBe(false);
  });

  test('the lowest priority counts first, then the order of the rules', () => {
    const [accept, deny] = [ingress(rule('Accept')), ingress(rule('Deny'))];
    expect(
      accepts([
        { priority: 2, ...deny },
        { priority: 1, ...accept },
      ]),
    ).toBe(true);
    expect(
      accepts([
        { priority: 1, ...deny },
        { priority: 2, ...accept },
      ]),
    ).toBe(false);
    expect(
      accepts([ingress(rule('Deny', { from: [{ namespaces: { matchLabels: { name: 'back' } } }] }), rule('Accept'))]),
    ).toBe(false);
  });
});

test('ports: numbers, ranges, and names of the destination', () => {
  const ported = (...protocols: readonly unknown[]) => ingress(rule('Deny', { from: [EVERYBODY], protocols }));
  expect(accepts([ported({ tcp: { destinationPort: { number: 80 } } })])).toBe(false);
  expect(accepts([ported({ tcp: { destinationPort: { range: { start: 79, end: 81 } } } })])).toBe(false);
  expect(accepts([ported({ udp: { destinationPort: { number: 80 } } })])).toBe(true);
  expect(accepts([ported({ destinationNamedPort: 'http' })])).toBe(false);
  expect(accepts([ported({ destinationNamedPort: 'http' })], { port: 81 })).toBe(true);
});

describe.each<[what: string, part: object]>([
  ['a peer without a known field', { from: [{ nodes: {} }] }],
  ['a known peer beside an unknown one', { from: [EVERYBODY, { domainNames: ['example.org'] }] }],
  ['networks as a source', { from: [{ networks: ['10.0.0.0/8'] }] }],
  ['no peers', { from: [] }],
  ['a peer of two kinds', { from: [{ namespaces: {}, pods: {} }] }],
  [
    'an unknown operator',
    { from: [{ namespaces: { matchExpressions: [{ key: 'a', operator: 'Gt', values: ['1'] }] } }] },
  ],
  ['an unknown protocol', { from: [EVERYBODY], protocols: [{ icmp: {} }] }],
  ['a protocol without a port', { from: [EVERYBODY], protocols: [{ tcp: {} }] }],
  ['an unknown field of the rule', { from: [EVERYBODY], unless: [] }],
])('%s', (_, part) => {
  test('fails closed: Accept matches nothing, Deny and Pass deny everything', () => {
    expect(accepts([ingress(rule('Accept', part), rule('Deny'))])).toBe(false);
    for (const action of ['Deny', 'Pass', 'Log'])
      expect(accepts([ingress(rule(action, part), rule('Accept'))])).toBe(false);
    expect(policy(ingress(rule('Accept', part))).faults).not.toEqual([]);
  });
});

test.each<[part: object, fault: string]>([
  [{ to: [{ domainNames: ['example.org'] }] }, 'egress[0].to[0]: domainNames is not known to this release'],
  [{ to: [EVERYBODY, { namespaces: {}, nodes: {} }] }, 'egress[0].to[1]: nodes is not known to this release'],
  [{ to: [{ networks: ['10.0.0.4'] }] }, 'egress[0].to[0].networks has a text that is not a CIDR'],
  [{ to: [EVERYBODY], unless: [], when: 1 }, 'egress[0]: unless, when are not known to this release'],
  [{ to: [] }, 'egress[0] is not a rule that this release knows'],
  [{ to: [EVERYBODY], protocols: [{ icmp: {} }] }, 'egress[0].protocols[0]: icmp is not known to this release'],
  [
    { to: [{ namespaces: { matchExpressions: [{ key: 'a', operator: 'Gt' }] } }] },
    'egress[0].to[0].namespaces is not a label selector that this release knows: matchExpressions[0].operator: ' +
      'Invalid option: expected one of "In"|"NotIn"|"Exists"|"DoesNotExist"',
  ],
])('a rule with %j has one fault, with its effect', (part, fault) => {
  expect(policy({ egress: [rule('Accept', part)] }).faults).toEqual([`${fault}; the rule accepts nothing`]);
  expect(policy({ egress: [rule('Deny', part)] }).faults).toEqual([`${fault}; the rule denies everything`]);
});

test('a rule that is not understood keeps its position', () => {
  const [known, unknown] = [rule('Accept', { to: [EVERYBODY] }), rule('Accept', { to: [{ domainNames: [] }] })];
  const accept = { action: 'accept', peers: { pods: [{}] } };
  const { rules } = policy({ egress: [unknown, known, rule('Pass', { to: [{ domainNames: [] }] })] });
  expect(rules.egress).toMatchObject([{ action: 'accept', peers: { pods: [] } }, accept, { action: 'deny' }]);
});

test('an unknown tier or priority denies everything that the policy has rules for', () => {
  for (const order of [{ tier: 'Platform' }, { priority: 1001 }]) {
    expect(accepts([{ ...order, ...ingress(rule('Accept')) }])).toBe(false);
    expect(
      accepts([
        {
          ...order,
          egress: [rule('Accept', { to: [EVERYBODY] })],
          subject: { namespaces: { matchLabels: { name: 'front' } } },
        },
      ]),
    ).toBe(true);
    expect(policy(order).faults).not.toEqual([]);
  }
});

test('rules that are no list deny everything, and a policy without rules does nothing', () => {
  expect(accepts([{ ingress: {} }])).toBe(false);
  expect(accepts([{}, { ingress: [] }])).toBe(true);
});

test('an unknown subject selects no pod, and is reported', () => {
  expect(accepts([{ subject: { nodes: {} }, ...ingress(rule('Deny')) }])).toBe(true);
  expect(policy({ subject: { nodes: {} } }).faults).toEqual([expect.stringContaining('subject')]);
  expect(readClusterNetworkPolicy({ spec: {} })).toBeUndefined();
});

test('networks match the addresses of pods, too', () => {
  const egress = [rule('Deny', { to: [{ networks: ['10.0.0.1/32', 'fd00::/8'] }] })];
  expect(accepts([{ egress }])).toBe(false);
  expect(accepts([{ egress: [rule('Deny', { to: [{ networks: ['10.0.0.4/30'] }] })] }])).toBe(true);
  expect(accepts([{ egress: [rule('Deny', { to: [{ networks: ['10.0.0.4'] }] })] }])).toBe(false);
});
