import type { Family } from '@podwire/shared/net/address';
import { z } from 'zod';

import {
  annotationsWithoutEffect,
  readAddresses,
  readAnnotations,
  readMac,
  readNamespaceAnnotations,
  readPools,
  type Annotations,
  type Asked,
  type AskedAddresses,
  type AskedMac,
  type NamespaceAnnotations,
  type Refuse,
} from './annotations.js';

/** What a network configuration asks for its pods, and what the runtime put into it for this one. */
export interface Requested {
  /** Families of `ipam.assign_ipv4` and `ipam.assign_ipv6`; empty where both are left open. */
  readonly families: readonly Family[];
  readonly ipv4Pools: Asked<readonly string[]> | undefined;
  readonly ipv6Pools: Asked<readonly string[]> | undefined;
  /** Addresses of `runtimeConfig.ips`, in any spelling of the key. */
  readonly capabilityAddresses: readonly AskedAddresses[];
  readonly capabilityMacs: readonly AskedMac[];
  /** Addresses of `args.cni.ips`, which come before those of CNI_ARGS. */
  readonly argsAddresses: AskedAddresses | undefined;
  readonly argsMac: AskedMac | undefined;
  readonly annotations: Annotations;
  /** Those of the pod's namespace, which come behind the pod's. */
  readonly namespaceAnnotations: NamespaceAnnotations;
  /** Labels of the pod's namespace; empty if the runtime does not pass them. */
  readonly namespaceLabels: Readonly<Record<string, string>>;
  /** Annotations of the pod that are let pass without an effect. */
  readonly annotationsWithoutEffect: readonly string[];
  /** DNS settings for the result: the runtime's for this pod, or the configuration's; undefined where there are none. */
  readonly dns: Dns | undefined;
}

/** The capability under which containerd passes a pod's annotations on. */
const ANNOTATIONS_CAPABILITY = 'io.kubernetes.cri.pod-annotations';

/**
 * The capabilities under which a runtime, or a plugin above this one, passes on what it knows of the pod's namespace. CNI has no name for
 * them, so that these are Podwire's own. Annotations of the pod are no place for it: their author would choose what binds him.
 */
const NAMESPACE_LABELS_CAPABILITY = 'podwire.dev/namespace-labels';
const NAMESPACE_ANNOTATIONS_CAPABILITY = 'podwire.dev/namespace-annotations';

const TEXTS = z
  .array(z.string({ error: 'is no text' }), { error: 'is no list' })
  .nullish()
  .transform((texts) => texts ?? []);
const TEXT_MAP = z
  .record(z.string(), z.string({ error: 'is no text' }), { error: 'is no object' })
  .nullish()
  .transform((texts) => texts ?? {});
const FLAG = z.boolean({ error: 'is neither true nor false' }).default(false);
/** Calico has it as text. */
const TEXT_FLAG = z
  .union([z.literal(['true', 'false']).transform((text) => text === 'true'), z.boolean()], {
    error: 'is neither "true" nor "false"',
  })
  .optional();

/** Keys of `ipam` that say which addresses pods get. */
export const IPAM_KEYS = {
  assign_ipv4: TEXT_FLAG,
  assign_ipv6: TEXT_FLAG,
  ipv4_pools: TEXTS,
  ipv6_pools: TEXTS,
};

const DNS_TEXTS = z.array(z.string({ error: 'is no text' }), { error: 'is no list' });

/** The key `dns` of a network configuration and of its `ipam` (CNI specification 1.1.0, section 1). */
export const DNS = z.looseObject(
  {
    nameservers: DNS_TEXTS.optional(),
    domain: z.string({ error: 'is no text' }).optional(),
    search: DNS_TEXTS.optional(),
    options: DNS_TEXTS.optional(),
  },
  { error: 'is no object' },
);

/** Keys of the configuration that ask for something, or allow to. */
export const REQUEST_KEYS = {
  dns: DNS.nullish(),
  feature_control: z
    .object({ ip_addrs_no_ipam: FLAG, floating_ips: FLAG, allowed_source_prefixes: FLAG }, { error: 'is no object' })
    .prefault({}),
  runtimeConfig: z
    .looseObject(
      {
        [ANNOTATIONS_CAPABILITY]: TEXT_MAP,
        [NAMESPACE_LABELS_CAPABILITY]: TEXT_MAP,
        [NAMESPACE_ANNOTATIONS_CAPABILITY]: TEXT_MAP,
      },
      { error: 'is no object' },
    )
    .nullish(),
  args: z
    .looseObject(
      {
        cni: z
          .looseObject({ ips: TEXTS, mac: z.string({ error: 'is no text' }).default('') }, { error: 'is no object' })
          .nullish(),
      },
      { error: 'is no object' },
    )
    .nullish(),
};

/** The parsed keys that {@link readRequested} looks at. */
export interface RequestKeys extends z.infer<z.ZodObject<typeof REQUEST_KEYS>> {
  readonly ipam?: z.infer<z.ZodObject<typeof IPAM_KEYS>> | undefined;
}

