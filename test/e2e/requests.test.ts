import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';

import { allocations, footprint } from '../support/leftovers.js';
import { callCni, makePod, removePod, type CniCall, type Pod } from '../support/pods.js';
import { pings, rpc, run } from '../support/programs.js';
import { Stack } from '../support/stack.js';

/** Requests of pods, from the runtime to the kernel. */

interface Result {
  readonly interfaces: readonly { readonly name: string; readonly mac: string }[];
  readonly ips: readonly { readonly address: string }[];
}

const MAC = '02:00:00:00:00:07';
const CAPABILITY = 'io.kubernetes.cri.pod-annotations';

const stack = new Stack();
const pods: Pod[] = [];

function pod(name: string): Pod {
  const made = makePod(name);
  pods.push(made);
  return made;
}

const call = (command: string, target: Pod, rest: Partial<CniCall> = {}) =>
  callCni({ command, pod: target, socket: stack.sockets.node, ...rest });

async function add(target: Pod, rest: Partial<CniCall>): Promise<Result> {
  const answer = await call('ADD', target, rest);
  expect(answer, answer.stdout).toMatchObject({ exitCode: 0, stderr: '' });
  return JSON.parse(answer.stdout);
}

async function refusal(target: Pod, rest: Partial<CniCall>): Promise<{ code: number; msg: string }> {
  const answer = await call('ADD', target, rest);
  expect(answer, answer.stdout).toMatchObject({ exitCode: 1, stderr: '' });
  return JSON.parse(answer.stdout);
}

const addressesOf = ({ ips }: Result) => ips.map(({ address }) => address);
const annotated = (annotations: Readonly<Record<string, string>>, config: object = {}): Partial<CniCall> => ({
  config: { ...config, runtimeConfig: { [CAPABILITY]: annotations } },
});

/** The changes of an ADD to the node and to the pod. */
const kernel = async ({ name }: Pod) => ({
  ...(await footprint(stack)),
  neighbours: undefined,
  pod: run('ip', '-n', name, '-o', 'link', 'show'),
});

beforeAll(async () => {
  await stack.start();
  for (const pool of [
    { name: 'second', cidr: '10.66.0.0/24' },
    { name: 'sixth', cidr: 'fd66::/64' },
  ]) {
    rpc(stack.sockets.ipam, 'podwire.ipam.v1.PoolService/CreatePool', { pool });
  }
});

afterEach(async () => {
  for (const each of pods.splice(0)) {
    expect(await call('DEL', each)).toEqual({ exitCode: 0, stdout: '', stderr: '' });
    removePod(each);
  }
  expect(await allocations(stack)).toEqual([]);
});

afterAll(() => stack.destroy());

describe('a pod gets', () => {
  test('addresses of the configured pools, of both families', async () => {
    const ipam = { type: 'calico-ipam', assign_ipv6: 'true', ipv4_pools: ['10.66.0.0/24'], ipv6_pools: ['sixth'] };
    const result = await add(pod('e2e-pools'), { config: { type: 'calico', ipam } });
    expect(addressesOf(result)).toEqual([expect.stringMatching(/^10\.66\.0\./), expect.stringMatching(/^fd66:/)]);
  });

  test('an address of its annotated pool', async () => {
    const request = annotated({ 'cni.projectcalico.org/ipv4pools': '["second"]' });
    expect(addressesOf(await add(pod('e2e-annotated-pool'), request))).toEqual([expect.stringMatching(/^10\.66\.0\./)]);
  });

  test('the address and the MAC address of CNI_ARGS, which the node reaches', async () => {
    const target = pod('e2e-args');
    const result = await add(target, { env: { CNI_ARGS: `IP=10.66.0.77;MAC=${MAC}` } });
    expect(addressesOf(result)).toEqual(['10.66.0.77/32']);
    expect(result.interfaces.map(({ mac }) => mac)).toEqual(['ee:ee:ee:ee:ee:ee', MAC]);
    expect(run('ip', '-n', target.name, '-o', 'link', 'show', 'eth0')).toContain(MAC);
    expect(pings('10.66.0.77', stack.netnsPath)).toBe(true);
    const config = { prevResult: result };
    expect(await call('CHECK', target, { config })).toEqual({ exitCode: 0, stdout: '', stderr: '' });
  });

  test('addresses of both families by its annotation', async () => {
    const request = annotated({ 'cni.projectcalico.org/ipAddrs': '["10.66.0.78","fd66::78"]' });
    expect(addressesOf(await add(pod('e2e-both'), request))).toEqual(['10.66.0.78/32', 'fd66::78/128']);
  });

  test('addresses without IPAM, where that is allowed', async () => {
    const annotations = { 'cni.projectcalico.org/ipAddrsNoIpam': '["10.77.0.7"]' };
    const target = pod('e2e-no-ipam');
    expect((await refusal(target, annotated(annotations))).msg).toContain('feature_control.ip_addrs_no_ipam');
    const request = annotated(annotations, { feature_control: { ip_addrs_no_ipam: true } });
    expect(addressesOf(await add(target, request))).toEqual(['10.77.0.7/32']);
    expect(await allocations(stack)).toEqual([]);
    expect(pings('10.77.0.7', stack.netnsPath)).toBe(true);
  });
});

