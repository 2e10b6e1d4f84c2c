/**
 * Keys of Calico's network configuration that mean nothing to Podwire: its resident processes have settings of their own for some
 * of them, and no use for the others. Keys that are not here are other plugins' or a later release's, and pass without a word.
 */
const WITHOUT_MEANING = [
  'mode',
  'vxlan_mac_prefix',
  'vxlan_vni',
  'ipam_lock_file',
  'device_type',
  'nodename_file',
  'nodename_file_optional',
  'datastore_type',
  'etcd_endpoints',
  'etcd_discovery_srv',
  'etcd_key_file',
  'etcd_cert_file',
  'etcd_ca_cert_file',
  'etcd_scheme',
  'etcd_authority',
  'log_level',
  'log_file_path',
  'log_file_max_size',
  'log_file_max_age',
  'log_file_max_count',
  'policy',
  'kubernetes',
  'include_default_routes',
  'dataplane_options',
  'readiness_gates',
  'policy_setup_timeout_seconds',
  'endpoint_status_dir',
  'require_mtu_file',
  'qps',
  'burst',
  'calico_api_group',
  'windows_use_single_network',
  'windows_disable_default_deny_all_policy',
  'windows_loopback_DSR',
  'windows_pod_deletion_timestamp_timeout',
] as const;

type Keys = Readonly<Record<string, unknown>>;

/**
 * Keys of Calico's configuration that ask for something that Podwire does not look at, in the order of Calico's reference.
 * @param otherIpam - the IPAM plugin that reads `ipam`, where it is not Podwire's own
 */
export function keysWithoutMeaning(keys: Keys, otherIpam: string | undefined): string[] {
  const subnet = otherIpam === undefined ? within(keys.ipam, 'subnet') : undefined;
  const inside: Keys = { 'ipam.subnet': subnet, 'args.org.apache.mesos': within(keys.args, 'org.apache.mesos') };
  return [
    ...WITHOUT_MEANING.filter((key) => asksForSomething(key, keys[key])),
    ...Object.keys(inside).filter((key) => asksForSomething(key, inside[key])),
  ];
}

function within(value: unknown, key: string): unknown {
  return typeof value === 'object' && value !== null
    ? Object.entries(value).find(([name]) => name === key)?.[1]
    : undefined;
}

/** What is as good as absent asks for nothing, and neither does the only kind of device that there is. */
function asksForSomething(key: string, value: unknown): boolean {
  if (key === 'device_type' && value === 'veth') return false;
  if (Array.isArray(value)) return value.length > 0;
  if (typeof value === 'object' && value !== null) return Object.keys(value).length > 0;
  return Boolean(value);
}
