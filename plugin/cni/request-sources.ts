import type { Bandwidth } from '@podwire/shared/attachment/bandwidth';
import { formatHostPortKey, readHostPorts, type HostPort } from '@podwire/shared/attachment/host-port';
import type { Family } from '@podwire/shared/net/address';
import { z } from 'zod';

import {
  readAddresses,
  readAnnotations,
  readMac,
  readPools,
  type Annotations,
  type Sourced,
  type RequestedAddresses,
  type RequestedMac,
  type ReportViolation,
} from './annotations.js';
import { readBandwidth } from './bandwidth.js';

/** All requests in a network configuration: for the network's pods, and by the runtime for this pod. */
export interface RequestSources {
  /** Families of `ipam.assign_ipv4` and `ipam.assign_ipv6`; empty if neither is set. */
  readonly families: readonly Family[];
  readonly ipv4Pools: Sourced<readonly string[]> | undefined;
  readonly ipv6Pools: Sourced<readonly string[]> | undefined;
  /** Addresses of `runtimeConfig.ips`, in any spelling of the key. */
  readonly capabilityAddresses: readonly RequestedAddresses[];
  readonly capabilityMacs: readonly RequestedMac[];
  /** Addresses of `args.cni.ips`, which override addresses of CNI_ARGS. */
  readonly argsAddresses: RequestedAddresses | undefined;
  readonly argsMac: RequestedMac | undefined;
  /** Port mappings of the runtime for this pod. */
  readonly hostPorts: readonly HostPort[];
  /** Limits of the pod's packets, by the runtime and by annotations. */
  readonly bandwidth: Bandwidth | undefined;
  readonly annotations: Annotations;
  /** DNS settings for the result: the runtime's for this pod, or else the configuration's. */
  readonly dns: Dns | undefined;
}

/** The capability by which containerd passes a pod's annotations. */
const ANNOTATIONS_CAPABILITY = 'io.kubernetes.cri.pod-annotations';

const TEXTS = z
  .array(z.string({ error: 'must be a string' }), { error: 'must be a list' })
  .nullish()
  .transform((texts) => texts ?? []);
const TEXT_MAP = z
  .record(z.string(), z.string({ error: 'must be a string' }), { error: 'must be an object' })
  .nullish()
  .transform((texts) => texts ?? {});
const FLAG = z.boolean({ error: 'must be true or false' }).default(false);
/** Calico has it as a string. */
const TEXT_FLAG = z
  .union([z.literal(['true', 'false']).transform((text) => text === 'true'), z.boolean()], {
    error: 'must be "true" or "false"',
  })
  .optional();

/** Keys of `ipam` that select addresses. */
export const IPAM_KEYS = {
  assign_ipv4: TEXT_FLAG,
  assign_ipv6: TEXT_FLAG,
  ipv4_pools: TEXTS,
  ipv6_pools: TEXTS,
};

const DNS_TEXTS = z.array(z.string({ error: 'must be a string' }), { error: 'must be a list' });

/** The key `dns` of a network configuration and of its `ipam` (CNI specification 1.1.0, section 1). */
export const DNS = z.looseObject(
  {
    nameservers: DNS_TEXTS.optional(),
    domain: z.string({ error: 'must be a string' }).optional(),
    search: DNS_TEXTS.optional(),
    options: DNS_TEXTS.optional(),
  },
  { error: 'must be an object' },
);

/** Keys of the configuration that request something or allow requests. */
export const REQUEST_KEYS = {
  dns: DNS.nullish(),
  feature_control: z
    .object({ ip_addrs_no_ipam: FLAG, allowed_source_prefixes: FLAG }, { error: 'must be an object' })
    .prefault({}),
  runtimeConfig: z.looseObject({ [ANNOTATIONS_CAPABILITY]: TEXT_MAP }, { error: 'must be an object' }).nullish(),
  args: z
    .looseObject(
      {
        cni: z
          .looseObject(
            { ips: TEXTS, mac: z.string({ error: 'must be a string' }).default('') },
            { error: 'must be an object' },
          )
          .nullish(),
      },
      { error: 'must be an object' },
    )
    .nullish(),
};

