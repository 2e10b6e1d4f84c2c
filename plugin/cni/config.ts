import { identifierFault, MAX_NETWORK_BYTES } from '@podwire/shared/attachment/attachment';
import { MAX_QUEUE_COUNT } from '@podwire/shared/attachment/pod-network';
import { Failure, violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

import { isSubdomain } from './environment.js';
import {
  IPAM_KEYS,
  readRequestSources,
  REQUEST_KEYS,
  type RequestSources,
  type RequestKeys,
} from './request-sources.js';
import { resultSchema, type Result } from './result.js';
import { readVersion, requireCommand, type CniVersion } from './version.js';

/** The keys of the network configuration that every command uses. */
export interface NetworkConfig {
  readonly cniVersion: CniVersion;
  /** Name of the network. */
  readonly name: string;
  /** `ipam.type`, unless it is Podwire's own. */
  readonly otherIpam: string | undefined;
}

/** The keys that GC and STATUS use. */
export interface NodeConfig extends NetworkConfig {
  /** Name of the node instead of the plugin's own setting. */
  readonly nodeName: string | undefined;
  readonly requestSources: RequestSources;
}

/** The keys that ADD and CHECK use. */
export interface AttachConfig extends NodeConfig {
  /** MTU of the pod's interface in bytes; undefined: the dataplane's default. */
  readonly mtuBytes: number | undefined;
  /** Whether the pod forwards packets between its own interfaces. */
  readonly ipForwarding: boolean;
  /** Number of transmit and of receive queues of the pod's interface; undefined: the kernel's default. */
  readonly queueCount: number | undefined;
  /** Keys of Calico's configuration that Podwire ignores. */
  readonly ignoredKeys: readonly string[];
  /** ADD: result of the previous plugins of the chain. CHECK: result of the whole chain's ADD. */
  readonly prevResult: Result | undefined;
}

/** The smallest MTU that IPv4 works with (RFC 791), and the largest that fits its length field. */
const MIN_MTU_BYTES = 68;
const MAX_MTU_BYTES = 65535;

const PLUGIN_TYPE = 'podwire';
const IPAM_TYPE = 'podwire-ipam';

/** Names of Podwire's own IPAM; configurations written for Calico have the second. */
const IPAM_TYPES: readonly string[] = [IPAM_TYPE, 'calico-ipam'];

/** Names of interface plugins. As `ipam.type`, they would make Podwire run itself in an endless loop. */
const MAIN_TYPES: readonly string[] = [PLUGIN_TYPE, 'calico'];

/** A program name without path separators. */
const IPAM_NAME = z
  .string({ error: 'must be a string' })
  .regex(/^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}$/, 'is not a valid IPAM plugin name')
  .refine((type) => !MAIN_TYPES.includes(type), { error: `is not an IPAM plugin; set it to ${IPAM_TYPE}` });

const IPAM_TYPE_ALONE = z.object({ type: IPAM_NAME });

/** IPAM plugins that send requests on the pod's interface, which Podwire creates only after the addresses are known. */
const LINK_BOUND_TYPES: readonly string[] = ['dhcp'];

/** Longest `cniVersion` that an error repeats. A longer one is a mistake and would hide the message. */
const MAX_STATED_VERSION_BYTES = 64;

const NAME = z
  .string({ error: 'is missing; give the network a name' })
  .superRefine((name, context) => report(identifierFault(name, MAX_NETWORK_BYTES), context));

const NETWORK = z.object({ name: NAME });

const NODE_NAME = z
  .string({ error: 'must be a string' })
  .refine((name) => name === '' || isSubdomain(name), { error: 'is not a valid name of a Kubernetes node' })
  .default('');

const NODE_KEYS = { nodename: NODE_NAME, hostname: NODE_NAME };
const NODE = z.object(NODE_KEYS);

const IPAM_ALONE = z.object(IPAM_KEYS);
const NO_REQUEST_KEYS: RequestKeys = z.object(REQUEST_KEYS).parse({});