/** Reads the requested values. Every fault is reported under its place. */
export function readRequested(keys: RequestKeys, refuse: Refuse): Requested {
  const { ipam, feature_control, runtimeConfig, args, dns } = keys;
  const annotations = runtimeConfig?.[ANNOTATIONS_CAPABILITY] ?? {};
  const capabilities = Object.entries(runtimeConfig ?? {});
  return {
    families: readFamilies(ipam, refuse),
    ipv4Pools: readPools('ipam.ipv4_pools', { texts: ipam?.ipv4_pools ?? [], family: 4 }, refuse),
    ipv6Pools: readPools('ipam.ipv6_pools', { texts: ipam?.ipv6_pools ?? [], family: 6 }, refuse),
    capabilityAddresses: capabilities
      .filter(([key]) => key.toLowerCase() === 'ips')
      .flatMap(([key, value]) => present(readCapabilityAddresses(`runtimeConfig.${key}`, value, refuse))),
    capabilityMacs: capabilities
      .filter(([key]) => key.toLowerCase() === 'mac')
      .flatMap(([key, value]) => present(readCapabilityMac(`runtimeConfig.${key}`, value, refuse))),
    argsAddresses: readAddresses('args.cni.ips', args?.cni?.ips ?? [], refuse),
    argsMac: readMac('args.cni.mac', args?.cni?.mac ?? '', refuse),
    annotations: readAnnotations(annotations, feature_control, refuse),
    namespaceAnnotations: readNamespaceAnnotations(runtimeConfig?.[NAMESPACE_ANNOTATIONS_CAPABILITY] ?? {}, refuse),
    namespaceLabels: runtimeConfig?.[NAMESPACE_LABELS_CAPABILITY] ?? {},
    annotationsWithoutEffect: annotationsWithoutEffect(annotations),
    dns:
      capabilities
        .filter(([key]) => key.toLowerCase() === 'dns')
        .flatMap(([key, value]) => present(readCapabilityDns(`runtimeConfig.${key}`, value, refuse)))[0] ??
      askedDns(dns),
  };
}

function readFamilies(ipam: RequestKeys['ipam'], refuse: Refuse): readonly Family[] {
  const { assign_ipv4: ipv4, assign_ipv6: ipv6 } = ipam ?? {};
  if (ipv4 === undefined && ipv6 === undefined) return [];
  const families: Family[] = [...((ipv4 ?? true) ? [4 as const] : []), ...((ipv6 ?? false) ? [6 as const] : [])];
  if (families.length === 0) {
    refuse({
      field: 'ipam.assign_ipv4',
      reason: 'is "false" and ipam.assign_ipv6 is not "true"; set one of them to "true"',
    });
  }
  return families;
}

function readCapabilityAddresses(place: string, value: unknown, refuse: Refuse): AskedAddresses | undefined {
  const texts = TEXTS.safeParse(value);
  if (texts.success) return readAddresses(place, texts.data, refuse);
  refuse({ field: place, reason: 'is no list of texts' });
  return undefined;
}

function readCapabilityMac(place: string, value: unknown, refuse: Refuse): AskedMac | undefined {
  if (typeof value === 'string') return readMac(place, value, refuse);
  if (value !== null) refuse({ field: place, reason: 'is no text' });
  return undefined;
}

function present<Value>(value: Value | undefined): Value[] {
  return value === undefined ? [] : [value];
}

/** DNS settings, in the form of results and configurations. Unknown keys are passed through. */
export interface Dns extends Readonly<Record<string, unknown>> {
  /** Addresses of servers, the first to be asked first. */
  readonly nameservers?: readonly string[] | undefined;
  /** Domain for names without a dot. */
  readonly domain?: string | undefined;
  /** Domains that short names are looked for in. */
  readonly search?: readonly string[] | undefined;
  /** Options of resolv.conf(5). */
  readonly options?: readonly string[] | undefined;
}

/** Keys of the capability `dns` (CNI conventions), each with the one of a result that it is. */
const KEY_OF_RESULT: Readonly<Record<string, string>> = {
  servers: 'nameservers',
  searches: 'search',
  options: 'options',
};

const CAPABILITY = z.record(z.string(), z.unknown());

/**
 * Reads `runtimeConfig.dns`: `servers`, `searches`, `options`, in any spelling, as containerd writes them in capitals.
 * @param place - of the value, for faults
 * @returns undefined where it asks for nothing, or is faulty
 */
function readCapabilityDns(place: string, value: unknown, refuse: Refuse): Dns | undefined {
  if (value === null) return undefined;
  const keys = CAPABILITY.safeParse(value);
  if (!keys.success) {
    refuse({ field: place, reason: 'is no object' });
    return undefined;
  }
  const settings: Record<string, readonly string[]> = {};
  for (const [key, each] of Object.entries(keys.data)) {
    const name = KEY_OF_RESULT[key.toLowerCase()];
    if (name === undefined || each === null) continue;
    const texts = DNS_TEXTS.safeParse(each);
    if (texts.success) settings[name] = texts.data;
    else refuse({ field: `${place}.${key}`, reason: 'is no list of texts' });
  }
  return askedDns(settings);
}

/** The settings that say something: Go's encoder writes empty ones for those that were never made. */
export function askedDns(dns: Dns | null | undefined): Dns | undefined {
  const said = Object.entries(dns ?? {}).filter(([, value]) =>
    Array.isArray(value) ? value.length > 0 : value !== '',
  );
  return said.length === 0 ? undefined : Object.fromEntries(said);
}