/** The parsed keys for {@link readRequestSources}. */
export interface RequestKeys extends z.infer<z.ZodObject<typeof REQUEST_KEYS>> {
  readonly ipam?: z.infer<z.ZodObject<typeof IPAM_KEYS>> | undefined;
}

/** Reads the requested values. Each violation names its source. */
export function readRequestSources(keys: RequestKeys, report: ReportViolation): RequestSources {
  const { ipam, feature_control, runtimeConfig, args, dns } = keys;
  const annotations = runtimeConfig?.[ANNOTATIONS_CAPABILITY] ?? {};
  const capabilities = Object.entries(runtimeConfig ?? {});
  return {
    families: readFamilies(ipam, report),
    ipv4Pools: readPools('ipam.ipv4_pools', { texts: ipam?.ipv4_pools ?? [], family: 4 }, report),
    ipv6Pools: readPools('ipam.ipv6_pools', { texts: ipam?.ipv6_pools ?? [], family: 6 }, report),
    capabilityAddresses: capabilities
      .filter(([key]) => key.toLowerCase() === 'ips')
      .flatMap(([key, value]) => asList(readCapabilityAddresses(`runtimeConfig.${key}`, value, report))),
    capabilityMacs: capabilities
      .filter(([key]) => key.toLowerCase() === 'mac')
      .flatMap(([key, value]) => asList(readCapabilityMac(`runtimeConfig.${key}`, value, report))),
    hostPorts: readPorts(
      capabilities.filter(([key]) => key.toLowerCase() === 'portmappings'),
      report,
    ),
    bandwidth: readBandwidth(
      capabilities
        .filter(([key]) => key.toLowerCase() === 'bandwidth')
        .map(([key, value]) => ({ source: `runtimeConfig.${key}`, value }))[0],
      annotations,
      report,
    ),
    argsAddresses: readAddresses('args.cni.ips', args?.cni?.ips ?? [], report),
    argsMac: readMac('args.cni.mac', args?.cni?.mac ?? '', report),
    annotations: readAnnotations(annotations, feature_control, report),
    dns:
      capabilities
        .filter(([key]) => key.toLowerCase() === 'dns')
        .flatMap(([key, value]) => asList(readCapabilityDns(`runtimeConfig.${key}`, value, report)))[0] ??
      nonEmptyDns(dns),
  };
}

function readFamilies(ipam: RequestKeys['ipam'], report: ReportViolation): readonly Family[] {
  const { assign_ipv4: ipv4, assign_ipv6: ipv6 } = ipam ?? {};
  if (ipv4 === undefined && ipv6 === undefined) return [];
  const families: Family[] = [...((ipv4 ?? true) ? [4 as const] : []), ...((ipv6 ?? false) ? [6 as const] : [])];
  if (families.length === 0) {
    report({
      field: 'ipam.assign_ipv4',
      reason: 'is "false" and ipam.assign_ipv6 is not "true"; set one of them to "true"',
    });
  }
  return families;
}

function readCapabilityAddresses(
  source: string,
  value: unknown,
  report: ReportViolation,
): RequestedAddresses | undefined {
  const texts = TEXTS.safeParse(value);
  if (texts.success) return readAddresses(source, texts.data, report);
  report({ field: source, reason: 'must be a list of strings' });
  return undefined;
}

function readCapabilityMac(source: string, value: unknown, report: ReportViolation): RequestedMac | undefined {
  if (typeof value === 'string') return readMac(source, value, report);
  if (value !== null) report({ field: source, reason: 'must be a string' });
  return undefined;
}

/** Keys of a port mapping by their lower-case form, as containerd capitalizes them. */
const PORT_MAPPING_KEYS: Readonly<Record<string, string>> = {
  hostport: 'hostPort',
  containerport: 'containerPort',
  protocol: 'protocol',
  hostip: 'hostIP',
};

const PORT_MAPPINGS = z
  .array(
    z
      .record(z.string(), z.unknown(), { error: 'must be an object' })
      .transform((keys) =>
        Object.fromEntries(
          Object.entries(keys).map(([key, value]) => [PORT_MAPPING_KEYS[key.toLowerCase()] ?? key, value]),
        ),
      )
      .pipe(
        z.object({
          hostPort: z.number({ error: 'must be a number' }),
          containerPort: z.number({ error: 'must be a number' }),
          protocol: z.string({ error: 'must be a string' }).default('tcp'),
          hostIP: z.string({ error: 'must be a string' }).default(''),
        }),
      ),
    { error: 'must be a list' },
  )
  .nullable();

