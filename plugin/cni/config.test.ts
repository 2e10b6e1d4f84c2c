import { describe, expect, test } from 'vitest';

import { isNestedDeeper, readAttachConfig } from './config.js';

/** Every key of Calico's reference, with a value that has an effect there. */
const READ = {
  cniVersion: '1.0.0',
  name: 'k8s-pod-network',
  type: 'calico',
  ipam: { type: 'calico-ipam', assign_ipv4: 'true', assign_ipv6: 'true', ipv4_pools: ['a'], ipv6_pools: ['b'] },
  mtu: 1440,
  num_queues: 2,
  device_type: 'veth',
  nodename: 'node-1',
  hostname: 'node-1',
  feature_control: { ip_addrs_no_ipam: true, allowed_source_prefixes: true },
  container_settings: { allow_ip_forwarding: true },
};

const IGNORED_KEYS = {
  mode: 'vxlan',
  vxlan_mac_prefix: '0E-2A',
  vxlan_vni: 4096,
  ipam_lock_file: '/var/run/calico/ipam.lock',
  nodename_file: '/var/lib/calico/nodename',
  nodename_file_optional: true,
  datastore_type: 'kubernetes',
  etcd_endpoints: 'http://127.0.0.1:2379',
  etcd_discovery_srv: 'example.org',
  etcd_key_file: '/key',
  etcd_cert_file: '/cert',
  etcd_ca_cert_file: '/ca',
  etcd_scheme: 'http',
  etcd_authority: '127.0.0.1:2379',
  log_level: 'debug',
  log_file_path: '/var/log/calico/cni/cni.log',
  log_file_max_size: 100,
  log_file_max_age: 30,
  log_file_max_count: 10,
  policy: { type: 'k8s', k8s_api_root: 'https://10.0.0.1', k8s_auth_token: 't' },
  kubernetes: { kubeconfig: '/etc/cni/net.d/calico-kubeconfig' },
  include_default_routes: true,
  dataplane_options: { type: 'linux' },
  readiness_gates: ['http://127.0.0.1:9099/readiness'],
  policy_setup_timeout_seconds: 10,
  endpoint_status_dir: '/var/run/calico/endpoint-status',
  require_mtu_file: true,
  qps: 100,
  burst: 200,
  calico_api_group: 'projectcalico.org/v3',
  windows_use_single_network: true,
  windows_disable_default_deny_all_policy: true,
  windows_loopback_DSR: true,
  windows_pod_deletion_timestamp_timeout: 600,
};

const read = (keys: object) => readAttachConfig('ADD', JSON.stringify({ ...READ, ...keys }));
const named = (keys: object) => [...read(keys).ignoredKeys].sort();

describe('a configuration that was written for Calico', () => {
  test('has every key read, or reported as one without an effect', () => {
    expect(named(IGNORED_KEYS)).toEqual(Object.keys(IGNORED_KEYS).sort());
    expect(read({})).toMatchObject({
      name: 'k8s-pod-network',
      otherIpam: undefined,
      mtuBytes: 1440,
      nodeName: 'node-1',
      ipForwarding: true,
      queueCount: 2,
      requestSources: { families: [4, 6], ipv4Pools: { value: ['a'] }, ipv6Pools: { value: ['b'] } },
    });
    expect(named({})).toEqual([]);
  });

  test('has no key reported that equals its absence', () => {
    const empty = Object.entries(IGNORED_KEYS).map(([key, value]) => {
      if (Array.isArray(value)) return [key, []];
      if (typeof value === 'object') return [key, {}];
      return [key, typeof value === 'string' ? '' : typeof value === 'number' ? 0 : false];
    });
    expect(named(Object.fromEntries(empty))).toEqual([]);
    expect(named(Object.fromEntries(Object.keys(IGNORED_KEYS).map((key) => [key, null])))).toEqual([]);
  });

  test('has another kind of device reported, as Podwire has one kind', () => {
    expect(named({ device_type: 'netkit' })).toEqual(['device_type']);
  });

  test('has nested keys reported that Podwire does not read', () => {
    const subnet = { subnet: '10.65.0.0/24' };
    expect(named({ ipam: { type: 'calico-ipam', ...subnet } })).toEqual(['ipam.subnet']);
    expect(named({ ipam: { type: 'host-local', ...subnet } })).toEqual([]);
    const labels = { network_info: { labels: [{ key: 'a', value: 'b' }] } };
    expect(named({ args: { 'org.apache.mesos': labels, cni: {} } })).toEqual(['args.org.apache.mesos']);
  });

  test('is refused with a dataplane that Podwire does not have', () => {
    const fault = /dataplane_options.type must be linux/;
    expect(() => read({ dataplane_options: { type: 'grpc', socket: 'unix:///run/vpp.sock' } })).toThrow(fault);
    expect(() => read({ dataplane_options: { type: 'ebpf' } })).toThrow(fault);
    expect(named({ dataplane_options: { type: 'linux' } })).toEqual(['dataplane_options']);
  });

  test('has unknown keys accepted', () => {
    expect(named({ args: { 'org.apache.mesos': {} }, capabilities: { dns: true }, later: 1 })).toEqual([]);
  });
});

const nested = (depth: number, open = '[', close = ']') => `${open.repeat(depth)}1${close.repeat(depth)}`;

test.each([
  ['lists', nested(100), nested(101)],
  ['objects', nested(100, '{"a":', '}'), nested(101, '{"a":', '}')],
  ['both, after further arrays', `[[1],{"a":[]},${nested(99)}]`, `[[1],{"a":[]},${nested(100)}]`],
])('nested %s are counted', (_, most, tooDeep) => {
  expect([isNestedDeeper(most, 100), isNestedDeeper(tooDeep, 100)]).toEqual([false, true]);
});

test.each([
  ['siblings', `[${Array(300).fill('[]').join()}]`],
  ['brackets in strings', JSON.stringify({ text: '['.repeat(300), [`"\\${'{'.repeat(300)}`]: '\\\\"[{' })],
])('%s does not count as nesting', (_, text) => {
  expect(isNestedDeeper(text, 100)).toBe(false);
});
