import { attachmentFaults, interfaceNameFault } from '@podwire/shared/attachment/attachment';
import { parseJson } from '@podwire/shared/json/parse';
import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import { formatPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { z } from 'zod';

import type { PodNetwork } from '../wiring/network.js';
import type { NetnsIdentity } from './kernel.js';

/**
 * What becomes of an attachment: it is wanted; a detach has begun, and must not be taken for drift; or its namespace is dead,
 * its wire with it, and its addresses are still to be given back.
 */
export type RecordState = 'attached' | 'detaching' | 'dead';

/** What the node remembers of an attachment: all that it takes to wire the pod again, and to know whether it lives. */
export interface AttachmentRecord {
  readonly network: PodNetwork;
  /** The namespace that was at the path. */
  readonly identity: NetnsIdentity;
  /** Of the boot in which it was wired (proc(5), /proc/sys/kernel/random/boot_id). */
  readonly bootId: string;
  readonly state: RecordState;
  /** Epoch milliseconds: when the attachment was first wired in this namespace, and when it was wired last. */
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
}

/** Of the form below. Another form gets another number; a reader refuses numbers that it does not know. */
const VERSION = 1;

/** The stored form: JSON, addresses and prefixes as text, 64-bit numbers as decimal text. */
export function encodeRecord({ network, identity, ...rest }: AttachmentRecord): string {
  const { addresses, routes, sourcePrefixes, mtuBytes, txQueueLength, queueCount, ...plain } = network;
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
      mtuBytes: mtuBytes ?? null,
      txQueueLength: txQueueLength ?? null,
      queueCount: queueCount ?? null,
      ...plain,
    },
  });
}

export type DecodedRecord =
  | { readonly ok: true; readonly record: AttachmentRecord }
  /** Why the text is no record, for people. */
  | { readonly ok: false; readonly fault: string };

/** Reads what {@link encodeRecord} wrote. Whatever else the text may be is a fault, never an error. */
export function decodeRecord(text: string): DecodedRecord {
  const form = parseJson(text);
  if (form === undefined) return { ok: false, fault: 'is no JSON' };
  const parsed = STORED.safeParse(form);
  if (parsed.success) return { ok: true, record: parsed.data };
  const [issue] = parsed.error.issues;
  const at = issue?.path.map(String).join('.') ?? '';
  return { ok: false, fault: `is no record of this release: ${at} ${issue?.message ?? 'is wrong'}` };
}

function read<Value>(parse: (text: string) => Value | undefined, what: string) {
  return z.string().transform((text, context): Value => {
    const value = parse(text);
    if (value !== undefined) return value;
    context.addIssue({ code: 'custom', message: `is no ${what}` });
    return z.NEVER;
  });
}

const prefix = read((text): Prefix | undefined => {
  const parsed = parsePrefix(text);
  return parsed.ok ? parsed.prefix : undefined;
}, 'CIDR');

const number64 = z
  .string()
  .regex(/^\d{1,20}$/)
  .transform(BigInt);

const interfaceName = z.string().refine((name) => interfaceNameFault(name) === undefined, 'is no name of an interface');

const attachment = z
  .strictObject({ network: z.string(), containerId: z.string(), interfaceName: z.string() })
  .refine((value) => attachmentFaults(value).length === 0, 'is no attachment');

/** A number that may be left to the node or the kernel. */
const leftOpen = z
  .int()
  .min(1)
  .nullable()
  .transform((value) => value ?? undefined);

const NETWORK: z.ZodType<PodNetwork> = z.strictObject({
  attachment,
  netns: z.string().startsWith('/'),
  hostInterfaceName: interfaceName,
  mac: read(parseMac, 'unicast MAC address'),
  addresses: z.array(read((text): Address | undefined => parseAddress(text), 'IP address')).min(1),
  routes: z.array(prefix),
  mtuBytes: leftOpen,
  ipForwarding: z.boolean(),
  sourcePrefixes: z.array(prefix),
  txQueueLength: leftOpen,
  queueCount: leftOpen,
  // Absent in records of releases that did not ask for it.
  addressesFromIpam: z.literal(true).exactOptional(),
});

const STORED = z
  .strictObject({
    version: z.literal(VERSION),
    network: NETWORK,
    identity: z.strictObject({ device: number64, inode: number64, cookie: number64.nullable() }),
    bootId: z.string().min(1),
    state: z.enum(['attached', 'detaching', 'dead']),
    createdAtMs: z.number(),
    updatedAtMs: z.number(),
  })
  .transform(({ network, identity, bootId, state, createdAtMs, updatedAtMs }): AttachmentRecord => {
    return { network, identity, bootId, state, createdAtMs, updatedAtMs };
  });

/**
 * Whether two looks saw one namespace. Without the kernel's cookie, one inode is no proof: the next namespace often gets it.
 */
export function compareIdentities(a: NetnsIdentity, b: NetnsIdentity): 'same' | 'other' | 'unknown' {
  if (a.device !== b.device || a.inode !== b.inode) return 'other';
  if (a.cookie === null || b.cookie === null) return 'unknown';
  return a.cookie === b.cookie ? 'same' : 'other';
}
