import { RoutingState } from '@podwire/proto/podwire/dataplane/v1/node';
import {
  ClusterServiceService,
  GetClusterInfoResponse,
  NodeContact,
  NodeState,
} from '@podwire/proto/podwire/ipam/v1/cluster';
import { AuditResponse, AuditServiceService, FindingKind, Severity } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { GetPolicyStatusResponse, NetworkPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/network_policy';
import { ListPoolsResponse, Pool, PoolServiceService, PoolState } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes } from '../../testing/ctl.js';
import { problemsOf, type ClusterFacts } from './problems.js';

const NOW_MS = Date.parse('2026-05-04T12:00:00Z');
const DAY_MS = 86_400_000;

type NodeFields = Parameters<typeof NodeState.fromPartial>[0];

function node(name: string, fields: NodeFields = {}): NodeState {
  const contact = NodeContact.NODE_CONTACT_CONNECTED;
  const report = { release: '0.1.0', ready: true, status: { attachmentCount: 3, leaseCount: 16 } };
  return NodeState.fromPartial({ name, contact, report, ...fields });
}

function pool(fields: Parameters<typeof Pool.fromPartial>[0] = {}): Pool {
  const utilization = { capacity: '256', allocated: 10n, available: '246', reserved: '0' };
  const state = PoolState.POOL_STATE_ACTIVE;
  return Pool.fromPartial({ name: 'main', cidr: '10.65.0.0/24', state, utilization, ...fields });
}

function facts(fields: Partial<ClusterFacts> = {}): ClusterFacts {
  const info = GetClusterInfoResponse.fromPartial({ store: 'etcd', storeReadUs: 900 });
  return {
    info,
    nodes: [node('n1')],
    pools: [pool()],
    audit: undefined,
    policies: undefined,
    nowMs: NOW_MS,
    ...fields,
  };
}

const texts = (fields: Partial<ClusterFacts>): string[] =>
  problemsOf(facts(fields)).map(({ severity, object, text }) => `${severity} ${object}: ${text}`);

const routes = (wanted: number, present: number, routingState = RoutingState.ROUTING_STATE_RECONCILING) => ({
  report: { ready: true, status: { routingState, wanted: { routes: wanted }, present: { routes: present } } },
});

