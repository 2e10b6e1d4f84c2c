import { mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { GetNodeStatusResponse, NodeServiceService, RoutingState } from '@podwire/proto/podwire/dataplane/v1/node';
import {
  CheckPodResponse,
  DetachPodResponse,
  ListPodsResponse,
  PodServiceService,
  type Bandwidth,
} from '@podwire/proto/podwire/dataplane/v1/pod';
import { AddressServiceService, AddressState, GetAddressResponse } from '@podwire/proto/podwire/ipam/v1/address';
import { BlockServiceService, ListBlocksResponse } from '@podwire/proto/podwire/ipam/v1/block';
import { EndpointServiceService, ListEndpointsResponse } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';

import { fake, Fakes } from '../../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const requestsTo = (method: string) =>
  fakes.calls.filter((call) => call.method === method).map(({ request }) => request);

const attachmentOf = (containerId: string, network = 'net') => ({ network, containerId, interfaceName: 'eth0' });
const podOf = (containerId: string, network?: string) => ({
  attachment: attachmentOf(containerId, network),
  hostInterface: { name: `podw-${containerId}`, mtuBytes: 1500 },
  addresses: [`10.65.0.${containerId.length}/32`],
  up: true,
});
const listing = (
  ...pods: (ReturnType<typeof podOf> & { bandwidth?: Bandwidth; podNamespace?: string; podName?: string })[]
) => fake(PodServiceService.listPods, () => ListPodsResponse.fromPartial({ pods }));

describe('node status', () => {
  const status = {
    nodeName: 'node-1',
    routing: 'native',
    routingState: RoutingState.ROUTING_STATE_AS_WANTED,
    podMtuBytes: 1450,
    attachmentCount: 3,
    leaseCount: 11,
    unboundCount: 1,
    driftCount: 2n,
    podRepairCount: 3n,
  };

  test('of a node without conditions', async () => {
    await fakes.serve(fake(NodeServiceService.getNodeStatus, () => GetNodeStatusResponse.fromPartial(status)));
    const { exitCode, stdout } = await fakes.podwirectl('node', 'status');
    expect([exitCode, stdout]).toEqual([0, expect.stringContaining('conditions: none')]);
    expect(stdout).toMatch(/^Routing +native, as-wanted$/m);
    expect(stdout).toMatch(/^Leases +11 addresses, 1 pod to bind, 0 pods to return$/m);
    expect(stdout).toMatch(/^Repairs +2 of routes and tunnels, 3 of pods since podwire-node started$/m);
    expect(stdout).not.toContain('TUNNEL');
  });

  test('of a node with a condition, with its tunnels and sessions', async () => {
    const tunnels = [{ name: 'podwire.vxlan4', kind: 'vxlan', mtuBytes: 1450 }];
    const bgpSessions = [{ neighbour: '192.0.2.8', about: 'node b', state: 'Active' }];
    const conditions = [{ reason: 'IpamUnreachable', message: 'podwire-ipam does not answer' }];
    const whole = { ...status, tunnels, bgpSessions, conditions, wanted: { routes: 4, tunnels: 1, peers: 2 } };
    await fakes.serve(fake(NodeServiceService.getNodeStatus, () => GetNodeStatusResponse.fromPartial(whole)));
    const { exitCode, stdout } = await fakes.podwirectl('node', 'status');
    expect(exitCode).toBe(4);
    expect(stdout).toMatch(/^Wanted +4 routes, 1 tunnel, 2 tunnel peers$/m);
    expect(stdout).toMatch(/^IpamUnreachable +podwire-ipam does not answer$/m);
    expect(stdout).toMatch(/^192\.0\.2\.8 +node b +Active +0 +0$/m);
    expect(stdout).toMatch(/^podwire\.vxlan4 +vxlan +- +- +1450$/m);
  });
});

const READINESS = z.object({
  ready: z.boolean(),
  passed: z.boolean(),
  checks: z.array(z.object({ check: z.string(), result: z.string(), detail: z.string() })),
});

describe('node ready', () => {
  const conflist = {
    cniVersion: '1.0.0',
    name: 'net',
    plugins: [{ type: 'portmap' }, { type: 'podwire', ipam: { assign_ipv6: 'true' } }],
  };
  let file: string;
  let programs: string;
  beforeEach(() => {
    file = join(fakes.folder, 'net.conflist');
    writeFileSync(file, JSON.stringify(conflist));
    programs = join(fakes.folder, 'bin');
    mkdirSync(programs);
    for (const name of ['podwire', 'portmap', 'loopback']) addProgram(name, '1.0.0', '1.1.0');
  });
  const addProgram = (name: string, ...supportedVersions: string[]) =>
    writeFileSync(join(programs, name), `#!/bin/sh\necho '${JSON.stringify({ supportedVersions })}'\n`, {
      mode: 0o755,
    });
  const ready = (...args: string[]) =>
    fakes.podwirectl('node', 'ready', '--config', file, '--bin-dir', programs, ...args);

  test('calls STATUS as the runtime does, with Podwire’s member of the network', async () => {
    const sent: string[] = [];
    await fakes.servePlugin((line, body) => {
      sent.push(line, body);
      return '';
    });
    const { exitCode, stdout } = await ready();
    expect(exitCode).toBe(0);
    const results = stdout.split('\n').map((row) => row.replaceAll(/ +/g, ' '));
    expect(results.slice(0, 3)).toEqual([
      'CHECK RESULT DETAIL',
      'status ok pods can be added',
      'runtime ok STATUS reports the node as ready',
    ]);
    const [line, body] = sent;
    expect(line).toBe('POST /cni STATUS /opt/cni/bin strict');
    expect(JSON.parse(body!)).toEqual({
      cniVersion: '1.1.0',
      name: 'net',
      type: 'podwire',
      ipam: { assign_ipv6: 'true' },
    });
  });

  /** Result and detail of the checks that failed. */
  async function failuresOf(...args: string[]) {
    const { exitCode, stdout } = await ready('-o', 'json', ...args);
    const { ready: isReady, passed, checks } = READINESS.parse(JSON.parse(stdout));
    expect([exitCode, passed]).toEqual([4, false]);
    const failures = checks.filter(({ result }) => result === 'failed');
    return { isReady, failures: failures.map(({ check, detail }) => `${check}: ${detail}`) };
  }
  const NOT_READY = 'runtime: NetworkPluginNotReady: the other checks say why';

  test.each([50, 51])('exits with 4 and the reason where the node is not ready: CNI code %d', async (code) => {
    await fakes.servePlugin(() => [500, JSON.stringify({ code, msg: 'no pool' })]);
    expect(await failuresOf()).toEqual({ isReady: false, failures: ['status: no pool', NOT_READY] });
  });

  test('exits with 4 while a firewall drops the packets of pods, though pods can be added', async () => {
    const conditions = [
      { reason: 'ForwardDropped', message: 'chain FORWARD drops packets; run: iptables …' },
      { reason: 'NotOnLink', message: 'no route' },
    ];
    await fakes.servePlugin(() => '');
    await fakes.serve(fake(NodeServiceService.getNodeStatus, () => GetNodeStatusResponse.fromPartial({ conditions })));
    const failures = ['firewall: chain FORWARD drops packets; run: iptables …'];
    expect(await failuresOf()).toEqual({ isReady: true, failures });
  });

  test('distinguishes a node that cannot add pods from a node that is not ready', async () => {
    const full = [500, JSON.stringify({ code: 50, msg: 'pool pods has no address left' })] as const;
    await fakes.servePlugin((line) => (line.includes('strict') ? full : ''));
    expect(await failuresOf()).toEqual({ isReady: true, failures: ['status: pool pods has no address left'] });
  });

  test('reads the directories of the installation', async () => {
    await fakes.servePlugin(() => '');
    const env = { CNI_BIN_DIR: programs, CNI_NET_DIR: fakes.folder, CNI_CONF_NAME: 'net.conflist' };
    expect(await fakes.podwirectlWith(env, 'node', 'ready')).toMatchObject({ exitCode: 0 });
    expect(await fakes.podwirectlWith({ ...env, CNI_BIN_DIR: '/none' }, 'node', 'ready')).toMatchObject({
      exitCode: 4,
      stdout: expect.stringContaining('missing in /none'),
    });
  });

  test('reports versions that the configuration offers and a program of the chain lacks', async () => {
    await fakes.servePlugin(() => '');
    writeFileSync(file, JSON.stringify({ ...conflist, cniVersions: ['1.0.0', '1.1.0'] }));
    expect(await ready()).toMatchObject({ exitCode: 0 });
    rmSync(join(programs, 'portmap'));
    symlinkSync('/usr/lib/cni/portmap', join(programs, 'portmap'));
    expect(await failuresOf()).toEqual({
      isReady: false,
      failures: [
        NOT_READY,
        expect.stringMatching(
          /^configuration: .*net\.conflist offers CNI .*portmap lacks CNI 1\.1\.0.*podwire install/,
        ),
      ],
    });
  });

  test.each([
    ['loopback', /^programs: program loopback.* is missing/],
    ['portmap', /^programs: program portmap of the chain is missing/],
  ])('reports the missing program %s', async (name, text) => {
    await fakes.servePlugin(() => '');
    rmSync(join(programs, name));
    expect(await failuresOf()).toEqual({ isReady: true, failures: [expect.stringMatching(text)] });
  });

  test('reports a refusal of the plugin as a failure', async () => {
    await fakes.servePlugin(() => [500, '{"code":7,"msg":"ipam is no object"}']);
    expect(await ready()).toMatchObject({ exitCode: 2, stderr: expect.stringContaining('ipam is no object') });
  });

  test.each([
    ['without another fault', '', /^configuration: .*net\.conflist does not exist, .*; run "podwire install"/],
    ['without a pool', 'no pool', /^configuration: .*net\.conflist does not exist, .*; correct status first/],
  ])('exits with 4 without a network configuration, %s', async (_, fault, text) => {
    rmSync(file);
    await fakes.servePlugin(() => (fault === '' ? '' : [500, JSON.stringify({ code: 50, msg: fault })]));
    const status = fault === '' ? [] : [`status: ${fault}`];
    expect(await failuresOf()).toEqual({
      isReady: false,
      failures: [...status, NOT_READY, expect.stringMatching(text)],
    });
  });

  test.each([
    ['has no name', '{}', 'not a network configuration'],
    ['is not JSON', '{', 'not a network configuration'],
    ['has no plugin', '{"name":"net","plugins":[]}', 'has no plugin'],
  ])('exits with 2 where the configuration %s', async (_, content, text) => {
    writeFileSync(file, content);
    expect(await ready()).toMatchObject({ exitCode: 2, stderr: expect.stringContaining(text) });
  });

  test('exits with 5 where the plugin is unreachable', async () => {
    expect(await ready()).toMatchObject({ exitCode: 5, stderr: expect.stringContaining('podwire-node at ') });
  });
});

describe('pods', () => {
  const difference = { object: 'pod route default', wanted: 'present', actual: 'missing' };

  test('are listed', async () => {
    const endpoints = [{ attachment: attachmentOf('bb'), pod: { namespace: 'default', name: 'web-0' } }];
    await fakes.serve(
      listing(podOf('a'), { ...podOf('bb'), up: false }),
      fake(NodeServiceService.getNodeStatus, () => GetNodeStatusResponse.fromPartial({ nodeName: 'node-1' })),
      fake(EndpointServiceService.listEndpoints, () => ListEndpointsResponse.fromPartial({ endpoints })),
    );
    const { stdout, stderr } = await fakes.podwirectl('pods');
    expect(requestsTo('ListEndpoints')).toMatchObject([{ nodeName: 'node-1' }]);
    expect(stdout).toMatch(/^net\/a\/eth0 +podw-a +up +10\.65\.0\.1$/m);
    expect(stdout).toMatch(/^default\/web-0 +podw-bb +down +10\.65\.0\.2$/m);
    expect(stderr).toContain('pods check');
  });

  test('are listed with the names of the node’s records while podwire-ipam does not answer', async () => {
    await fakes.serve(listing({ ...podOf('a'), podNamespace: 'default', podName: 'web-0' }));
    const { stdout, stderr } = await fakes.podwirectl('pods');
    expect([stdout, stderr]).toEqual([expect.stringMatching(/^default\/web-0 +podw-a /m), '']);
  });

  test('of usual names fit a terminal of 100 columns', async () => {
    const podName = 'checkout-frontend-7d4b9c6f5d-x2x7q';
    const wire = { ...podOf('c'.repeat(64)), podNamespace: 'production', podName };
    const interfaceOf = { name: 'podw0123456789a', mtuBytes: 1500 };
    await fakes.serve(
      listing({ ...wire, hostInterface: interfaceOf, addresses: ['10.244.112.201/32', '2001:db8::2c9/128'] }),
    );
    const lines = (await fakes.podwirectl('pods')).stdout.split('\n');
    expect(Math.max(...lines.map(({ length }) => length))).toBeLessThanOrEqual(100);
  });

  test('are listed with their limits', async () => {
    const ingress = { rateBitsPerSecond: 10_000_000n, burstBits: 0n };
    const egress = { rateBitsPerSecond: 5_000_000n, burstBits: 1_000_000n };
    await fakes.serve(
      listing(podOf('a'), { ...podOf('bb'), bandwidth: { ingress, egress } }),
      fake(NodeServiceService.getNodeStatus, () => GetNodeStatusResponse.fromPartial({ nodeName: 'node-1' })),
      fake(EndpointServiceService.listEndpoints, () => ListEndpointsResponse.fromPartial({})),
    );
    const { stdout } = await fakes.podwirectl('pods', '-o', 'wide');
    expect(stdout).toMatch(/MTU +INGRESS +EGRESS +ATTACHMENT/);
    expect(stdout).toMatch(/ 1500 +unlimited +unlimited +net\/a\/eth0$/m);
    expect(stdout).toMatch(/ 1500 +10M +5M burst 1M +net\/bb\/eth0$/m);
    const { pods } = JSON.parse((await fakes.podwirectl('pods', '-o', 'json')).stdout);
    expect(pods[1].bandwidth).toEqual({
      ingress: { rateBitsPerSecond: '10000000', burstBits: '0' },
      egress: { rateBitsPerSecond: '5000000', burstBits: '1000000' },
    });
  });

  test('are checked and repaired against their recorded state; the other pods are still checked after a failure', async () => {
    const answer = CheckPodResponse.fromPartial({ differences: [difference], moreDifferences: 3900 });
    const check = ({ recorded }: { recorded?: { containerId: string } | undefined }) => {
      if (recorded?.containerId === 'a') throw new Failure('ATTACHMENT_NOT_FOUND', 'not recorded');
      return recorded?.containerId === 'bb' ? answer : CheckPodResponse.fromPartial({});
    };
    await fakes.serve(
      listing(podOf('a'), podOf('bb'), podOf('ccc')),
      fake(PodServiceService.checkPod, check),
      fake(PodServiceService.repairPod, check),
    );
    const { exitCode, stdout, stderr } = await fakes.podwirectl('pods', 'check');
    expect([exitCode, stderr]).toEqual([4, expect.stringContaining('2 of 3 pods differ')]);
    expect(stdout).toMatch(/^pod route default +present +missing +net\/bb\/eth0$/m);
    expect(stdout).toMatch(/^3900 more differences +- +- +net\/bb\/eth0$/m);
    expect(stdout).toMatch(/^not recorded \(ATTACHMENT_NOT_FOUND\) +- +- +net\/a\/eth0$/m);
    expect(await fakes.podwirectl('pods', 'check', 'ccc')).toMatchObject({ exitCode: 0 });
    expect(await fakes.podwirectl('pods', 'repair')).toMatchObject({ exitCode: 1 });
    const repaired = await fakes.podwirectl('pods', 'repair', 'bb', '-o', 'json');
    expect(repaired).toMatchObject({ exitCode: 0 });
    expect(JSON.parse(repaired.stdout)).toEqual({
      pods: [{ attachment: 'net/bb/eth0', repair: { differences: [difference], moreDifferences: 3900 }, fault: null }],
    });
  });

  test.each(['net/bb/eth0', 'bb', 'podw-bb', '10.65.0.2', '10.65.0.2/32'])('are selected by %s', async (choice) => {
    await fakes.serve(
      listing(podOf('a'), podOf('bb')),
      fake(PodServiceService.checkPod, () => CheckPodResponse.fromPartial({})),
    );
    expect(await fakes.podwirectl('pods', 'check', choice)).toMatchObject({ exitCode: 0 });
    expect(requestsTo('CheckPod')).toEqual([{ recorded: attachmentOf('bb') }]);
  });

  test('are selected by namespace and name, which IPAM knows', async () => {
    const endpoints = [{ attachment: attachmentOf('bb') }, { attachment: attachmentOf('elsewhere') }];
    await fakes.serve(
      listing(podOf('a'), podOf('bb')),
      fake(PodServiceService.checkPod, () => CheckPodResponse.fromPartial({})),
      fake(EndpointServiceService.listEndpoints, ({ podName }) =>
        ListEndpointsResponse.fromPartial({ endpoints: podName === 'web-0' ? endpoints : [] }),
      ),
    );
    expect(await fakes.podwirectl('pods', 'check', 'default/web-0')).toMatchObject({ exitCode: 0 });
    expect(requestsTo('CheckPod')).toEqual([{ recorded: attachmentOf('bb') }]);
    expect(requestsTo('ListEndpoints')).toMatchObject([{ namespace: 'default', podName: 'web-0' }]);
    expect(await fakes.podwirectl('pods', 'check', 'default/gone')).toMatchObject({ exitCode: 3 });
    // An address is not looked up as the name of a pod.
    expect(await fakes.podwirectl('pods', 'check', '10.65.9.9/32')).toMatchObject({ exitCode: 3 });
    expect(requestsTo('ListEndpoints')).toHaveLength(2);
  });

  test('an argument that matches no pod, or several containers, is refused', async () => {
    await fakes.serve(listing(podOf('abc1'), podOf('abc2')));
    expect(await fakes.podwirectl('pods', 'check', 'x')).toMatchObject({ exitCode: 3 });
    const several = await fakes.podwirectl('pods', 'repair', 'abc');
    expect(several).toMatchObject({ exitCode: 2, stderr: expect.stringContaining('matches 2 containers') });
  });
});

describe('gc', () => {
  const status = fake(NodeServiceService.getNodeStatus, () =>
    GetNodeStatusResponse.fromPartial({ nodeName: 'node-1' }),
  );
  const detach = fake(PodServiceService.detachPod, () => DetachPodResponse.fromPartial({ removed: true }));
  /** IPAM's answer for each address, given without prefix length; other addresses are free. */
  const addresses = (holders: Readonly<Record<string, string>> = {}) =>
    fake(AddressServiceService.getAddress, ({ address }) => {
      const handleId = holders[address];
      const state = handleId === undefined ? AddressState.ADDRESS_STATE_FREE : AddressState.ADDRESS_STATE_ALLOCATED;
      return GetAddressResponse.fromPartial({ state, ...(handleId !== undefined && { holder: { handleId } }) });
    });
  /** IPAM where these containers hold addresses; the list contains only the first. */
  const ipam = (...containers: string[]) => [
    fake(EndpointServiceService.listEndpoints, () =>
      ListEndpointsResponse.fromPartial({
        endpoints: [
          ...containers.slice(0, 1).map((containerId) => ({
            attachment: attachmentOf(containerId),
            addresses: [{ address: '10.65.0.9/32' }],
          })),
          // Written by another writer.
          { namespace: 'default', name: 'node--1-k8s-calico-eth0', addresses: [{ address: '10.65.0.10/32' }] },
        ],
      }),
    ),
    fake(AddressServiceService.getEndpoint, ({ attachment }) => {
      if (!containers.includes(attachment?.containerId ?? '')) throw new Failure('ENDPOINT_NOT_FOUND', 'none');
      return { endpoint: undefined };
    }),
  ];

  test('keeps a wire whose address is allocated to another attachment, as with Calico’s plugin', async () => {
    const calico = { 'k8s-pod-network.1': '10.65.0.3', 'k8s-pod-network.2': '10.65.0.5' };
    const wires = [podOf('abc', 'calico'), podOf('defgh', 'calico'), podOf('x', 'calico')];
    await fakes.serve(
      listing(...wires),
      status,
      detach,
      addresses(Object.fromEntries(Object.entries(calico).map(([handle, address]) => [address, handle]))),
      fake(EndpointServiceService.listEndpoints, () =>
        ListEndpointsResponse.fromPartial({
          endpoints: [{ attachment: attachmentOf('1', 'k8s-pod-network'), addresses: [{ address: '10.65.0.3/32' }] }],
        }),
      ),
      fake(AddressServiceService.getEndpoint, () => {
        throw new Failure('ENDPOINT_NOT_FOUND', 'none');
      }),
    );
    const preview = await fakes.podwirectl('gc');
    expect(preview).toMatchObject({ exitCode: 2, stdout: expect.stringMatching(/^calico\/x\/eth0$/m) });
    expect(preview.stdout).not.toMatch(/calico\/(abc|defgh)|SKIPPED NETWORK/);
    expect(preview.stdout).toContain('addresses without a wire: none');
    expect(preview.stderr).not.toMatch(/--network|release attachment/);
    await fakes.podwirectl('gc', '--network', 'calico', '--yes');
    expect(requestsTo('DetachPod')).toEqual([{ attachment: attachmentOf('x', 'calico'), hostInterfaceName: '' }]);
  });

  test('keeps a wire whose address is leased, as IPAM may not know the pod yet', async () => {
    await fakes.serve(
      listing(podOf('abc')),
      status,
      fake(AddressServiceService.getAddress, () =>
        GetAddressResponse.fromPartial({ state: AddressState.ADDRESS_STATE_LEASED }),
      ),
      ...ipam(),
    );
    const { exitCode, stdout } = await fakes.podwirectl('gc');
    expect([exitCode, stdout]).toEqual([0, expect.not.stringContaining('abc')]);
  });

  test('with the certificate of a node reads the blocks, as it may not query addresses', async () => {
    const blockOf = (address: string) => ({ allocations: [{ address }] });
    await fakes.serve(
      listing(podOf('abc', 'calico'), podOf('defgh', 'calico'), podOf('x', 'calico')),
      status,
      fake(AddressServiceService.getAddress, (): GetAddressResponse => {
        throw new Failure('ACCESS_DENIED', 'node "node-1": may not call GetAddress');
      }),
      fake(BlockServiceService.listBlocks, ({ pageToken }) =>
        ListBlocksResponse.fromPartial(
          pageToken === ''
            ? { blocks: [blockOf('10.65.0.3')], nextPageToken: 'second' }
            : { blocks: [blockOf('10.65.0.5')] },
        ),
      ),
      fake(EndpointServiceService.listEndpoints, () => ListEndpointsResponse.fromPartial({})),
      fake(AddressServiceService.getEndpoint, () => {
        throw new Failure('ENDPOINT_NOT_FOUND', 'none');
      }),
    );
    const preview = await fakes.podwirectl('gc');
    expect(preview).toMatchObject({ exitCode: 2, stdout: expect.stringMatching(/^calico\/x\/eth0$/m) });
    expect(preview.stdout).not.toMatch(/calico\/(abc|defgh)/);
    expect([requestsTo('GetAddress').length, requestsTo('ListBlocks').length]).toEqual([1, 2]);
  });

  test('removes only orphaned wires, after confirmation', async () => {
    await fakes.serve(
      listing(podOf('held'), podOf('late'), podOf('orphan'), podOf('x', 'other')),
      status,
      detach,
      addresses(),
      ...ipam('held', 'late'),
    );
    const preview = await fakes.podwirectl('gc');
    expect(preview).toMatchObject({ exitCode: 2, stdout: expect.stringContaining('net/orphan/eth0') });
    expect(preview.stdout).not.toMatch(/net\/held|net\/late|other\/x/);
    expect(requestsTo('DetachPod')).toEqual([]);
    const done = await fakes.podwirectl('gc', '--yes');
    expect(done).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/^removed +net\/orphan\/eth0$/m) });
    expect(requestsTo('DetachPod')).toEqual([{ attachment: attachmentOf('orphan'), hostInterfaceName: '' }]);
  });

  test('removes wires of another IPAM plugin’s network only with --network', async () => {
    await fakes.serve(listing(podOf('x', 'other')), status, detach, addresses(), ...ipam());
    const kept = await fakes.podwirectl('gc', '--yes');
    expect(kept).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/^other +1$/m) });
    expect(kept.stdout).not.toContain('orphaned wires: none');
    expect(kept.stderr).toContain('podwirectl gc --network other\n');
    expect(requestsTo('DetachPod')).toEqual([]);
    const preview = await fakes.podwirectl('gc', '--network', 'other');
    expect(preview.stderr).toContain('to execute it: podwirectl gc --network other --yes\n');
    await fakes.podwirectl('gc', '--yes', '--network', 'other');
    expect(requestsTo('DetachPod')).toHaveLength(1);
  });

  test('lists addresses without a wire, and keeps them', async () => {
    await fakes.serve(listing(), status, detach, ...ipam('gone'));
    const { exitCode, stdout, stderr } = await fakes.podwirectl('gc');
    expect(exitCode).toBe(0);
    expect(stdout).toMatch(/^10\.65\.0\.9\/32 +- +net\/gone\/eth0$/m);
    expect(stdout).not.toContain('10.65.0.10');
    expect(stderr).toContain('podwirectl release attachment net/gone/eth0 --yes');
  });
});