/** Unlisted keys belong to other plugins or a later release and are ignored. */
const ATTACH = NETWORK.extend({
  type: z.string({ error: `is missing; set it to ${PLUGIN_TYPE}` }).min(1, `is empty; set it to ${PLUGIN_TYPE}`),
  socket: z.string({ error: 'must be a string' }).regex(/^\//, 'is not an absolute path').optional(),
  mtu: z
    .int({ error: 'must be a whole number' })
    .refine((mtu) => mtu === 0 || (mtu >= MIN_MTU_BYTES && mtu <= MAX_MTU_BYTES), {
      error: `must be 0 or from ${MIN_MTU_BYTES} to ${MAX_MTU_BYTES}`,
    })
    .default(0),
  ...NODE_KEYS,
  ipam: z
    .object(
      {
        type: IPAM_NAME.refine((type) => !LINK_BOUND_TYPES.includes(type), {
          error: `requires a server on the pod's link, but Podwire routes its pods; use ${IPAM_TYPE}, host-local or static`,
        }).optional(),
        ...IPAM_KEYS,
      },
      { error: 'must be an object' },
    )
    .optional(),
  num_queues: z
    .int({ error: 'must be a whole number' })
    .refine((count) => count >= 0 && count <= MAX_QUEUE_COUNT, { error: `must be from 0 to ${MAX_QUEUE_COUNT}` })
    .default(0),
  ...REQUEST_KEYS,
  dataplane_options: z
    .looseObject(
      {
        type: z
          .enum(['', 'linux'], { error: "must be linux, as Podwire's own dataplane wires pods; remove it" })
          .optional(),
      },
      { error: 'must be an object' },
    )
    .nullish(),
  container_settings: z
    .object(
      { allow_ip_forwarding: z.boolean({ error: 'must be true or false' }).default(false) },
      {
        error: 'must be an object',
      },
    )
    .optional(),
});

/**
 * Reads the keys that every command needs. DEL reads only these: it has to succeed with any configuration.
 * @throws Failure CONFIG_NOT_JSON, INCOMPATIBLE_CNI_VERSION, or INVALID_CONFIG that lists every malformed key
 */
export function readNetworkConfig(text: string): NetworkConfig {
  const { cniVersion, keys } = readKeys(text);
  return { cniVersion, name: check(NETWORK, keys).name, otherIpam: otherIpamOf(keys) };
}

/**
 * Reads the keys of a node command. A node name or `ipam` options that ADD would reject count as unset: GC has to work
 * with any configuration.
 * @throws Failure as {@link readNetworkConfig}; also when the configuration's version lacks the command
 */
export function readNodeConfig(command: 'GC' | 'STATUS', text: string): NodeConfig {
  const { cniVersion, keys } = readKeys(text);
  requireCommand(command, cniVersion);
  const { name } = check(NETWORK, keys);
  const ipam = IPAM_ALONE.safeParse(keys.ipam).data;
  const requestSources = readRequestSources({ ...NO_REQUEST_KEYS, ipam }, () => undefined);
  return { cniVersion, name, otherIpam: otherIpamOf(keys), nodeName: nodeNameOf(keys), requestSources };
}

/**
 * Reads the keys that ADD and CHECK need.
 * @throws Failure as {@link readNetworkConfig}; CHECK without `prevResult` is INVALID_CONFIG
 */
export function readAttachConfig(command: 'ADD' | 'CHECK', text: string): AttachConfig {
  const { cniVersion, keys } = readKeys(text);
  requireCommand(command, cniVersion);
  const isIncomplete = command === 'CHECK' && (keys.prevResult ?? undefined) === undefined;
  const { config, requestSources } = check(attachSchema(cniVersion), keys, isIncomplete ? [NO_PREV_RESULT] : []);
  const otherIpam = otherIpamOf(keys);
  return {
    cniVersion,
    name: config.name,
    otherIpam,
    mtuBytes: config.mtu || undefined,
    nodeName: nodeNameOf(keys),
    queueCount: config.num_queues || undefined,
    requestSources,
    ignoredKeys: ignoredKeys(keys, otherIpam),
    ipForwarding: config.container_settings?.allow_ip_forwarding ?? false,
    prevResult: config.prevResult,
  };
}

/** The `cniVersion` of a configuration, valid or not, for the error document; undefined if missing or too long. */
export function statedVersion(text: string): string | undefined {
  const stated = parseObject(text)?.cniVersion;
  return typeof stated === 'string' && stated !== '' && stated.length <= MAX_STATED_VERSION_BYTES ? stated : undefined;
}

const ATTACH_SCHEMAS = new Map<CniVersion, ReturnType<typeof makeAttachSchema>>();

/** Cached, as compiling a schema takes longer than the rest of parsing an ADD. */
function attachSchema(cniVersion: CniVersion) {
  const schema = ATTACH_SCHEMAS.get(cniVersion) ?? makeAttachSchema(cniVersion);
  ATTACH_SCHEMAS.set(cniVersion, schema);
  return schema;
}

function makeAttachSchema(cniVersion: CniVersion) {
  return ATTACH.extend({ prevResult: resultSchema(cniVersion).optional() }).transform(withRequestSources);
}

/** Deeper values could not be serialized for a result or a delegated plugin. */
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
    throw new Failure(
      'INVALID_CONFIG',
      `the network configuration is nested deeper than ${MAX_DEPTH} levels; flatten it`,
    );
  return { cniVersion: readVersion(keys.cniVersion), keys };
}

/** Adds the requested values; their violations are listed together with violations of the keys. */
function withRequestSources<Config extends RequestKeys>(config: Config, context: z.RefinementCtx) {
  const requestSources = readRequestSources(config, ({ field, reason }) =>
    context.addIssue({ code: 'custom', path: [field], message: reason }),
  );
  return { config, requestSources };
}

const JSON_OBJECT = z.record(z.string(), z.unknown());

function parseObject(text: string): Keys | undefined {
  return JSON_OBJECT.safeParse(parseJson(text)).data;
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
const IGNORED_KEYS = [
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
 * Keys of Calico's configuration that are set and ignored, in the order of Calico's reference.
 * @param otherIpam - the delegated IPAM plugin, which reads `ipam` itself
 */
function ignoredKeys(keys: CalicoKeys, otherIpam: string | undefined): string[] {
  const subnet = otherIpam === undefined ? valueOf(keys.ipam, 'subnet') : undefined;
  const nested: CalicoKeys = { 'ipam.subnet': subnet, 'args.org.apache.mesos': valueOf(keys.args, 'org.apache.mesos') };
  return [
    ...IGNORED_KEYS.filter((key) => isRequest(key, keys[key])),
    ...Object.keys(nested).filter((key) => isRequest(key, nested[key])),
  ];
}

function valueOf(value: unknown, key: string): unknown {
  return typeof value === 'object' && value !== null
    ? Object.entries(value).find(([name]) => name === key)?.[1]
    : undefined;
}

/** Whether a value requests anything: empty values do not, nor does the only supported device type. */
function isRequest(key: string, value: unknown): boolean {
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
  // Each level takes two characters.
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

/** @returns the index of the string's closing quote */
function endOfString(text: string, start: number): number {
  let at = start + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return at;
}
