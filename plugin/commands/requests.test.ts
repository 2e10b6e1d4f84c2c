import { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NOTHING, Plugin, type Command } from '../testing/plugin.js';

/** A pod's requests, as the services receive them. */

const ATTACHMENT = { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' };
const MAC = '02:00:00:00:00:07';
const CAPABILITY = 'io.kubernetes.cri.pod-annotations';

let plugin: Plugin;

beforeEach(async () => {
  plugin = await new Plugin().start();
});

afterEach(() => plugin.end());

async function add(config: Command['config'], rest: Omit<Command, 'config'> = {}) {
  const { exitCode, stdout } = await plugin.run('ADD', { config: { ...config }, ...rest });
  expect(exitCode, stdout).toBe(0);
  return JSON.parse(stdout);
}

const asked = (method: string) =>
  plugin.script.requests.filter((each) => each.method === method).map(({ request }) => request);

describe('ADD asks IPAM for', () => {
  test('nothing where IPAM is not used', async () => {
    const annotations = { 'cni.projectcalico.org/ipAddrsNoIpam': '["192.0.2.7","2001:db8::7"]' };
    const config = { feature_control: { ip_addrs_no_ipam: true }, runtimeConfig: { [CAPABILITY]: annotations } };
    const prevResult = await add(config);
    expect(prevResult.ips).toEqual([
      { interface: 1, address: '192.0.2.7/32' },
      { interface: 1, address: '2001:db8::7/128' },
    ]);
    expect(asked('AttachPod')).toEqual([{ pod: expect.not.objectContaining({ addressesFromIpam: true }) }]);
    expect(prevResult.interfaces).toEqual([
      { name: hostInterfaceName(ATTACHMENT), mac: 'ee:ee:ee:ee:ee:ee' },
      { name: 'eth0', mac: podMac(ATTACHMENT), sandbox: '/run/netns/pod' },
    ]);
    expect(await plugin.run('CHECK', { config: { ...config, prevResult } })).toEqual({ exitCode: 0, stdout: '' });
    expect([...asked('Allocate'), ...asked('GetEndpoint')]).toEqual([]);
    expect(await plugin.run('DEL', { config })).toEqual({ exitCode: 0, stdout: '' });
    expect(plugin.state()).toBe(NOTHING);
  });
});

test('ADD passes MAC address, source prefixes and queues to the dataplane, and so does CHECK', async () => {
  const annotations = {
    'cni.projectcalico.org/hwAddr': MAC.toUpperCase(),
    'cni.projectcalico.org/allowedSourcePrefixes': '["8.8.8.0/24"]',
  };
  const config = {
    num_queues: 4,
    feature_control: { allowed_source_prefixes: true },
    runtimeConfig: { [CAPABILITY]: annotations },
  };
  const prevResult = await add(config);
  expect(prevResult.interfaces[1].mac).toBe(MAC);
  expect((await plugin.run('CHECK', { config: { ...config, prevResult } })).exitCode).toBe(0);
  const sourcePrefix = { family: 4, value: 0x08_08_08_00n, length: 24 };
  const own = { mac: MAC, sourcePrefixes: [sourcePrefix], queueCount: 4, addressesFromIpam: true };
  const pod = expect.objectContaining(own);
  expect([...asked('AttachPod'), ...asked('CheckPod')]).toEqual([{ pod }, { pod }]);
});

test('ADD returns the requested DNS settings in place of earlier plugins’ settings', async () => {
  const dns = { nameservers: ['10.0.0.53'], search: ['cluster.local'] };
  const prevResult = { ips: [], dns: { nameservers: ['192.0.2.53'] }, unknown: 1 };
  expect(await add({ prevResult })).toMatchObject({ dns: prevResult.dns, unknown: 1 });
  for (const cniVersion of ['0.2.0', '0.4.0', '1.1.0']) {
    expect(await add({ cniVersion, prevResult: { ...prevResult, ip4: null }, dns })).toMatchObject({ dns, unknown: 1 });
  }
  const runtimeConfig = { dns: { Servers: ['10.1.0.53'], Searches: [], Options: null } };
  expect(await add({ dns, runtimeConfig })).toMatchObject({ dns: { nameservers: ['10.1.0.53'] } });
  expect(await add({})).not.toHaveProperty('dns');
});

describe('the input of request policies', () => {
  const annotations = {
    'cni.projectcalico.org/hwAddr': MAC,
    'cni.projectcalico.org/ipv4pools': '["b"]',
    'cni.projectcalico.org/allowedSourcePrefixes': '["8.8.8.0/24"]',
  };
  const denial = new Failure('REQUEST_DENIED', 'namespace "default" may not ask for it');

  test('is part of Allocate, with the source of each pool', async () => {
    await add({
      feature_control: { allowed_source_prefixes: true },
      ipam: { assign_ipv6: 'true', ipv6_pools: ['six'] },
      runtimeConfig: { [CAPABILITY]: annotations },
    });
    expect(asked('Allocate')).toEqual([
      expect.objectContaining({
        pools: ['b', 'six'],
        poolChoices: [
          { pool: 'b', family: 4, isConfigured: false },
          { pool: 'six', family: 6, isConfigured: true },
        ],
        requests: {
          families: [],
          addressesWithoutIpam: [],
          macAddress: MAC,
          sourcePrefixes: ['8.8.8.0/24'],
        },
      }),
    ]);
    expect(asked('AuthorizeRequests')).toEqual([]);
  });

  test('is evaluated by a separate call where IPAM allocates nothing, and only then', async () => {
    const config = {
      feature_control: { ip_addrs_no_ipam: true },
      runtimeConfig: { [CAPABILITY]: { 'cni.projectcalico.org/ipAddrsNoIpam': '["192.0.2.7"]' } },
    };
    plugin.script.failNext('AuthorizeRequests', denial);
    const { exitCode, stdout } = await plugin.run('ADD', { config });
    expect([exitCode, JSON.parse(stdout)]).toMatchObject([1, { code: 109, msg: denial.message }]);
    expect(plugin.script.calls).toEqual(['AuthorizeRequests']);
    await add(config);
    expect(asked('AuthorizeRequests').at(-1)).toMatchObject({
      pod: { namespace: 'default', name: 'web-0' },
      requests: { addressesWithoutIpam: ['192.0.2.7'] },
    });
  });

  test.each([
    ['an address', { ipAddrs: '["192.0.2.7"]' }, { addresses: ['192.0.2.7'] }],
    [
      'an address without IPAM',
      { ipAddrsNoIpam: '["192.0.2.7"]' },
      { requests: { addressesWithoutIpam: ['192.0.2.7'] } },
    ],
    ['a MAC address', { hwAddr: MAC }, { requests: { macAddress: MAC } }],
    [
      'source prefixes',
      { allowedSourcePrefixes: '["8.8.8.0/24"]' },
      { requests: { sourcePrefixes: ['8.8.8.0/24'], macAddress: '', families: [] } },
    ],
    ['families', { ipFamilies: '["IPv6"]' }, { requests: { families: [IpFamily.IP_FAMILY_IPV6] } }],
  ])('is evaluated for %s before another IPAM plugin runs', async (_, annotations, message) => {
    const named = Object.entries(annotations).map(([name, value]) => [`cni.projectcalico.org/${name}`, value]);
    const config = {
      ipam: { type: 'false' },
      feature_control: { ip_addrs_no_ipam: true, allowed_source_prefixes: true },
      runtimeConfig: { [CAPABILITY]: Object.fromEntries(named) },
    };
    const variables = { CNI_PATH: '/bin' };
    plugin.script.failNext('AuthorizeRequests', denial);
    const { stdout } = await plugin.run('ADD', { config, variables });
    expect(JSON.parse(stdout)).toMatchObject({ code: 109, msg: denial.message });
    expect(asked('AuthorizeRequests')).toMatchObject([{ pod: { namespace: 'default', name: 'web-0' }, ...message }]);
    expect(plugin.script.calls).toEqual(['AuthorizeRequests']);
  });

  test('is not evaluated for a pod of another IPAM plugin without requests', async () => {
    const { stdout } = await plugin.run('ADD', {
      config: { ipam: { type: 'false' } },
      variables: { CNI_PATH: '/bin' },
    });
    expect(JSON.parse(stdout)).toMatchObject({ code: 108 });
    expect(asked('AuthorizeRequests')).toEqual([]);
  });

  test('is refused, and the attachment keeps what it has', async () => {
    await add({});
    const before = plugin.state();
    plugin.script.failNext('Allocate', denial);
    expect((await plugin.run('ADD', {})).exitCode).toBe(1);
    expect(plugin.state()).toBe(before);
  });
});

test.each([
  ['of two sources that differ', { ips: ['10.65.0.7'] }, 'CNI_ARGS IP requests 10.65.0.8'],
  [
    'for floating IPs',
    { [CAPABILITY]: { 'cni.projectcalico.org/floatingIPs': '["192.0.2.7"]' } },
    'annotation cni.projectcalico.org/floatingIPs requests floating IPs (192.0.2.7), which Podwire does not support',
  ],
])('a refused request %s calls no service', async (_, runtimeConfig, message) => {
  const { exitCode, stdout } = await plugin.run('ADD', {
    config: { runtimeConfig },
    variables: { CNI_ARGS: 'IP=10.65.0.8' },
  });
  expect(exitCode).toBe(1);
  expect(JSON.parse(stdout)).toMatchObject({ code: 7, msg: expect.stringContaining(message) });
  expect(plugin.script.calls).toEqual([]);
  expect(plugin.state()).toBe(NOTHING);
});

describe('a configuration that was written for Calico', () => {
  const CALICO = {
    type: 'calico',
    log_level: 'info',
    log_file_path: '/var/log/calico/cni/cni.log',
    datastore_type: 'kubernetes',
    nodename: 'node-9',
    mtu: 0,
    ipam: { type: 'calico-ipam', assign_ipv4: 'true', assign_ipv6: 'false' },
    policy: { type: 'k8s' },
    kubernetes: { kubeconfig: '/etc/cni/net.d/calico-kubeconfig' },
    device_type: 'veth',
    readiness_gates: [],
    qps: 0,
  };
  const warnings = () => plugin.record.lines().filter(({ level }) => level === 'warn');

  test('works under Calico’s name, and reports once what has no effect', async () => {
    await add(CALICO, { rest: { plugin: 'calico' } });
    await add({ ...CALICO, prevResult: { ips: [] } }, { variables: { CNI_CONTAINERID: 'second' } });
    expect(plugin.state()).toContain('@node-9');
    expect(warnings().map(({ msg }) => msg)).toEqual([
      'the configuration of network net has keys of Calico that Podwire ignores: datastore_type, log_level, log_file_path, policy, kubernetes',
    ]);
    expect((await plugin.run('DEL', { config: CALICO, rest: { plugin: 'calico' } })).exitCode).toBe(0);
  });

  test('may use the old key for the node name', async () => {
    await add({ hostname: 'node-8' });
    expect(plugin.state()).toContain('@node-8');
    await add({ hostname: 'node-8', nodename: 'node-7' }, { variables: { CNI_CONTAINERID: 'second' } });
    expect(plugin.state()).toContain('@node-7');
  });

  test('may have annotations that Calico writes for its own use', async () => {
    const annotations = {
      'cni.projectcalico.org/podIP': '10.65.0.0/32',
      'cni.projectcalico.org/podIPs': '10.65.0.0/32',
      'cni.projectcalico.org/containerID': 'c0ffee',
      'example.org/of-another-project': '',
    };
    await add({ runtimeConfig: { [CAPABILITY]: annotations } });
    expect(warnings()).toEqual([]);
  });

  test.each([
    [{ num_queues: -1 }, /num_queues must be from 0 to 4096/],
    [{ feature_control: { ip_addrs_no_ipam: 1 } }, /feature_control\.ip_addrs_no_ipam must be true or false/],
    [{ hostname: 'A_b' }, /hostname is not a valid name of a Kubernetes node/],
  ])('is refused as %j', async (config, message) => {
    const { stdout } = await plugin.run('ADD', { config });
    expect(JSON.parse(stdout)).toMatchObject({ code: 7, msg: expect.stringMatching(message) });
  });
});
