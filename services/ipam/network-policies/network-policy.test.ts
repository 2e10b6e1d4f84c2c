import { describe, expect, test } from 'vitest';

import { readNetworkPolicy } from './network-policy.js';
import { CompiledCluster, allows } from './testing/compiled.js';

/** Objects that this release does not understand: they open nothing, and do not disturb other policies. */

const POD = {
  metadata: { name: 'web', namespace: 'default', uid: 'web', labels: { app: 'web' } },
  spec: { nodeName: 'n1' },
  status: { podIPs: [{ ip: '10.0.0.1' }] },
};
const ATTEMPT = { source: '192.0.2.1', destination: '10.0.0.1', protocol: 'TCP', port: 80 } as const;

function read(spec: unknown, name = 'a') {
  const policy = readNetworkPolicy({ metadata: { name, namespace: 'default' }, spec });
  if (!policy) throw new Error('no policy');
  return policy;
}

/** Whether `web` accepts the connection with these policies. */
function accepts(...specs: readonly unknown[]): boolean {
  const compiled = new CompiledCluster();
  compiled.setNamespace({ metadata: { name: 'default', labels: {} } });
  compiled.setPod(POD);
  specs.forEach((spec, index) => compiled.profiles.setPolicy(read(spec, `policy-${index}`)));
  return allows(compiled, ATTEMPT);
}

describe.each<[what: string, spec: unknown]>([
  ['a rule that is no object', { ingress: [null] }],
  ['a rule with an unknown field', { ingress: [{ unless: [] }] }],
  ['rules that are no list', { ingress: {} }],
  ['a peer without a known field', { ingress: [{ from: [{ nodeSelector: {} }] }] }],
  ['an empty peer', { ingress: [{ from: [{}] }] }],
  ['a selector beside an ipBlock', { ingress: [{ from: [{ ipBlock: { cidr: '0.0.0.0/0' }, podSelector: {} }] }] }],
  ['a CIDR that is none', { ingress: [{ from: [{ ipBlock: { cidr: '0.0.0.0' } }] }] }],
  ['an except that is none', { ingress: [{ from: [{ ipBlock: { cidr: '0.0.0.0/0', except: ['10.0.0.1'] } }] }] }],
  ['an unknown protocol', { ingress: [{ ports: [{ protocol: 'QUIC' }] }] }],
  ['a port out of range', { ingress: [{ ports: [{ port: 0 }] }] }],
  ['an endPort below its port', { ingress: [{ ports: [{ port: 81, endPort: 80 }] }] }],
  ['an endPort with a name', { ingress: [{ ports: [{ port: 'http', endPort: 90 }] }] }],
  ['an endPort alone', { ingress: [{ ports: [{ endPort: 90 }] }] }],
  ['unknown types', { policyTypes: ['Inward'], ingress: [] }],
  [
    'an unknown operator among the peers',
    {
      ingress: [{ from: [{ namespaceSelector: { matchExpressions: [{ key: 'a', operator: 'Gt', values: ['1'] }] } }] }],
    },
  ],
  [
    'In without values',
    { ingress: [{ from: [{ podSelector: { matchExpressions: [{ key: 'a', operator: 'NotIn', values: [] }] } }] }] },
  ],
])('%s', (_, spec) => {
  test('allows nothing, and is reported', () => {
    expect(accepts(spec)).toBe(false);
    expect(read(spec).faults).not.toEqual([]);
  });

  test('leaves other policies as they are', () => {
    expect(accepts(spec, { ingress: [{}] })).toBe(true);
  });
});

test('faults name the field of the manifest, the unknown key and the effect', () => {
  const from = [{ podSelector: {} }, { nodeSelector: {} }, { ipBlock: { cidr: '10.0.0.0' } }];
  const spec = { ingress: [{ unless: [] }, { from, ports: [{ port: 0 }, { name: 'http' }] }] };
  expect(read(spec).faults).toEqual([
    'ingress[0]: unless is not known to this release; the rule allows nothing',
    'ingress[1].from[1]: nodeSelector is not known to this release; the peer allows nothing',
    'ingress[1].from[2].ipBlock has a text that is not a CIDR; the peer allows nothing',
    'ingress[1].ports[0] is not a port that this release knows; the port allows nothing',
    'ingress[1].ports[1]: name is not known to this release; the port allows nothing',
  ]);
  expect(read(spec).rules.ingress).toHaveLength(2);
});

test('a valid part of a policy counts beside an invalid one', () => {
  const from = [{ nodeSelector: {} }, { ipBlock: { cidr: '192.0.2.0/24' } }];
  expect(accepts({ ingress: [{ from, ports: [{ port: 0 }, { port: 80 }] }] })).toBe(true);
});

test('a subject with an unknown operator selects no pod, and is reported', () => {
  const podSelector = { matchExpressions: [{ key: 'app', operator: 'Like', values: ['w'] }] };
  expect(accepts({ podSelector, ingress: [] })).toBe(true);
  expect(read({ podSelector }).faults).toEqual([expect.stringContaining('podSelector is not a label selector')]);
});

test('host bits of a CIDR are ignored, and a missing spec isolates all pods of the namespace', () => {
  expect(accepts({ ingress: [{ from: [{ ipBlock: { cidr: '192.0.2.9/24' } }] }] })).toBe(true);
  expect(accepts(undefined)).toBe(false);
  expect(readNetworkPolicy({ spec: {} })).toBeUndefined();
});

test.each<[what: string, peer: (index: number) => unknown, limit: number]>([
  ['selectors', (index) => ({ podSelector: { matchLabels: { app: `a${index}` } } }), 256],
  ['ranges', (index) => ({ ipBlock: { cidr: `192.${index >> 8}.${index & 255}.0/25` } }), 4096],
])('a policy with too many %s allows nothing, and is reported', (_, peer, limit) => {
  const spec = (count: number) => ({
    podSelector: {},
    ingress: [{ from: Array.from({ length: count }, (_, index) => peer(index)) }],
  });
  expect(read(spec(limit))).toMatchObject({ faults: [], rules: { ingress: [{}] } });
  const tooLarge = read(spec(limit + 1));
  expect(tooLarge.rules).toEqual({ ingress: [], egress: undefined });
  expect(tooLarge.faults).toEqual([expect.stringMatching(/more than 256 selectors .* 4096 ranges/)]);
});
