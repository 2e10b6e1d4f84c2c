import { ProbeResult, TracePacketsResponse } from '@podwire/proto/podwire/dataplane/v1/probe';
import { describe, expect, test } from 'vitest';

import { groupedBy, plannedChecks, type Check, type CheckResult, type TestedNode } from './checks.js';
import { breakingPoint, type BrokenPath } from './diagnosis.js';
import { junitOf } from './test-report.js';

const POD_1 = '10.65.1.1';
const POD_2 = '10.65.2.1';

function node(index: number, fields: Partial<TestedNode> = {}): TestedNode {
  const pod = {
    containerId: `c${index}`,
    addresses: [`10.65.${index}.1`],
    mtuBytes: 1450,
  };
  const addresses = [`192.0.2.${index}`];
  return {
    name: `node-${index}`,
    fault: '',
    addresses,
    conditions: [],
    tunnels: ['vxlan4.podwire'],
    pods: [pod],
    ...fields,
  };
}

const NODES = [node(1), node(2)];
const OPTIONS = {
  families: [4],
  services: [{ address: '10.96.0.1', port: 443 }],
  outside: ['203.0.113.2'],
  hostPort: 61_000,
} as const;
const CHECKS = plannedChecks(NODES, OPTIONS);

const checkOf = (kind: string, target: string): Check =>
  CHECKS.find((check) => check.kind === kind && check.node === 'node-1' && check.target.address === target)!;
const resultOf = (check: Check, error = '', fields: Partial<ProbeResult> = {}): CheckResult => ({
  check,
  result: ProbeResult.fromPartial({ error, message: error, ...fields }),
});

const packet = (from: string, to: string) => ({
  kind: 'packet',
  table: 'inet podwire_trace',
  chain: 'prerouting',
  text: `ip saddr ${from} ip daddr ${to} ip ttl 64`,
});
const rule = (table: string, verdict: string) => ({
  kind: 'rule',
  table,
  chain: 'FORWARD',
  text: 'ip saddr 10.65.0.0/16 counter packets 7 bytes 588 drop',
  verdict,
});
const trace = (fields: Parameters<typeof TracePacketsResponse.fromPartial>[0] = {}) =>
  TracePacketsResponse.fromPartial({
    route: '10.65.2.0/26 via 10.65.2.0 dev vxlan4.podwire proto 87',
    routeBack: '10.65.1.0/26 via 10.65.1.0 dev vxlan4.podwire proto 87',
    ...fields,
  });

const [SENT, ANSWER] = [packet(POD_1, POD_2), packet(POD_2, POD_1)];
const PING = checkOf('pod-pod', POD_2);
const LARGE = checkOf('pod-pod MTU', POD_2);
const LARGE_TO_3 = { ...LARGE, target: { ...LARGE.target, node: 'node-3', address: '10.65.3.1' } };
const NODES_REACHED = ['node-1', 'node-2'].map((name) =>
  resultOf(CHECKS.find((check) => check.kind === 'node-node' && check.node === name)!),
);

function place(fields: Partial<BrokenPath>): string {
  const broken = resultOf(PING, 'ETIMEDOUT');
  const {
    place: found,
    node: at,
    detail,
  } = breakingPoint({
    broken,
    all: NODES_REACHED,
    source: node(1),
    target: node(2),
    sourceTrace: undefined,
    targetTrace: undefined,
    ...fields,
  });
  return `${found} of ${at}: ${detail}`;
}

