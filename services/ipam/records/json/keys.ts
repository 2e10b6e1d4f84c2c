import { formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';
import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { BlockOwner } from '../block.js';
import { formatEndpointKey, type EndpointKey } from '../endpoint.js';
import type { HistoryEntry } from '../history.js';
import type { RecordName, RecordValue } from '../view.js';

export type { RecordName };

/** The keys of Calico's etcd schema below a configurable prefix (its libcalico-go/lib/backend/model and lib/backend/etcdv3). */
export class RecordKeys {
  /** Every key begins with it: the prefix and a slash. */
  readonly root: string;
  /** Every pool's key begins with it. */
  readonly pools: string;
  readonly #blocks: string;
  /** Every handle's key begins with it, and ends with the handle's ID. */
  readonly handles: string;
  /** Every endpoint's key begins with it, and ends with {@link formatEndpointKey}. */
  readonly endpoints: string;
  readonly #reservations: string;
  readonly #nodes: string;
  /** Key of Calico's IPAM configuration. */
  readonly config: string;
  /** Key of Calico's ClusterInformation, by which its tools lock the datastore. */
  readonly clusterInformation: string;
  /** Whether the lock is respected: only where Calico's tools can write, and so unlock. */
  readonly hasLock: boolean;
  /**
   * Key of the request policies: below the root so that the watch delivers them, at a place that Calico does not use.
   */
  readonly requestPolicies: string;
  /** Every session's key begins with it. */
  readonly #sessions: string;
  /** Key of the store epoch. */
  readonly epoch: string;
  /** Key of the list of revoked certificates. */
  readonly revokedCertificates: string;
  /**
   * Every entry of the history begins with it. It is outside the root, so a start does not read it and Calico's tools
   * do not find it.
   */
  readonly history: string;
  /**
   * Begin of the complete history: the latest time at the end of a key with this prefix, a day, or a day and milliseconds. The
   * time is in the key, so entries of two merged datastores do not conflict.
   */
  readonly historyBegins: string;
  /** A key without content; when the watch reports its change, it has reported all earlier changes. */
  readonly barrier: string;
  /** Every release mark begins with it; outside the root like the history. */
  readonly releases: string;

  /** @param prefix - by default `/calico`; without a trailing slash */
  constructor(prefix: string, { hasLock = false }: { readonly hasLock?: boolean } = {}) {
    this.hasLock = hasLock;
    this.root = `${prefix}/`;
    this.pools = `${prefix}/resources/v3/projectcalico.org/ippools/`;
    this.#blocks = `${prefix}/ipam/v2/assignment/`;
    this.handles = `${prefix}/ipam/v2/handle/`;
    this.endpoints = `${prefix}/resources/v3/projectcalico.org/workloadendpoints/`;
    this.#reservations = `${prefix}/resources/v3/projectcalico.org/ipreservations/`;
    this.#nodes = `${prefix}/resources/v3/projectcalico.org/nodes/`;
    this.config = `${prefix}/ipam/v2/config`;
    this.clusterInformation = `${prefix}/resources/v3/projectcalico.org/clusterinformations/default`;
    this.history = `/podwire${prefix}/history/`;
    this.historyBegins = `/podwire${prefix}/history-begin/`;
    this.requestPolicies = `${prefix}/podwire/requestpolicies`;
    this.#sessions = `${prefix}/podwire/nodes/`;
    this.epoch = `${prefix}/podwire/epoch`;
    this.revokedCertificates = `${prefix}/podwire/revokedcertificates`;
    this.barrier = `${prefix}/podwire/barrier`;
    this.releases = `/podwire${prefix}/releases/`;
  }

  pool(name: string): string {
    return this.pools + name;
  }

  block(prefix: Prefix): string {
    return this.#blocks + blockSegments(prefix);
  }

  affinity(owner: BlockOwner, block: Prefix): string {
    return this.affinitiesOf(owner) + blockSegments(block);
  }

  /** Every affinity of the owner, and of no other, begins with it. */
  affinitiesOf({ kind, name }: BlockOwner): string {
    return `${this.root}ipam/v2/${kind}/${name}/`;
  }

  handle(id: string): string {
    return this.handles + id;
  }

  endpoint({ namespace, name }: EndpointKey): string {
    return this.endpoints + formatEndpointKey({ namespace, name });
  }

  reservation(name: string): string {
    return this.#reservations + name;
  }

  node(name: string): string {
    return this.#nodes + name;
  }

  /** The session of a node. */
  session(nodeName: string): string {
    return this.#sessions + nodeName;
  }

  /**
   * Ordered by the day of the release and then by address. Expired entries are adjacent, and an address's history takes
   * few reads.
   */
  historyEntry({ address, releasedAtMs, sequenceNumber }: HistoryEntry): string {
    return `${this.history}${historyDay(dayOf(releasedAtMs))}/${formatAddress(address)}/${sequenceNumber}`;
  }

  /** Changes of objects in a day of the history begin with it; no address does. */
  changesOf(day: number): string {
    return `${this.history}${historyDay(day)}/changes/`;
  }

  /** In the order of their times. @param id - distinguishes changes of one millisecond */
  changes(atMs: number, id: string): string {
    return `${this.changesOf(dayOf(atMs))}${String(atMs).padStart(15, '0')}-${id}`;
  }

  isChange(key: string): boolean {
    return key.startsWith(this.history) && key.startsWith('/changes/', this.history.length + DAY_DIGITS);
  }

  /** A record that says when the complete history begins. */
  historyBegin(beginMs: number): string {
    const day = dayOf(beginMs);
    return `${this.historyBegins}${historyDay(day)}${beginMs === dayStartMs(day) ? '' : `/${beginMs - dayStartMs(day)}`}`;
  }

  /** The time of {@link historyBegin} in a key, in epoch milliseconds; undefined for another key. */
  historyBeginMs(key: string): number | undefined {
    if (!key.startsWith(this.historyBegins)) return undefined;
    const [, day, restMs = '0'] = /^(\d+)(?:\/(\d+))?$/.exec(key.slice(this.historyBegins.length)) ?? [];
    return day === undefined ? undefined : dayStartMs(Number(day)) + Number(restMs);
  }

  release(handleId: string): string {
    return this.releases + handleId;
  }

  of(record: RecordValue): string {
    const { kind } = record;
    if (kind === 'block') return this.block(record.value.prefix);
    if (kind === 'affinity') return this.affinity(record.value.owner, record.value.block);
    if (kind === 'handle') return this.handle(record.value.id);
    if (kind === 'foreignEndpoint') return this.endpoint(record.key);
    if (kind === 'pool' || kind === 'reservation' || kind === 'node' || kind === 'nodeSession')
      return this.ofName({ kind, name: record.value.name });
    return this.ofName(record);
  }

  /** The key of a record by its name. */
  ofName(name: RecordName): string {
    switch (name.kind) {
      case 'pool':
        return this.pool(name.name);
      case 'block':
        return this.block(name.prefix);
      case 'affinity':
        return this.affinity(name.owner, name.block);
      case 'handle':
        return this.handle(name.id);
      case 'endpoint':
        return this.endpoint(name.key);
      case 'config':
        return this.config;
      case 'clusterInformation':
        return this.clusterInformation;
      case 'requestPolicies':
        return this.requestPolicies;
      case 'reservation':
        return this.reservation(name.name);
      case 'node':
        return this.node(name.name);
      case 'nodeSession':
        return this.session(name.name);
      case 'storeEpoch':
        return this.epoch;
      case 'revokedCertificates':
        return this.revokedCertificates;
    }
  }

  isOfHandle(key: string): boolean {
    return key.startsWith(this.handles);
  }

  /** The record that a key names; undefined for records that Podwire does not read. */
  parse(key: string): RecordName | undefined {
    // This kind is by far the most frequent.
    if (this.isOfHandle(key)) return parseHandle(key.slice(this.handles.length));
    if (key.startsWith(this.endpoints)) return parseEndpoint(key.slice(this.endpoints.length));
    if (!key.startsWith(this.root)) return undefined;
    if (key === this.requestPolicies) return { kind: 'requestPolicies' };
    if (key === this.epoch) return { kind: 'storeEpoch' };
    if (key === this.revokedCertificates) return { kind: 'revokedCertificates' };
    if (key.startsWith(this.#sessions)) return parseSession(key.slice(this.#sessions.length));
    if (key === this.clusterInformation) return this.hasLock ? { kind: 'clusterInformation' } : undefined;
    const [area, version, ...path] = key.slice(this.root.length).split('/');
    if (area === 'ipam' && version === 'v2') return parseIpam(path);
    if (area === 'resources' && version === 'v3' && path[0] === 'projectcalico.org')
      return parseResource(path.slice(1));
    return undefined;
  }
}

const DAY_MS = 86_400_000;

/** Digits of a day in a key. */
export const DAY_DIGITS = 8;

/** Days from 1970 to a time. */
export function dayOf(timeMs: number): number {
  return Math.max(0, Math.floor(timeMs / DAY_MS));
}

/** Start of a day, in epoch milliseconds. */
export function dayStartMs(day: number): number {
  return day * DAY_MS;
}

/** Days since 1970, with leading zeros, so that they sort as texts. */
export function historyDay(day: number): string {
  return String(day).padStart(DAY_DIGITS, '0');
}

function blockSegments(prefix: Prefix): string {
  return `ipv${prefix.family}/block/${formatAddress(prefix)}-${prefix.length}`;
}

function parseIpam([area, ...path]: readonly string[]): RecordName | undefined {
  const [first, ...rest] = path;
  switch (area) {
    case 'assignment': {
      const prefix = parseBlockSegments(path);
      return prefix && { kind: 'block', prefix };
    }
    case 'host':
    case 'virtual': {
      const block = parseBlockSegments(rest);
      return block && first ? { kind: 'affinity', owner: { kind: area, name: first }, block } : undefined;
    }
    case 'config':
      return first === undefined ? { kind: 'config' } : undefined;
    case undefined:
    default:
      return undefined;
  }
}

const RESOURCES_BY_NAME = { ippools: 'pool', ipreservations: 'reservation', nodes: 'node' } as const;

function parseResource([kind, first, second]: readonly string[]): RecordName | undefined {
  if (kind !== 'ippools' && kind !== 'ipreservations' && kind !== 'nodes') return undefined;
  return first && second === undefined ? { kind: RESOURCES_BY_NAME[kind], name: first } : undefined;
}

/** Reads `<namespace>/<name>`. */
function parseEndpoint(path: string): RecordName | undefined {
  const slash = path.indexOf('/');
  if (slash <= 0 || slash === path.length - 1 || path.includes('/', slash + 1)) return undefined;
  return { kind: 'endpoint', key: { namespace: path.slice(0, slash), name: path.slice(slash + 1) } };
}

function parseHandle(id: string): RecordName | undefined {
  return id === '' || id.includes('/') ? undefined : { kind: 'handle', id };
}

function parseSession(name: string): RecordName | undefined {
  return name === '' || name.includes('/') ? undefined : { kind: 'nodeSession', name };
}

/** Reads `ipv4/block/10.0.0.0-26`. */
function parseBlockSegments([version, block, cidr, ...rest]: readonly string[]): Prefix | undefined {
  if (block !== 'block' || cidr === undefined || rest.length > 0) return undefined;
  const dash = cidr.lastIndexOf('-');
  const address = parseAddress(cidr.slice(0, dash));
  const family: Family | undefined = version === 'ipv4' ? 4 : version === 'ipv6' ? 6 : undefined;
  if (dash < 0 || address?.family !== family) return undefined;
  const parsed = parsePrefix(`${cidr.slice(0, dash)}/${cidr.slice(dash + 1)}`);
  return parsed.ok ? parsed.prefix : undefined;
}
