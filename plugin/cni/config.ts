import { identifierFault, MAX_NETWORK_BYTES } from '@podwire/shared/attachment/attachment';
import { Failure, violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

import { isSubdomain } from './environment.js';
import { IPAM_KEYS, readRequested, REQUEST_KEYS, type Requested, type RequestKeys } from './requested.js';
import { resultSchema, type Result } from './result.js';
import { readVersion, requireCommand, type CniVersion } from './version.js';

/** The keys of the network configuration that every command uses. */
export interface NetworkConfig {
  readonly cniVersion: CniVersion;
  /** Name of the network. */
  readonly name: string;
  /** The IPAM plugin, where it is not Podwire's own. */
  readonly otherIpam: string | undefined;
}

/** The keys that a command about the node uses beside those. */
export interface NodeConfig extends NetworkConfig {
  /** Name of the node instead of the plugin's own setting. */
  readonly nodeName: string | undefined;
  readonly requested: Requested;
}

/** The keys that matter where a pod is wired or looked at. */
export interface AttachConfig extends NodeConfig {
  /** MTU of the pod's interface in bytes; 0 leaves it to the dataplane. */
  readonly mtuBytes: number;
  /** Whether the pod forwards packets between its own interfaces. */
  readonly ipForwarding: boolean;
  /** Number of transmit and of receive queues of the pod's interface; 0 leaves it to the kernel. */
  readonly queueCount: number;
  /** Keys of Calico's configuration that are let pass without an effect. */
  readonly keysWithoutMeaning: readonly string[];
  /** Result of the plugins before this one in the chain; of the whole chain's ADD for CHECK. */
  readonly prevResult: Result | undefined;
}

/** The smallest MTU that IPv4 works with (RFC 791), and the largest that fits its length field. */
const MIN_MTU_BYTES = 68;
const MAX_MTU_BYTES = 65535;

const PLUGIN_TYPE = 'podwire';
const IPAM_TYPE = 'podwire-ipam';

/** Names of Podwire's own IPAM; the second is in configurations that were written for Calico. */
const IPAM_TYPES: readonly string[] = [IPAM_TYPE, 'calico-ipam'];

/** Names of plugins that make interfaces: as IPAM plugin, Podwire would run itself for ever. */
const MAIN_TYPES: readonly string[] = [PLUGIN_TYPE, 'calico'];

/** The name of a program, without a way to leave its directory. */
const IPAM_NAME = z
  .string({ error: 'is no text' })
  .regex(/^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}$/, 'is no name of an IPAM plugin')
  .refine((type) => !MAIN_TYPES.includes(type), { error: `is no IPAM plugin; set it to ${IPAM_TYPE}` });

const IPAM_TYPE_ALONE = z.object({ type: IPAM_NAME });

/** IPAM plugins that need an interface to send requests on. A routed pod has its interface only after its addresses are known. */
const LINK_BOUND_TYPES: readonly string[] = ['dhcp'];

/**
 * What Calico's plugin puts the node's podCIDR in place of, before it runs host-local: `usePodCidr` and `usePodCidrIPv6`. Podwire asks no
 * API server.
 */
const POD_CIDR = /"usePodCidr(IPv6)?"/i;
/** As many as the kernel makes. */
const MAX_QUEUES_COUNT = 4096;

/** Longest `cniVersion` that an error repeats; what is longer is a mistake that would only bury the message. */
const MAX_STATED_VERSION_BYTES = 64;

const NAME = z
  .string({ error: 'is missing; give the network a name' })
  .superRefine((name, context) => report(identifierFault(name, MAX_NETWORK_BYTES), context));

const NETWORK = z.object({ name: NAME });

const NODE_NAME = z
  .string({ error: 'is no text' })
  .refine((name) => name === '' || isSubdomain(name), { error: 'is no name of a Kubernetes node' })
  .default('');

const NODE_KEYS = { nodename: NODE_NAME, hostname: NODE_NAME };
const NODE = z.object(NODE_KEYS);

const IPAM_ALONE = z.object(IPAM_KEYS);
const NOTHING_REQUESTED: RequestKeys = z.object(REQUEST_KEYS).parse({});

