import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { Failure, violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import { parse, YAMLError } from 'yaml';
import { z } from 'zod';

/** Node names; `*` matches any characters. */
export type NodePatterns = readonly string[];

/** A BGP peer outside of the cluster. */
export interface ConfiguredPeer {
  /** Name for logs and status. */
  readonly name: string;
  /** The nodes that peer with it. */
  readonly nodes: NodePatterns;
  /** Address in canonical form. */
  readonly address: string;
  readonly asNumber: number;
  readonly port: number;
  /** This end's address, in canonical form; undefined: the node's own of the family. */
  readonly sourceAddress: string | undefined;
  readonly password: string | undefined;
  /** Whether the peer connects and this side only listens. */
  readonly passive: boolean;
  /** Undefined: only the session detects whether the peer is up. */
  readonly bfd: Bfd | undefined;
}

/**
 * BFD detects a peer's failure quickly (RFC 5880). The session then ends at once with its routes, on both sides: a restart of
 * BIRD is not graceful for such a peer.
 */
export interface Bfd {
  /** Interval between packets, in each direction. */
  readonly intervalMs: number;
  /** Number of consecutive missing packets after which the peer is down. */
  readonly multiplier: number;
  /** Whether routers may be in between (RFC 5883); otherwise the peer must be on the link (RFC 5881). */
  readonly multihop: boolean;
}

/** Route reflectors: nodes that pass routes on between nodes, instead of a full mesh (RFC 4456). */
export interface RouteReflectors {
  readonly nodes: NodePatterns;
  /** IPv4 notation. Reflectors of one cluster are not clients of one another. */
  readonly clusterId: string;
}

/** BGP topology. */
export interface PeerPlan {
  /** Full mesh of all nodes. */
  readonly mesh: boolean;
  readonly routeReflectors: readonly RouteReflectors[];
  readonly peers: readonly ConfiguredPeer[];
}

/** Default without a file: the full mesh. */
export const FULL_MESH: PeerPlan = { mesh: true, routeReflectors: [], peers: [] };

const MAX_AS_NUMBER = 4_294_967_295;

/** The kernel's limit for TCP MD5 signatures (TCP_MD5SIG_MAXKEYLEN), in bytes. */
const MAX_PASSWORD_BYTES = 80;

const address = z
  .string()
  .transform((text) => parseAddress(text))
  .refine((value) => value !== undefined, 'must be an IP address')
  .transform((value) => formatAddress(value));

const nodePattern = z.string().regex(/^[A-Za-z0-9*._-]+$/, 'must be a node name, with * for any characters');
const nodePatterns = z.array(nodePattern).min(1, 'must name a node');
const asNumber = z.int('must be a whole number').min(1, 'is below 1').max(MAX_AS_NUMBER, `is above ${MAX_AS_NUMBER}`);

const bfd = z.strictObject({
  intervalMs: z.int('must be a whole number').min(10, 'is below 10').max(60_000, 'is above 60000').default(300),
  multiplier: z.int('must be a whole number').min(2, 'is below 2').max(255, 'is above 255').default(3),
  multihop: z.boolean('must be true or false').default(false),
});

const peer = z.strictObject({
  name: z.string().regex(/^[A-Za-z0-9._-]{1,63}$/, 'must be 1 to 63 letters, digits, dots, dashes or underscores'),
  nodes: nodePatterns.default(['*']),
  address,
  asNumber,
  port: z.int('must be a whole number').min(1, 'is below 1').max(65_535, 'is above 65535').default(179),
  sourceAddress: address.optional(),
  passwordFile: z.string().regex(/^\//, 'must be an absolute path').optional(),
  passive: z.boolean('must be true or false').default(false),
  bfd: bfd.optional(),
});

const peersFile = z.strictObject({
  mesh: z.boolean('must be true or false').optional(),
  routeReflectors: z
    .array(
      z.strictObject({
        nodes: nodePatterns,
        clusterId: address.refine((text) => !text.includes(':'), 'must be in IPv4 notation'),
      }),
    )
    .default([]),
  peers: z.array(peer).default([]),
});

/**
 * Reads a peers file, YAML or JSON:
 *
 *     mesh: false                  # every node with every other; default: true, but false when there are route reflectors
 *     routeReflectors:
 *       - { nodes: [rr-*], clusterId: 192.0.2.254 }
 *     peers:
 *       - name: tor-1
 *         nodes: [rack1-*]         # default: all
 *         address: 192.0.2.1
 *         asNumber: 65001
 *         port: 179
 *         sourceAddress: 192.0.2.7 # default: the node's own
 *         passwordFile: /etc/podwire/tor-1.password   # TCP MD5; the text without its last line end
 *         passive: false           # wait for the far end to connect
 *         bfd: { intervalMs: 300, multiplier: 3, multihop: false }   # default: no BFD; {}: these values
 *
 * @param read - reads the text of the file at a path: the peers file and password files
 * @throws Failure INVALID_SETTINGS with every fault of the file and the password files at once
 */
export async function readPeersFile(path: string, read: (path: string) => Promise<string>): Promise<PeerPlan> {
  const parsed = peersFile.safeParse(parseText(path, await textOf(path, read)));
  if (!parsed.success) {
    const violations = parsed.error.issues.map((issue) => ({ field: fieldOf(issue), reason: issue.message }));
    throw violationsFailure('INVALID_SETTINGS', `${path} is invalid`, violations);
  }
  const { mesh, routeReflectors, peers } = parsed.data;
  const passwords = await Promise.all(peers.map(({ passwordFile }) => readPassword(passwordFile, read)));
  const violations = peers.flatMap(({ name, address: far, sourceAddress }, index): Violation[] => [
    ...(isNameTaken(name, peers.slice(0, index))
      ? [{ field: `peers.${index}.name`, reason: `must be unique: ${name}` }]
      : []),
    ...(sourceAddress !== undefined && sourceAddress.includes(':') !== far.includes(':')
      ? [{ field: `peers.${index}.sourceAddress`, reason: `must be of the family of ${far}` }]
      : []),
    ...(passwords[index]?.faults ?? []).map((reason) => ({ field: `peers.${index}.passwordFile`, reason })),
  ]);
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', `${path} is invalid`, violations);
  return {
    mesh: mesh ?? routeReflectors.length === 0,
    routeReflectors,
    peers: peers.map((each, index) => ({
      name: each.name,
      nodes: each.nodes,
      address: each.address,
      asNumber: each.asNumber,
      port: each.port,
      sourceAddress: each.sourceAddress,
      password: passwords[index]?.password,
      passive: each.passive,
      bfd: each.bfd,
    })),
  };
}

async function textOf(path: string, read: (path: string) => Promise<string>): Promise<string> {
  try {
    return await read(path);
  } catch (error) {
    throw new Failure('INVALID_SETTINGS', `${path} cannot be read: ${String(error)}`, { cause: error });
  }
}

function parseText(path: string, text: string): unknown {
  try {
    return parse(text) ?? {};
  } catch (error) {
    if (!(error instanceof YAMLError)) throw error;
    throw new Failure('INVALID_SETTINGS', `${path} must be YAML or JSON: ${error.message}`, { cause: error });
  }
}

interface ReadPassword {
  readonly password: string | undefined;
  readonly faults: readonly string[];
}

async function readPassword(path: string | undefined, read: (path: string) => Promise<string>): Promise<ReadPassword> {
  if (path === undefined) return { password: undefined, faults: [] };
  let password: string;
  try {
    password = (await read(path)).replace(/\r?\n$/, '');
  } catch (error) {
    return { password: undefined, faults: [`${path} cannot be read: ${String(error)}`] };
  }
  // BIRD's strings cannot contain a quotation mark or a line end.
  const isWritable = /^[^"\p{Cc}]+$/u.test(password) && Buffer.byteLength(password) <= MAX_PASSWORD_BYTES;
  const fault = `${path} must contain 1 to ${MAX_PASSWORD_BYTES} bytes without quotation marks and control characters`;
  return { password, faults: isWritable ? [] : [fault] };
}

function isNameTaken(name: string, before: readonly { readonly name: string }[]): boolean {
  return before.some((other) => other.name === name);
}

function fieldOf(issue: z.core.$ZodIssue): string {
  const path = issue.path.map(String);
  return [...path, ...(issue.code === 'unrecognized_keys' ? [issue.keys.join(', ')] : [])].join('.') || 'the file';
}

/** Whether a node matches the names. */
export function matchesNode(patterns: NodePatterns, name: string): boolean {
  return patterns.some((pattern) => {
    const parts = pattern.split('*').map((part) => part.replaceAll('.', '\\.'));
    return new RegExp(`^${parts.join('.*')}$`).test(name);
  });
}
