import type { RecordedAllocation } from '@podwire/shared/attachment/allocation';
import { attachmentFaults, interfaceNameFault } from '@podwire/shared/attachment/attachment';
import { bandwidthOf, checkRateLimit, type Bandwidth, type RateLimit } from '@podwire/shared/attachment/bandwidth';
import { hostPortText, readHostPorts, type HostPort } from '@podwire/shared/attachment/host-port';
import { parseJson } from '@podwire/shared/json/parse';
import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import { formatPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { z } from 'zod';

import type { PodNetwork } from '@podwire/shared/attachment/pod-network';

/** Identifies a network namespace within one boot. */
export interface NamespaceIdentity {
  /** Device and inode of the namespace's file. The kernel reuses the inode once the namespace is gone. */
  readonly device: bigint;
  readonly inode: bigint;
  /** Unique within this boot; null where the kernel does not report it (before 5.14). */
  readonly cookie: bigint | null;
}

/**
 * State of an attachment: wanted; detach begun, so that the missing wire is not drift; or dead: its wire is gone, and its
 * addresses are still to be released.
 */
export type RecordState = 'attached' | 'detaching' | 'dead';

/** The node's record of an attachment: everything needed to wire the pod again, to detect its death, and to settle its addresses. */
export interface AttachmentRecord {
  readonly network: PodNetwork;
  /** Absent: the addresses are not podwire-ipam's. */
  readonly allocation?: RecordedAllocation;
  /** The namespace at the path when the pod was wired. */
  readonly identity: NamespaceIdentity;
  /** Boot in which it was wired (proc(5), /proc/sys/kernel/random/boot_id). */
  readonly bootId: string;
  readonly state: RecordState;
  /** Another pod may have an address of this dead attachment: the node keeps it as a lease when this attachment is settled. */
  readonly isReused?: true;
  /** Epoch milliseconds: first and latest wiring of the attachment in this namespace. */
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
}

/** A record's network, with its pod if that is known. */
export function filteredPod({ network, allocation }: Pick<AttachmentRecord, 'network' | 'allocation'>) {
  return { ...network, pod: allocation?.pod ?? network.otherIpam?.pod };
}

/** Version of the stored form below. Readers reject unknown versions. */
const VERSION = 1;

/** The stored form: JSON, addresses and prefixes as text, 64-bit numbers as decimal text. */
export function encodeRecord({ network, identity, allocation, ...rest }: AttachmentRecord): string {
  const { addresses, routes, sourcePrefixes, hostPorts, mtuBytes, txQueueLength, queueCount, ...plain } = network;
  return JSON.stringify({
    version: VERSION,
    ...rest,
    identity: {
      device: identity.device.toString(),
      inode: identity.inode.toString(),
      cookie: identity.cookie === null ? null : identity.cookie.toString(),
    },
    network: {
      addresses: addresses.map(formatAddress),
      routes: routes.map(formatPrefix),
      sourcePrefixes: sourcePrefixes.map(formatPrefix),
      ...(hostPorts.length > 0 && { hostPorts: hostPorts.map(hostPortText) }),
      mtuBytes: mtuBytes ?? null,
      txQueueLength: txQueueLength ?? null,
      queueCount: queueCount ?? null,
      ...plain,
    },
    ...(allocation && {
      allocation: {
        ...allocation,
        pod: allocation.pod ?? null,
        addresses: allocation.addresses.map(({ address, sequenceNumber }) => ({
          address,
          sequenceNumber: sequenceNumber.toString(),
        })),
      },
    }),
  });
}

export type DecodedRecord =
  | { readonly ok: true; readonly record: AttachmentRecord }
  /** Why the text is not a valid record, for operators. */
  | { readonly ok: false; readonly fault: string };

/** Reads the output of {@link encodeRecord}. Any other text is a fault, never an exception. */
export function decodeRecord(text: string): DecodedRecord {
  const form = parseJson(text);
  if (form === undefined) return { ok: false, fault: 'is not JSON' };
  const parsed = STORED.safeParse(form);
  if (parsed.success) return { ok: true, record: parsed.data };
  const [issue] = parsed.error.issues;
  const at = issue?.path.map(String).join('.') ?? '';
  return { ok: false, fault: `is not a record of this release: ${at} ${issue?.message ?? 'is invalid'}` };
}

function read<Value>(parse: (text: string) => Value | undefined, typeName: string) {
  return z.string().transform((text, context): Value => {
    const value = parse(text);
    if (value !== undefined) return value;
    context.addIssue({ code: 'custom', message: `must be ${typeName}` });
    return z.NEVER;
  });
}

const prefix = read((text): Prefix | undefined => {
  const parsed = parsePrefix(text);
  return parsed.ok ? parsed.prefix : undefined;
}, 'a CIDR');

const number64 = z
  .string()
  .regex(/^\d{1,20}$/)
  .transform(BigInt);

const interfaceName = z.string().refine((name) => interfaceNameFault(name) === undefined, 'must be an interface name');

const attachment = z
  .strictObject({ network: z.string(), containerId: z.string(), interfaceName: z.string() })
  .refine((value) => attachmentFaults(value).length === 0, 'must be an attachment');

/** A number that the node or the kernel may choose. */
const optionalCount = z
  .int()
  .min(1)
  .nullable()
  .transform((value) => value ?? undefined);

const pod = z.strictObject({ namespace: z.string(), name: z.string(), uid: z.string() });

const hostPorts = z
  .array(z.strictObject({ protocol: z.string(), hostPort: z.number(), podPort: z.number(), hostAddress: z.string() }))
  .transform((texts, context): readonly HostPort[] =>
    readHostPorts(texts, (field, reason) => context.addIssue({ code: 'custom', message: `${field} ${reason}` })),
  )
  .default([]);

const rateLimit = z
  .strictObject({ rateBitsPerSecond: z.number(), burstBits: z.number().optional() })
  .transform(({ rateBitsPerSecond, burstBits }, context): RateLimit => {
    const limit = { rateBitsPerSecond, burstBits };
    checkRateLimit(limit, (field, reason) => context.addIssue({ code: 'custom', message: `${field} ${reason}` }));
    return limit;
  })
  .optional();

const bandwidth = z
  .strictObject({ ingress: rateLimit, egress: rateLimit })
  .transform(({ ingress, egress }): Bandwidth => bandwidthOf(ingress, egress) ?? {});

const NETWORK: z.ZodType<PodNetwork> = z.strictObject({
  attachment,
  netns: z.string().startsWith('/'),
  hostInterfaceName: interfaceName,
  mac: read(parseMac, 'a unicast MAC address'),
  addresses: z.array(read((text): Address | undefined => parseAddress(text), 'an IP address')).min(1),
  routes: z.array(prefix),
  mtuBytes: optionalCount,
  ipForwarding: z.boolean(),
  sourcePrefixes: z.array(prefix),
  hostPorts,
  bandwidth: bandwidth.exactOptional(),
  txQueueLength: optionalCount,
  queueCount: optionalCount,
  addressesFromIpam: z.literal(true).exactOptional(),
  otherIpam: z
    .strictObject({ pod: pod.optional() })
    .transform(({ pod }) => ({ pod }))
    .exactOptional(),
});

const ALLOCATION: z.ZodType<RecordedAllocation> = z.strictObject({
  addresses: z
    .array(
      z.strictObject({
        address: z.string().refine((text) => parseAddress(text) !== undefined, 'must be an IP address'),
        sequenceNumber: number64,
      }),
    )
    .min(1),
  nodeName: z.string(),
  pod: pod.nullable().transform((value) => value ?? undefined),
  isBound: z.boolean(),
});

const STORED = z
  .strictObject({
    version: z.literal(VERSION),
    network: NETWORK,
    allocation: ALLOCATION.exactOptional(),
    identity: z.strictObject({ device: number64, inode: number64, cookie: number64.nullable() }),
    bootId: z.string().min(1),
    state: z.enum(['attached', 'detaching', 'dead']),
    isReused: z.literal(true).exactOptional(),
    createdAtMs: z.number(),
    updatedAtMs: z.number(),
  })
  .transform((stored): AttachmentRecord => {
    const { network, allocation, isReused, identity, bootId, state, createdAtMs, updatedAtMs } = stored;
    const optional = { ...(allocation && { allocation }), ...(isReused && { isReused }) };
    return { network, ...optional, identity, bootId, state, createdAtMs, updatedAtMs };
  });

/**
 * Compares two observed identities. Without the kernel's cookie an equal inode proves nothing: the next namespace often gets the
 * same one.
 */
export function compareIdentities(a: NamespaceIdentity, b: NamespaceIdentity): 'same' | 'other' | 'unknown' {
  if (a.device !== b.device || a.inode !== b.inode) return 'other';
  if (a.cookie === null || b.cookie === null) return 'unknown';
  return a.cookie === b.cookie ? 'same' : 'other';
}