describe('by a request policy', () => {
  const PREFIX = 'cni.projectcalico.org/';
  const asking = (namespace: string, annotations: Readonly<Record<string, string>>, rest: object = {}) => {
    const named = Object.fromEntries(Object.entries(annotations).map(([name, value]) => [PREFIX + name, value]));
    const CNI_ARGS = `IgnoreUnknown=1;K8S_POD_NAMESPACE=${namespace};K8S_POD_NAME=web-0`;
    return { ...annotated(named, { feature_control: GATES, ...rest }), env: { CNI_ARGS } };
  };
  const GATES = { ip_addrs_no_ipam: true, allowed_source_prefixes: true };

  beforeAll(() => {
    const policies = [
      {
        name: 'closed',
        pools: {},
        addresses: {},
        addresses_without_ipam: {},
        mac_addresses: {},
        source_prefixes: {},
      },
      {
        name: 'red',
        namespaces: ['red'],
        pools: { names: ['second'] },
        mac_addresses: { ranges: ['02:00:00:00:00:00/16'] },
        source_prefixes: { cidrs: ['10.8.0.0/16'] },
        addresses_without_ipam: { cidrs: ['10.77.0.0/24'] },
      },
    ];
    for (const request_policy of policies)
      rpc(stack.sockets.ipam, 'podwire.ipam.v1.RequestPolicyService/CreateRequestPolicy', { request_policy });
  });

  afterAll(() => {
    for (const name of ['closed', 'red'])
      rpc(stack.sockets.ipam, 'podwire.ipam.v1.RequestPolicyService/DeleteRequestPolicy', { name });
  });

  test('a namespace gets allowed requests', async () => {
    const target = pod('e2e-policy-red');
    const requested = { ipv4pools: '["second"]', hwAddr: MAC, allowedSourcePrefixes: '["10.8.3.0/24"]' };
    const result = await add(target, asking('red', requested));
    expect(addressesOf(result)).toEqual([expect.stringMatching(/^10\.66\.0\./)]);
    expect(run('ip', '-n', target.name, '-o', 'link', 'show', 'eth0')).toContain(MAC);
    expect(addressesOf(await add(pod('e2e-policy-own'), asking('red', { ipAddrsNoIpam: '["10.77.0.9"]' })))).toEqual([
      '10.77.0.9/32',
    ]);
  });

  test.each([
    ['blue', { ipv4pools: '["second"]' }, 'pool "second"'],
    ['red', { ipFamilies: '["IPv6"]', ipv6pools: '["sixth"]' }, 'allow it only pools "second"'],
    ['blue', { ipAddrs: '["10.66.0.9"]' }, 'address 10.66.0.9'],
    ['red', { hwAddr: '02:01:00:00:00:07' }, 'MAC address 02:01:00:00:00:07'],
    ['red', { allowedSourcePrefixes: '["10.0.0.0/8"]' }, 'allow it only source prefixes 10.8.0.0/16'],
    ['red', { ipAddrsNoIpam: '["10.78.0.9"]' }, 'allow it only addresses without IPAM 10.77.0.0/24'],
  ])('namespace %s is refused %j, and nothing changes', async (namespace, requested, message) => {
    const target = pod('e2e-policy-no');
    const before = await kernel(target);
    expect(await refusal(target, asking(namespace, requested))).toMatchObject({
      code: 109,
      msg: expect.stringContaining(message),
    });
    expect(await kernel(target)).toEqual(before);
    expect(await allocations(stack)).toEqual([]);
  });

  test('the network’s configuration is not evaluated', async () => {
    const request = asking('blue', {}, { ipam: { type: 'podwire-ipam', ipv4_pools: ['second'] } });
    expect(addressesOf(await add(pod('e2e-policy-conf'), request))).toEqual([expect.stringMatching(/^10\.66\.0\./)]);
  });
});

describe('a pod is refused, and gets nothing, for', () => {
  test('floating IPs', async () => {
    const target = pod('e2e-floating');
    const before = await kernel(target);
    expect(await refusal(target, annotated({ 'cni.projectcalico.org/floatingIPs': '["192.0.2.7"]' }))).toMatchObject({
      code: 7,
      msg: expect.stringMatching(
        /floatingIPs requests floating IPs \(192\.0\.2\.7\), which Podwire does not support.*remove it/,
      ),
    });
    expect(await kernel(target)).toEqual(before);
  });

  test('a pool of the other family, whatever its name suggests', async () => {
    const pools = {
      'cni.projectcalico.org/ipv4pools': '["sixth"]',
      'cni.projectcalico.org/ipFamilies': '["IPv4","IPv6"]',
    };
    const { code, msg } = await refusal(pod('e2e-other-family'), annotated(pools));
    expect([code, msg]).toEqual([7, expect.stringContaining('requested as an IPv4 pool')]);
  });

  test('an address of another pod', async () => {
    const env = { CNI_ARGS: 'IP=10.66.0.79' };
    await add(pod('e2e-first'), { env });
    expect(await refusal(pod('e2e-late'), { env })).toMatchObject({
      code: 106,
      msg: expect.stringContaining('10.66.0.79'),
    });
  });

  test('an unknown pool', async () => {
    const request = annotated({ 'cni.projectcalico.org/ipv4pools': '["third"]' });
    expect((await refusal(pod('e2e-no-pool'), request)).msg).toContain('third');
  });

  test('contradictory addresses, with both sources', async () => {
    const request = { config: { args: { cni: { ips: ['10.66.0.80'] } }, runtimeConfig: { ips: ['10.66.0.81'] } } };
    expect(await refusal(pod('e2e-contradiction'), request)).toMatchObject({
      code: 7,
      msg: expect.stringContaining('runtimeConfig.ips requests 10.66.0.81, but args.cni.ips requests 10.66.0.80'),
    });
  });
});