const PORT_MAPPING_FIELDS = {
  protocol: 'protocol',
  hostPort: 'hostPort',
  podPort: 'containerPort',
  hostAddress: 'hostIP',
};

/** Reads the port mappings under every spelling of the key, which together map each port of the node once. */
function readPorts(capabilities: readonly (readonly [string, unknown])[], report: ReportViolation): HostPort[] {
  const sources = new Map<string, string>();
  return capabilities.flatMap(([key, value]) => {
    const source = `runtimeConfig.${key}`;
    const ports = readCapabilityPorts(source, value, report);
    for (const port of ports.map(formatHostPortKey)) {
      const first = sources.get(port) ?? source;
      if (first !== source) report({ field: source, reason: `repeats ${port} of ${first}` });
      sources.set(port, first);
    }
    return ports;
  });
}

/** Reads `runtimeConfig.portMappings` (CNI conventions). */
function readCapabilityPorts(source: string, value: unknown, report: ReportViolation): readonly HostPort[] {
  const parsed = PORT_MAPPINGS.safeParse(value);
  if (!parsed.success) {
    for (const { path, message } of parsed.error.issues) {
      const [position, key] = path.map(String);
      const field = `${source}${position === undefined ? '' : `[${position}]`}${key === undefined ? '' : `.${key}`}`;
      report({ field, reason: message });
    }
    return [];
  }
  const texts = (parsed.data ?? []).map(({ containerPort, hostIP, ...rest }) => ({
    ...rest,
    podPort: containerPort,
    hostAddress: hostIP,
  }));
  return readHostPorts(texts, (field, reason) => report({ field: `${source}${field}`, reason }), PORT_MAPPING_FIELDS);
}

function asList<Value>(value: Value | undefined): Value[] {
  return value === undefined ? [] : [value];
}

/** DNS settings, in the form of results and configurations. Unknown keys are passed through. */
export interface Dns extends Readonly<Record<string, unknown>> {
  /** Addresses of servers, in order of preference. */
  readonly nameservers?: readonly string[] | undefined;
  /** Domain for names without a dot. */
  readonly domain?: string | undefined;
  /** Search domains for short names. */
  readonly search?: readonly string[] | undefined;
  /** Options of resolv.conf(5). */
  readonly options?: readonly string[] | undefined;
}

/** Keys of the capability `dns` (CNI conventions) and the corresponding keys of a result. */
const RESULT_KEY: Readonly<Record<string, string>> = {
  servers: 'nameservers',
  searches: 'search',
  options: 'options',
};

const CAPABILITY = z.record(z.string(), z.unknown());

/**
 * Reads `runtimeConfig.dns`: `servers`, `searches`, `options`, in any case, as containerd capitalizes them.
 * @returns undefined if it is empty or invalid
 */
function readCapabilityDns(source: string, value: unknown, report: ReportViolation): Dns | undefined {
  if (value === null) return undefined;
  const keys = CAPABILITY.safeParse(value);
  if (!keys.success) {
    report({ field: source, reason: 'must be an object' });
    return undefined;
  }
  const settings: Record<string, readonly string[]> = {};
  for (const [key, each] of Object.entries(keys.data)) {
    const name = RESULT_KEY[key.toLowerCase()];
    if (name === undefined || each === null) continue;
    const texts = DNS_TEXTS.safeParse(each);
    if (texts.success) settings[name] = texts.data;
    else report({ field: `${source}.${key}`, reason: 'must be a list of strings' });
  }
  return nonEmptyDns(settings);
}

/** Drops empty settings, which Go's encoder writes for unset ones. */
export function nonEmptyDns(dns: Dns | null | undefined): Dns | undefined {
  const settings = Object.entries(dns ?? {}).filter(([, value]) =>
    Array.isArray(value) ? value.length > 0 : value !== '',
  );
  return settings.length === 0 ? undefined : Object.fromEntries(settings);
}