/** Keys that are not here are other plugins' or a later release's, and pass. */
const ATTACH = NETWORK.extend({
  type: z.string({ error: `is missing; set it to ${PLUGIN_TYPE}` }).min(1, `is empty; set it to ${PLUGIN_TYPE}`),
  socket: z.string({ error: 'is no text' }).regex(/^\//, 'is not an absolute path').optional(),
  mtu: z
    .int({ error: 'is no whole number' })
    .refine((mtu) => mtu === 0 || (mtu >= MIN_MTU_BYTES && mtu <= MAX_MTU_BYTES), {
      error: `is neither 0 nor from ${MIN_MTU_BYTES} to ${MAX_MTU_BYTES}`,
    })
    .default(0),
  ...NODE_KEYS,
  ipam: z
    .object(
      {
        type: IPAM_NAME.refine((type) => !LINK_BOUND_TYPES.includes(type), {
          error: `asks a server on the pod's link, and Podwire's pods are routed; use ${IPAM_TYPE}, host-local or static`,
        }).optional(),
        ...IPAM_KEYS,
      },
      { error: 'is no object' },
    )
    .optional(),
  num_queues: z
    .int({ error: 'is no whole number' })
    .refine((count) => count >= 0 && count <= MAX_QUEUES_COUNT, { error: `is not from 0 to ${MAX_QUEUES_COUNT}` })
    .default(0),
  ...REQUEST_KEYS,
  container_settings: z
    .object(
      { allow_ip_forwarding: z.boolean({ error: 'is neither true nor false' }).default(false) },
      {
        error: 'is no object',
      },
    )
    .optional(),
});

/**
 * Reads the keys that every command needs. DEL reads no more: it has to succeed whichever configuration is loaded by
 * then.
 * @throws Failure CONFIG_NOT_JSON, INCOMPATIBLE_CNI_VERSION, or INVALID_CONFIG that lists every malformed key
 */
export function readNetworkConfig(text: string): NetworkConfig {
  const { cniVersion, keys } = readKeys(text);
  return { cniVersion, name: check(NETWORK, keys).name, otherIpam: otherIpamOf(keys) };
}

/**
 * Reads the keys of a node command. A node name or `ipam` options that ADD would reject count as unset: GC has to work
 * whichever configuration is loaded by then.
 * @throws Failure as {@link readNetworkConfig}; also when the configuration's version lacks the command
 */
export function readNodeConfig(command: 'GC' | 'STATUS', text: string): NodeConfig {
  const { cniVersion, keys } = readKeys(text);
  requireCommand(command, cniVersion);
  const { name } = check(NETWORK, keys);
  const ipam = IPAM_ALONE.safeParse(keys.ipam).data;
  const requested = readRequested({ ...NOTHING_REQUESTED, ipam }, () => undefined);
  return { cniVersion, name, otherIpam: otherIpamOf(keys), nodeName: nodeNameOf(keys), requested };
}

/**
 * Reads the keys that ADD and CHECK need.
 * @throws Failure as {@link readNetworkConfig}; CHECK without `prevResult` is INVALID_CONFIG
 */
export function readAttachConfig(command: 'ADD' | 'CHECK', text: string): AttachConfig {
  const { cniVersion, keys } = readKeys(text);
  requireCommand(command, cniVersion);
  const isIncomplete = command === 'CHECK' && (keys.prevResult ?? undefined) === undefined;
  const found = [...(isIncomplete ? [NO_PREV_RESULT] : []), ...podCidrFaults(keys)];
  const { config, requested } = check(attachSchema(cniVersion), keys, found);
  const otherIpam = otherIpamOf(keys);
  return {
    cniVersion,
    name: config.name,
    otherIpam,
    mtuBytes: config.mtu,
    nodeName: nodeNameOf(keys),
    queueCount: config.num_queues,
    requested,
    keysWithoutMeaning: keysWithoutMeaning(keys, otherIpam),
    ipForwarding: config.container_settings?.allow_ip_forwarding ?? false,
    prevResult: config.prevResult,
  };
}

/** The `cniVersion` that a configuration states, valid or not, for the error that answers it; undefined when there is none. */
export function statedVersion(text: string): string | undefined {
  const stated = parseObject(text)?.cniVersion;
  return typeof stated === 'string' && stated !== '' && stated.length <= MAX_STATED_VERSION_BYTES ? stated : undefined;
}

const ATTACH_SCHEMAS = new Map<CniVersion, ReturnType<typeof makeAttachSchema>>();

/** Kept, as making and compiling a schema takes longer than the rest of an ADD's reading. */
function attachSchema(cniVersion: CniVersion) {
  const schema = ATTACH_SCHEMAS.get(cniVersion) ?? makeAttachSchema(cniVersion);
  ATTACH_SCHEMAS.set(cniVersion, schema);
  return schema;
}

function makeAttachSchema(cniVersion: CniVersion) {
  return ATTACH.extend({ prevResult: resultSchema(cniVersion).optional() }).transform(withRequested);
}

/** Deeper ones could not be passed on, by a result or to another plugin. */
const MAX_DEPTH = 1000;

type Keys = Readonly<Record<string, unknown>>;

/** ADD rejects an invalid type. For the remaining commands it counts as podwire-ipam: no other plugin can have allocated addresses. */
function otherIpamOf({ ipam }: Keys): string | undefined {
  const type = IPAM_TYPE_ALONE.safeParse(ipam).data?.type;
  return type === undefined || IPAM_TYPES.includes(type) ? undefined : type;
}

function nodeNameOf(keys: Keys): string | undefined {
  const { nodename = '', hostname = '' } = NODE.safeParse(keys).data ?? {};
  const name = nodename || hostname;
  return name === '' ? undefined : name;
}

function readKeys(text: string): { readonly cniVersion: CniVersion; readonly keys: Keys } {
  const keys = parseObject(text);
  if (!keys) {
    throw new Failure(
      'CONFIG_NOT_JSON',
      `the network configuration on standard input (${Buffer.byteLength(text)} bytes) is not a JSON object`,
    );
  }
  if (isNestedDeeper(text, MAX_DEPTH))
    throw new Failure('INVALID_CONFIG', `the network configuration has values in more than ${MAX_DEPTH} others`);
  return { cniVersion: readVersion(keys.cniVersion), keys };
}

/** Adds the requested values; their faults are listed together with those of the keys. */
function withRequested<Config extends RequestKeys>(config: Config, context: z.RefinementCtx) {
  const requested = readRequested(config, ({ field, reason }) =>
    context.addIssue({ code: 'custom', path: [field], message: reason }),
  );
  return { config, requested };
}

const JSON_OBJECT = z.record(z.string(), z.unknown());

function parseObject(text: string): Keys | undefined {
  return JSON_OBJECT.safeParse(parseJson(text)).data;
}

function podCidrFaults(keys: Keys): Violation[] {
  if (otherIpamOf(keys) === undefined || !POD_CIDR.test(JSON.stringify(keys.ipam))) return [];
  const reason = `asks for the node's podCIDR, which Podwire does not look up; write the CIDR itself, or use ${IPAM_TYPE}`;
  return [{ field: 'ipam', reason }];
}

const NO_PREV_RESULT: Violation = { field: 'prevResult', reason: 'is missing; CHECK needs the result of ADD' };

function check<Values>(schema: z.ZodType<Values>, keys: Keys, found: readonly Violation[] = []): Values {
  const parsed = schema.safeParse(keys);
  if (parsed.success && found.length === 0) return parsed.data;
  const issues = parsed.error?.issues ?? [];
  const violations = issues.map(({ path, message }) => ({ field: path.join('.'), reason: message }));
  throw violationsFailure('INVALID_CONFIG', 'network configuration refused', [...violations, ...found]);
}

function report(reason: string | undefined, context: z.RefinementCtx): void {
  if (reason !== undefined) context.addIssue({ code: 'custom', message: reason });
}

/**
 * Keys of Calico's network configuration without effect in Podwire: some are settings of its resident processes, some
 * have no counterpart. Unlisted keys belong to another plugin or a later release and are ignored silently.
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

type CalicoKeys = Readonly<Record<string, unknown>>;

/**
 * Keys of Calico's configuration that ask for something that Podwire does not look at, in the order of Calico's reference.
 * @param otherIpam - the IPAM plugin that reads `ipam`, where it is not Podwire's own
 */
function keysWithoutMeaning(keys: CalicoKeys, otherIpam: string | undefined): string[] {
  const subnet = otherIpam === undefined ? within(keys.ipam, 'subnet') : undefined;
  const inside: CalicoKeys = { 'ipam.subnet': subnet, 'args.org.apache.mesos': within(keys.args, 'org.apache.mesos') };
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

/**
 * Whether a JSON text is nested deeper than maxDepth. JSON.parse has no limit, but JSON.stringify overflows the stack.
 * @param text - JSON
 */
export function isNestedDeeper(text: string, maxDepth: number): boolean {
  // Each of them takes two characters.
  if (text.length <= 2 * maxDepth) return false;
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === '"') at = endOfString(text, at);
    else if (character === ']' || character === '}') depth--;
    else if (character === '[' || character === '{') depth++;
    if (depth > maxDepth) return true;
  }
  return false;
}

/** @returns where the string ends that begins there */
function endOfString(text: string, start: number): number {
  let at = start + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return at;
}