describe('the place where a path ends', () => {
  test.each<[string, Partial<BrokenPath>, RegExp]>([
    [
      'a node that does not answer',
      { target: node(2, { fault: 'not connected' }) },
      /^remote node of node-2: not connected$/,
    ],
    [
      'a rule of another program on the source’s node',
      { sourceTrace: trace({ steps: [SENT, rule('ip filter', 'drop')] }) },
      /^firewall of node-1: .*table ip filter, chain FORWARD, rule: ip saddr 10.65.0.0\/16 drop$/,
    ],
    [
      'a rule of another program on the target’s node',
      { sourceTrace: trace({ steps: [SENT] }), targetTrace: trace({ steps: [SENT, rule('inet fw', 'drop')] }) },
      /^firewall of node-2: .*table inet fw/,
    ],
    [
      'a network policy',
      {
        sourceTrace: trace({ steps: [SENT] }),
        targetTrace: trace({ steps: [SENT, rule('inet podwire_policy', 'drop')] }),
      },
      /^policy of node-2/,
    ],
    [
      'a pod whose packets do not arrive on its node',
      { sourceTrace: trace(), targetTrace: trace() },
      /^interface of node-1/,
    ],
    [
      'a missing route',
      { sourceTrace: trace({ route: '', steps: [SENT] }) },
      /^route of node-1: no route to 10.65.2.1/,
    ],
    ['no route by the kernel’s error', { broken: resultOf(PING, 'ENETUNREACH') }, /^route of node-1: no route/],
    [
      'a route of another program',
      { sourceTrace: trace({ route: '10.65.2.0/27 dev eth0 proto 4', steps: [SENT] }) },
      /^route of node-1: .*10.65.2.0\/27 dev eth0/,
    ],
    [
      'a default route',
      { sourceTrace: trace({ route: '0.0.0.0/0 via 192.0.2.254 dev eth0 proto 3', steps: [SENT] }) },
      /^route of node-1/,
    ],
    [
      'a wrong route of the answer',
      {
        sourceTrace: trace({ steps: [SENT] }),
        targetTrace: trace({ steps: [SENT, ANSWER], routeBack: '10.65.1.0/27 dev eth0 proto 4' }),
      },
      /^route of node-2: packets to 10.65.1.1/,
    ],
    [
      'a tunnel whose packets do not arrive',
      { sourceTrace: trace({ steps: [SENT] }), targetTrace: trace() },
      /^tunnel of node-1: the packet leaves node-1 by vxlan4.podwire/,
    ],
    [
      'a tunnel whose answers do not arrive',
      { sourceTrace: trace({ steps: [SENT] }), targetTrace: trace({ steps: [SENT, ANSWER] }) },
      /^tunnel of node-2: the answer leaves node-2/,
    ],
    [
      'a network without tunnel',
      { source: node(1, { tunnels: [] }), sourceTrace: trace({ steps: [SENT] }), targetTrace: trace() },
      /^network of node-1: .*addresses of pods/,
    ],
    [
      'nodes that do not reach each other',
      { all: [], sourceTrace: trace({ steps: [SENT] }), targetTrace: trace() },
      /^network of node-1: node-1 does not reach node-2/,
    ],
    [
      'a target that does not answer',
      { sourceTrace: trace({ steps: [SENT] }), targetTrace: trace({ steps: [SENT] }) },
      /^interface of node-2/,
    ],
    [
      'a packet that a host refuses as too large',
      { broken: resultOf(LARGE, 'EMSGSIZE', { reporter: '192.0.2.254', mtuBytes: 1400 }), all: [resultOf(PING)] },
      /^MTU of node-1: packets of 1450 bytes are refused by 192.0.2.254, whose limit is 1400/,
    ],
    [
      'large packets that are lost',
      { broken: resultOf(LARGE, 'ETIMEDOUT'), all: [resultOf(PING)] },
      /^MTU of node-1: .*lost/,
    ],
    [
      'large packets that are lost to one node, and reach a further one',
      { broken: resultOf(LARGE, 'ETIMEDOUT'), all: [resultOf(PING), resultOf(LARGE_TO_3)] },
      /^MTU of node-2: .*lost/,
    ],
    [
      'large packets that are lost to two nodes',
      { broken: resultOf(LARGE, 'ETIMEDOUT'), all: [resultOf(PING), resultOf(LARGE_TO_3, 'ETIMEDOUT')] },
      /^MTU of node-1: .*lost/,
    ],
    [
      'large packets that an interface drops',
      {
        broken: resultOf(LARGE, 'ETIMEDOUT'),
        all: [resultOf(PING)],
        targetTrace: trace({ counters: [{ name: 'eth0 receive drops', before: 1n, after: 3n }] }),
      },
      /^MTU of node-2: .*eth0 receive drops/,
    ],
    [
      'large packets on a path that is broken anyway',
      {
        broken: resultOf(LARGE, 'ETIMEDOUT'),
        all: [...NODES_REACHED, resultOf(PING, 'ETIMEDOUT')],
        sourceTrace: trace({ steps: [SENT] }),
        targetTrace: trace(),
      },
      /^tunnel/,
    ],
    [
      'a closed port',
      { broken: resultOf(checkOf('pod-service', '10.96.0.1'), 'ECONNREFUSED'), target: undefined },
      /^remote node of service: service refuses/,
    ],
    [
      'a host that refuses',
      {
        broken: resultOf(checkOf('pod-outside', '203.0.113.2'), 'EHOSTUNREACH', { reporter: '192.0.2.254' }),
        target: undefined,
      },
      /^network of node-1: host 192.0.2.254 refuses/,
    ],
    [
      'a path that works while it is traced',
      { sourceTrace: trace({ steps: [SENT, ANSWER] }), targetTrace: undefined },
      /^unknown of node-1: no answer/,
    ],
  ])('%s', (_, fields, expected) => {
    expect(place(fields)).toMatch(expected);
  });
});

test('the matrix has every pair, each kind of end, and no path of a node that cannot be called', () => {
  const kinds = (checks: readonly Check[]) =>
    Object.fromEntries(groupedBy(checks, ({ kind }) => kind).map((group) => [group[0].kind, group.length]));
  const both = {
    'pod-pod': 2,
    'pod-pod tcp': 2,
    'pod-pod udp': 2,
    'pod-pod MTU': 2,
    'pod-node': 4,
    'pod-host-port': 4,
    'pod-service': 2,
    'pod-outside': 2,
    'node-pod': 4,
    'node-node': 2,
  };
  expect(kinds(CHECKS)).toEqual(both);
  expect(kinds(plannedChecks([node(1), node(2, { fault: 'silent', pods: [] })], OPTIONS))).toEqual({
    ...{ 'pod-node': 2, 'pod-host-port': 1, 'pod-service': 1, 'pod-outside': 1, 'node-pod': 1, 'node-node': 1 },
  });
  expect(plannedChecks(NODES, { ...OPTIONS, families: [6] })).toEqual([]);
});

test('the JUnit report counts cases, and escapes texts', () => {
  const point = { place: 'firewall', node: 'node-1', detail: 'rule "x" <drop> & more' } as const;
  const report = junitOf({
    nodes: [],
    results: [resultOf(PING, 'ETIMEDOUT'), resultOf(LARGE, '', { timeUs: 1200 })],
    breaks: new Map([[PING, { point, counters: [] }]]),
    skipped: [{ name: 'IPv6', reason: 'no pool' }],
  });
  expect(report).toContain('<testsuites tests="3" failures="1" skipped="1">');
  expect(report).toContain('name="pod of node-1 → pod of node-2 10.65.2.1" time="0.0012"></testcase>');
  expect(report).toContain(
    '<failure message="ends at firewall of node-1: rule &#34;x&#34; &#60;drop&#62; &#38; more"></failure>',
  );
});