describe('an unreachable service', () => {
  test.each([
    ['get pools', '--ipam'],
    ['node status', '--dataplane'],
    ['journal', '--plugin'],
  ])('fails %s immediately, and the error names the option', async (line, option) => {
    const { exitCode, stderr } = await fakes.podwirectl(...line.split(' '));
    expect([exitCode, stderr]).toEqual([5, expect.stringContaining('the socket does not exist')]);
    expect(stderr).toContain(option);
  });

  test('by host and port, and one that does not answer in time', async () => {
    const refused = await fakes.podwirectl('get', 'pools', '--ipam', '127.0.0.1:1');
    expect(refused).toMatchObject({ exitCode: 5, stderr: expect.stringContaining('podwire-ipam at 127.0.0.1:1') });
    await fakes.servePlugin(() => '{}');
    const silent = await fakes.podwirectl('get', 'pools', '--ipam', `unix:${fakes.pluginSocket}`, '--timeout', '300ms');
    expect(silent).toMatchObject({ exitCode: 5 });
  });

  test('another program at the address', async () => {
    await fakes.serve();
    const journal = await fakes.podwirectl('journal', '--plugin', fakes.socket);
    expect([journal.exitCode, journal.stderr]).toEqual([5, expect.stringMatching(/another program.*--plugin/)]);
    const pools = await fakes.podwirectl('get', 'pools');
    expect([pools.exitCode, pools.stderr]).toEqual([1, expect.stringContaining('another service')]);
  });

  test('an invalid variable is refused, and the error names it', async () => {
    const { exitCode, stderr } = await fakes.podwirectlWith({ PODWIRE_NODE_CNI_SOCKET: 'here' }, 'journal');
    expect([exitCode, stderr]).toEqual([1, expect.stringContaining('PODWIRE_NODE_CNI_SOCKET is "here"')]);
  });
});