describe('problems', () => {
  test('a healthy cluster has none', () => {
    expect(texts({})).toEqual([]);
  });

  test.each<[string, Partial<ClusterFacts>, string[]]>([
    ['no node', { nodes: [] }, ['error nodes: no node is registered']],
    [
      'a silent node',
      { nodes: [node('n1', { contact: NodeContact.NODE_CONTACT_SILENT, contactTime: new Date(NOW_MS - 90_000) })] },
      ['error node n1: silent for 90s'],
    ],
    [
      'a node that never connected',
      { nodes: [node('n1', { contact: NodeContact.NODE_CONTACT_SILENT, report: undefined })] },
      ['error node n1: never heard of'],
    ],
    [
      'a node of an earlier release, which does not connect',
      { nodes: [node('n1', { contact: NodeContact.NODE_CONTACT_RECENT, report: undefined })] },
      [],
    ],
    [
      'a node that cannot wire pods, with its conditions as errors',
      {
        nodes: [node('n1', { report: { ready: false, status: { conditions: [{ reason: 'X', message: 'broken' }] } } })],
      },
      ['error node n1: no pod can be wired', 'error node n1: X: broken'],
    ],
    [
      'a condition of a node that works',
      { nodes: [node('n1', { report: { ready: true, status: { conditions: [{ reason: 'X', message: 'odd' }] } } })] },
      ['warning node n1: X: odd'],
    ],
    ['missing routes', { nodes: [node('n1', routes(5, 3))] }, ['warning node n1: 2 routes missing']],
    ['routes as wanted', { nodes: [node('n1', routes(5, 3, RoutingState.ROUTING_STATE_AS_WANTED))] }, []],
    [
      'certificates',
      {
        nodes: [
          node('n1', { report: { ready: true, certificateEndTime: new Date(NOW_MS + 3 * DAY_MS) } }),
          node('n2', { report: { ready: true, certificateEndTime: new Date(NOW_MS - 3 * DAY_MS) } }),
          node('n3', { report: { ready: true, certificateEndTime: new Date(NOW_MS + 30 * DAY_MS) } }),
        ],
      },
      ['error node n2: its certificate expired 3d ago', 'warning node n1: its certificate expires in 3d'],
    ],
    ['no pool', { pools: [] }, ['error pools: no pool allocates addresses']],
    [
      'pools: full, full soon, nearly full',
      {
        pools: [
          pool({ name: 'a', utilization: { capacity: '256', allocated: 256n, available: '0' } }),
          pool({ name: 'b', utilization: { capacity: '256', allocated: 90n, available: '166', fullInSeconds: 3600 } }),
          pool({ name: 'c', utilization: { capacity: '256', allocated: 250n, available: '6' } }),
        ],
      },
      [
        'error pool a: no address is available',
        'warning pool b: full in 60m',
        'warning pool c: 97.7% of its addresses are used',
      ],
    ],
    [
      'findings of the audit; information is none',
      {
        audit: {
          ...AuditResponse.fromPartial({ summary: {} }).summary!,
          findings: [
            { kind: FindingKind.FINDING_KIND_RECORD_UNREADABLE, severity: Severity.SEVERITY_ERROR, count: 2n },
            { kind: FindingKind.FINDING_KIND_BLOCK_WITHOUT_POOL, severity: Severity.SEVERITY_WARNING, count: 1n },
            { kind: FindingKind.FINDING_KIND_COOL_DOWN_OVER, severity: Severity.SEVERITY_INFORMATION, count: 9n },
          ],
        },
      },
      ['error audit: 2 errors', 'warning audit: 1 warning'],
    ],
    [
      'nodes that do not enforce policies, and a policy with a fault',
      {
        policies: GetPolicyStatusResponse.fromPartial({
          nodes: [
            { name: 'n1', following: true },
            { name: 'n2', following: false, since: new Date(NOW_MS - 60_000) },
            { name: 'n3', following: true, behind: true, behindSince: new Date(NOW_MS - 20_000) },
          ],
          faultyPolicies: [{ name: 'NetworkPolicy default/odd' }],
        }),
      },
      [
        'warning node n2: does not follow network policies, for 60s',
        'warning node n3: network policies are not in force, for 20s',
        'warning NetworkPolicy default/odd: a part is not understood',
      ],
    ],
    [
      'a slow datastore',
      { info: GetClusterInfoResponse.fromPartial({ store: 'etcd', storeReadUs: 700_000 }) },
      ['warning datastore etcd: the datastore took 700 ms for a read'],
    ],
  ])('%s', (_, fields, expected) => {
    expect(texts(fields)).toEqual(expected);
  });
});

