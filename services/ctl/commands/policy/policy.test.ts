import {
  ExplainPolicyResponse,
  GetPolicyStatusResponse,
  ListPoliciesResponse,
  NetworkPolicyServiceService,
  PolicyTier,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes } from '../../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const ago = (seconds: number): Date => new Date(Date.now() - seconds * 1000 - 100);

const node = (name: string) => ({ name, following: true, since: ago(7200), sentNumber: 42n, acknowledgedNumber: 42n });
const behind = { ...node('n2'), acknowledgedNumber: 41n, behindSince: ago(300), behind: true };
const faulty = { name: 'NetworkPolicy default/web', faults: ['ingress[1] is not a rule that this release knows'] };

describe('policy explain', () => {
  const connection = { sourceAddress: '10.65.0.2', destinationAddress: '10.65.0.7', port: 8080 };
  const source = { pod: { namespace: 'default', name: 'bot' }, node: node('n1') };
  const destination = { pod: { namespace: 'default', name: 'web' }, node: node('n2') };

  async function explain(answer: Parameters<typeof ExplainPolicyResponse.fromPartial>[0], ...args: readonly string[]) {
    await fakes.serve(fake(NetworkPolicyServiceService.explainPolicy, () => ExplainPolicyResponse.fromPartial(answer)));
    return fakes.podwirectl('policy', 'explain', ...args);
  }

  test('names the rule that allows a connection, and the state of the nodes', async () => {
    const rule = { policy: 'NetworkPolicy default/web', tier: PolicyTier.POLICY_TIER_NETWORK_POLICY, ruleIndex: 1 };
    const connections = [{ ...connection, ingress: { allowed: true, ...rule } }];
    const recent = { ...behind, behind: false, behindSince: ago(2) };
    const answer = { allowed: true, connections, source, destination: { ...destination, node: recent } };
    const { exitCode, stdout } = await explain(answer, 'default/bot', 'default/web:http');
    expect(exitCode).toBe(0);
    expect(stdout).toMatch(/^network policies: the connection is allowed$/m);
    expect(stdout).toMatch(/^10\.65\.0\.2 +10\.65\.0\.7:8080\/tcp +egress +allowed +no policy restricts the pod$/m);
    expect(stdout).toMatch(/ingress +allowed +NetworkPolicy default\/web, ingress\[1\]$/m);
    expect(stdout).toMatch(/^default\/bot: node n1 enforces these policies$/m);
    expect(stdout).toMatch(/^default\/web: node n2 is 1 message behind for 2s; it may enforce earlier policies$/m);
    expect(fakes.calls.map(({ request }) => request)).toEqual([
      {
        source: { end: { $case: 'pod', value: { namespace: 'default', name: 'bot' } } },
        destination: { end: { $case: 'pod', value: { namespace: 'default', name: 'web' } } },
        ...{ protocol: 6, port: 'http' },
      },
    ]);
  });

  test('ends with 4 if the connection is denied, and names the policies and their faults', async () => {
    const isolatedBy = ['NetworkPolicy default/all', 'NetworkPolicy default/web'];
    const rule = { policy: 'ClusterNetworkPolicy closed', tier: PolicyTier.POLICY_TIER_ADMIN };
    const connections = [{ ...connection, egress: { allowed: false, ...rule }, ingress: { isolatedBy } }];
    const unscheduled = { pod: destination.pod };
    const stopped = { ...source, node: { name: 'n1', since: ago(300) } };
    const answer = { connections, source: stopped, destination: unscheduled, faultyPolicies: [faulty] };
    const { exitCode, stdout } = await explain(answer, 'default/bot', '10.65.0.7:8080/udp');
    expect(exitCode).toBe(4);
    expect(stdout).toMatch(/^network policies: the connection is denied$/m);
    expect(stdout).toMatch(
      /10\.65\.0\.7:8080\/udp +egress +denied +ClusterNetworkPolicy closed, egress\[0\] \(tier admin\)$/m,
    );
    expect(stdout).toMatch(
      /denied +isolated by NetworkPolicy default\/all, NetworkPolicy default\/web: no rule matches$/m,
    );
    expect(stdout).toMatch(/^default\/bot: node n1 has not followed this podwire-ipam for 5m; it may enforce earlier/m);
    expect(stdout).toMatch(/^default\/web: not scheduled yet$/m);
    expect(stdout).toMatch(/^NetworkPolicy default\/web: ingress\[1\] is not a rule/m);
  });

  test.each([
    ['is behind', behind, 'node n2 does'],
    ['does not follow', { name: 'n2' }, 'node n2 does'],
    ['and the other one do not follow', { name: 'n2' }, 'node n1 and node n2 do', { name: 'n1' }],
  ])('ends with 4 if the policies allow, but the node %s', async (_, second, subject, first = node('n1')) => {
    const ends = { source: { ...source, node: first }, destination: { ...destination, node: second } };
    const answer = { allowed: true, connections: [connection], ...ends };
    const { exitCode, stdout } = await explain(answer, 'default/bot', 'default/web:80');
    expect(exitCode).toBe(4);
    expect(stdout).toContain(`the connection is allowed, but ${subject} not enforce these policies yet\n`);
  });

  test('says which family is allowed if they differ, and ends with 4', async () => {
    const six = { sourceAddress: 'fd65::2', destinationAddress: 'fd65::7', port: 80, ingress: { isolatedBy: ['a'] } };
    const answer = { connections: [connection, six], source, destination };
    const { exitCode, stdout } = await explain(answer, 'default/bot', 'default/web:80');
    expect(exitCode).toBe(4);
    expect(stdout).toMatch(/^network policies: the connection is allowed for IPv4 and denied for IPv6$/m);
  });

  test('says that a pod and its own node may connect, whether the node follows or not', async () => {
    const own = { ...source, node: { name: 'n1' } };
    const answer = { allowed: true, connections: [connection], source: own, destination: { node: own.node } };
    const { exitCode, stdout } = await explain(answer, 'default/bot', '10.65.0.7:8080');
    expect(exitCode).toBe(0);
    expect(stdout).toMatch(/egress +allowed +its own node$/m);
    expect(stdout).toMatch(/ingress +allowed +an address of node n1$/m);
    expect(stdout).not.toContain('Service');
  });

  test('an address of no pod may be of a Service', async () => {
    const answer = { allowed: true, connections: [connection], source, destination: {} };
    const { stdout } = await explain(answer, 'default/bot', '10.65.0.7:80');
    expect(stdout).toMatch(/^10\.65\.0\.7 is no address of a pod: if it is a Service's, name a pod behind it$/m);
  });

  test('says why policies do not allow a connection: the closest five, once for both families', async () => {
    const miss = { policy: 'NetworkPolicy a/port', ruleIndex: 1, portMatches: true };
    const nearMisses = [
      { policy: 'NetworkPolicy a/none' },
      { policy: 'NetworkPolicy a/neither', ruleIndex: 0 },
      miss,
      { policy: 'NetworkPolicy a/peer', ruleIndex: 0, peerMatches: true },
      { policy: 'NetworkPolicy a/name', ruleIndex: 2, peerMatches: true, missingPortNames: ['htpp'] },
      { policy: 'NetworkPolicy a/sixth' },
    ];
    const connections = [connection, connection].map((each) => ({ ...each, ingress: { nearMisses } }));
    const { stdout } = await explain({ connections, source, destination }, 'default/bot', 'default/web:80');
    expect(stdout.split('\n').filter((line) => line.startsWith('NetworkPolicy a/'))).toEqual([
      'NetworkPolicy a/peer ingress[0]: the peer matches, the port does not',
      'NetworkPolicy a/name ingress[2]: the peer matches, the port does not: the destination has no tcp port named "htpp"',
      'NetworkPolicy a/port ingress[1]: the port matches, the peer does not',
      'NetworkPolicy a/none ingress: no rule',
      'NetworkPolicy a/neither ingress: no rule matches the peer or the port',
    ]);
  });

  test('names the rule that passed the connection to the later tiers', async () => {
    const ingress = { isolatedBy: ['NetworkPolicy a/b'], passedBy: 'ClusterNetworkPolicy c', passedByRuleIndex: 2 };
    const answer = { connections: [{ ...connection, ingress }], source, destination };
    const { stdout } = await explain(answer, 'default/bot', 'default/web:80');
    expect(stdout).toMatch(/NetworkPolicy a\/b: no rule matches; passed by ClusterNetworkPolicy c, ingress\[2\]$/m);
  });

  test('shows ends without policies: addresses of no pod, and a pod itself', async () => {
    const icmp = { ...connection, port: 0, ingress: { allowed: true } };
    const { stdout } = await explain(
      { allowed: true, connections: [icmp], source: {}, destination },
      '192.0.2.1',
      'default/web/icmp',
    );
    expect(stdout).toMatch(/ 10\.65\.0\.7\/icmp +egress +allowed +not an address of a pod$/m);
    expect(stdout).toMatch(/ingress +allowed +no rule matches$/m);
    expect(fakes.calls).toMatchObject([{ request: { protocol: 1, port: '' } }]);
  });

  test('-o json has the answer, with exit code 4 for a denied connection', async () => {
    const own = { sourceAddress: 'fd65::7', destinationAddress: 'fd65::7', port: 80 };
    const answer = { connections: [own], source: destination, destination };
    const { exitCode, stdout } = await explain(answer, '-o', 'json', 'fd65::7', '[fd65::7]:80/sctp');
    expect(exitCode).toBe(4);
    expect(JSON.parse(stdout)).toMatchObject({ allowed: false, connections: [{ port: 80 }] });
    expect(fakes.calls).toMatchObject([
      { request: { destination: { end: { $case: 'address', value: 'fd65::7' } }, protocol: 132, port: '80' } },
    ]);
    const table = await fakes.podwirectl('policy', 'explain', 'fd65::7', '[fd65::7]:80');
    expect(table.stdout).toMatch(/ \[fd65::7\]:80\/tcp +egress +allowed +a pod may connect to itself$/m);
  });

  test.each(['default/web', 'web:80', '10.65.0.7', 'fd65::7', 'default/web:', 'default/web:80/quic', 'x/icmp'])(
    'refuses the destination %s as a usage error',
    async (destinationText) => {
      const { exitCode, stderr } = await fakes.podwirectl('policy', 'explain', 'default/bot', destinationText);
      expect(exitCode).toBe(2);
      expect(stderr).toContain(destinationText);
    },
  );

  test('without the leader ends with 1 and the reason', async () => {
    await fakes.serve(
      fake(NetworkPolicyServiceService.explainPolicy, () => {
        throw new Failure('POLICIES_NOT_SERVED', 'network policies: this podwire-ipam does not lead');
      }),
    );
    const answer = await fakes.podwirectl('policy', 'explain', 'default/bot', 'default/web:80');
    expect(answer).toMatchObject({ exitCode: 1, stderr: expect.stringContaining('does not lead') });
  });
});

describe('policy list', () => {
  test('reads every page, and shows counts and faults', async () => {
    const web = { ...faulty, tier: PolicyTier.POLICY_TIER_NETWORK_POLICY, podCount: 3, ingressRuleCount: 0 };
    const closed = { name: 'ClusterNetworkPolicy closed', tier: PolicyTier.POLICY_TIER_BASELINE, priority: 5 };
    await fakes.serve(
      fake(NetworkPolicyServiceService.listPolicies, ({ pageToken }) =>
        ListPoliciesResponse.fromPartial(
          pageToken === '' ? { policies: [closed], nextPageToken: 'more' } : { policies: [web] },
        ),
      ),
    );
    const { exitCode, stdout } = await fakes.podwirectl('policy', 'list', '-n', 'default');
    expect(exitCode).toBe(0);
    expect(stdout).toMatch(/^POLICY +TIER +PRIORITY +PODS +INGRESS +EGRESS +FAULTS$/m);
    expect(stdout).toMatch(/^ClusterNetworkPolicy closed +baseline +5 +0 +- +- +0$/m);
    expect(stdout).toMatch(/^NetworkPolicy default\/web +network-policy +- +3 +0 +- +1$/m);
    expect(stdout).toMatch(/^NetworkPolicy default\/web: ingress\[1\] is not a rule/m);
    expect(fakes.calls).toMatchObject([{ request: { namespace: 'default' } }, { request: { pageToken: 'more' } }]);
    const json = await fakes.podwirectl('policy', 'list', '-o', 'json');
    expect(JSON.parse(json.stdout)).toMatchObject({ policies: [{ podCount: 0 }, { podCount: 3 }] });
  });
});

describe('policy status', () => {
  test.each([
    ['a node is behind', [node('n1'), behind], [], /^n2 +behind +2h +41\/42 +5m +0 +0$/m],
    ['a node does not follow', [{ name: 'n3', podCount: 2 }], [], /^n3 +not following +- +0\/0 +- +2 +0$/m],
    ['a policy has faults', [node('n1')], [faulty], /^NetworkPolicy default\/web: ingress\[1\] is not a rule/m],
  ])('ends with 4 if %s', async (_, nodes, faultyPolicies, line) => {
    const answer = GetPolicyStatusResponse.fromPartial({ nodes, faultyPolicies });
    await fakes.serve(fake(NetworkPolicyServiceService.getPolicyStatus, () => answer));
    const { exitCode, stdout } = await fakes.podwirectl('policy', 'status');
    expect(exitCode).toBe(4);
    expect(stdout).toMatch(line);
  });

  test('says that ClusterNetworkPolicy is not installed', async () => {
    await fakes.serve(fake(NetworkPolicyServiceService.getPolicyStatus, () => GetPolicyStatusResponse.create()));
    const { stdout } = await fakes.podwirectl('policy', 'status');
    expect(stdout).toMatch(/^0 NetworkPolicies, ClusterNetworkPolicy is not installed$/m);
  });

  test('ends with 0 if every node follows and is not behind', async () => {
    const recent = { ...behind, behind: false, behindSince: ago(1) };
    const answer = { nodes: [node('n1'), recent], networkPolicyCount: 2, clusterNetworkPolicyCount: 1 };
    await fakes.serve(
      fake(NetworkPolicyServiceService.getPolicyStatus, () => GetPolicyStatusResponse.fromPartial(answer)),
    );
    const { exitCode, stdout } = await fakes.podwirectl('policy', 'status');
    expect(exitCode).toBe(0);
    expect(stdout).toMatch(/^n2 +following /m);
    expect(stdout).toMatch(/^2 NetworkPolicies, 1 ClusterNetworkPolicy$/m);
    const json = await fakes.podwirectl('policy', 'status', '-o', 'json');
    expect(JSON.parse(json.stdout)).toMatchObject({ nodes: [{ acknowledgedNumber: '42' }, { name: 'n2' }] });
  });
});