describe('podwirectl status', () => {
  let fakes: Fakes;
  let nodes: NodeState[];
  let pools: Pool[];

  beforeEach(() => {
    fakes = new Fakes();
    nodes = [node('n1'), node('n2')];
    pools = [pool()];
  });
  afterEach(() => fakes.clear());

  function serve(policies: () => GetPolicyStatusResponse): Promise<void> {
    const namespaces = ['web', 'kube-system'].map((namespace) => ({ namespace, addressesInUse: 3n }));
    const summary = { addressesInUse: 6n, namespaces };
    const info = { store: 'etcd', storeRevision: 42n, storeReadUs: 900, instance: 'a', leader: 'a', release: '0.1.0' };
    return fakes.serve(
      fake(ClusterServiceService.getClusterInfo, () => GetClusterInfoResponse.fromPartial(info)),
      fake(ClusterServiceService.listNodeStates, () => ({ nodes, nextPageToken: '' })),
      fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools })),
      fake(AuditServiceService.audit, () => AuditResponse.fromPartial({ summary })),
      fake(NetworkPolicyServiceService.getPolicyStatus, policies),
    );
  }

  const notServed = (): never => {
    throw new Failure('POLICIES_NOT_SERVED', 'none');
  };

  test('shows a healthy cluster on one screen', async () => {
    const policies = { networkPolicyCount: 2, nodes: [{ name: 'n1', following: true }] };
    await serve(() => GetPolicyStatusResponse.fromPartial(policies));
    const { exitCode, stdout } = await fakes.podwirectl('status');
    expect(exitCode).toBe(0);
    for (const line of [
      /^State +healthy$/m,
      /^Datastore +etcd, revision 42, read in 0.9 ms$/m,
      /^Leader +this podwire-ipam$/m,
      /^Nodes +2, 2 connected$/m,
      /^Namespaces +web 3, kube-system 3$/m,
      /^Policies +2 NetworkPolicies, 0 ClusterNetworkPolicies, in force on 1 of 1 node$/m,
      /^n1 +ready +0\.1\.0 +now +3 +16 +0 +in force +- +-$/m,
      /^main +10\.65\.0\.0\/24 +10 +3\.9% +246 +-$/m,
      /^problems: none$/m,
    ])
      expect(stdout).toMatch(line);
  });

  test('names each problem with the next command, with exit code 4', async () => {
    nodes = [node('n1'), node('n2', { contact: NodeContact.NODE_CONTACT_SILENT })];
    await serve(notServed);
    const { exitCode, stdout } = await fakes.podwirectl('status');
    expect(exitCode).toBe(4);
    expect(stdout).toMatch(/^State +1 error$/m);
    expect(stdout).toMatch(/^n2 +silent/m);
    expect(stdout).toContain(
      'error    node n2: never heard of\n         next: see podwire-node there; its pods: podwirectl get wep -A --node n2; if the machine is gone for 4 minutes: podwirectl delete node n2',
    );
    expect(stdout).not.toMatch(/^Policies/m);
  });

  test('of many nodes lists the nodes with a problem', async () => {
    nodes = Array.from({ length: 40 }, (_, index) => node(`n${index}`));
    nodes[7] = node('n7', { contact: NodeContact.NODE_CONTACT_SILENT });
    await serve(notServed);
    const { stdout, stderr } = await fakes.podwirectl('status');
    expect(stdout.match(/^n\d+ /gm)).toEqual(['n7 ']);
    expect(stderr).toContain('39 nodes without a problem are not listed');
    expect((await fakes.podwirectl('status', '-o', 'wide')).stdout.match(/^n\d+ /gm)).toHaveLength(40);
  });

  test('-o json has all facts', async () => {
    nodes = [node('n2', { contact: NodeContact.NODE_CONTACT_SILENT })];
    await serve(notServed);
    const { stdout } = await fakes.podwirectl('status', '-o', 'json');
    expect(JSON.parse(stdout)).toMatchObject({
      ...{ healthy: false, policies: null, ipam: { store: 'etcd' }, audit: { summary: { addressesInUse: '6' } } },
      problems: [{ severity: 'error', object: 'node n2' }],
      nodes: { nodes: [{ name: 'n2', contact: 'NODE_CONTACT_SILENT' }] },
      pools: { pools: [{ name: 'main' }] },
    });
  });

  test('--wait ends when the problem does, and prints it once', async () => {
    nodes = [node('n2', { contact: NodeContact.NODE_CONTACT_SILENT })];
    let waits = 0;
    fakes.sleep = () => {
      waits += 1;
      if (waits === 3) nodes = [node('n2')];
      return Promise.resolve('elapsed');
    };
    await serve(notServed);
    const { exitCode, stdout, stderr } = await fakes.podwirectl('status', '--wait');
    expect([exitCode, waits]).toEqual([0, 3]);
    expect(stdout).toMatch(/^State +healthy$/m);
    expect(stderr).toBe('podwirectl: waiting: node n2: never heard of\n');
  });

  test('--wait begins before podwire-ipam does', async () => {
    let waits = 0;
    fakes.sleep = async () => {
      waits += 1;
      if (waits === 2) await serve(notServed);
      return 'elapsed';
    };
    const { exitCode, stderr } = await fakes.podwirectl('status', '--wait');
    expect([exitCode, waits]).toEqual([0, 2]);
    expect(stderr).toMatch(/^podwirectl: waiting: podwire-ipam at .*: the socket does not exist[^\n]*\n$/);
  });

  test('--wait ends with the problems after the timeout, and with exit code 5 without an answer', async () => {
    fakes.sleep = () => Promise.resolve('elapsed');
    const { exitCode, stderr } = await fakes.podwirectl('status', '--wait', '--timeout', '1s');
    expect(exitCode).toBe(5);
    expect(stderr).toContain('waiting: podwire-ipam at unix:');
    nodes = [node('n2', { contact: NodeContact.NODE_CONTACT_SILENT })];
    await serve(notServed);
    expect((await fakes.podwirectl('status', '--wait', '--timeout', '1s')).exitCode).toBe(4);
  });
});
