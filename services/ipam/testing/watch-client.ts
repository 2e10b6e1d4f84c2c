import { setMaxListeners } from 'node:events';

import { addressAt, defaultRoute } from '@podwire/shared/net/prefix';
import { systemClock } from '@podwire/shared/runtime/clock';
import { compareTexts } from '@podwire/shared/words/order';

import { Mirror } from '../engine/mirror/mirror.js';
import { parseToken, StreamHub, type HubOptions } from '../engine/streams/hub.js';
import type { StreamMessage, StreamPhase, StreamQuery } from '../engine/streams/stream.js';
import type { MemoryStore } from '../engine/testing/memory-store.js';
import { attributesAt } from '../records/block.js';
import { RecordKeys } from '../records/json/keys.js';
import { encodeRecord, serialize } from '../records/json/registry.js';
import { poolOf } from '../records/pool.js';
import type { RecordValue, View } from '../records/view.js';
import { Catalog, type CatalogOptions } from '../watch/catalog.js';
import { nameOf, type EncodableChange, type WatchedKind, type WatchedObject } from '../watch/watched-objects.js';

export const keys = new RecordKeys('/calico', { hasLock: true });
export const forever: AbortSignal = new AbortController().signal;
setMaxListeners(0, forever);

const ALL_KINDS: readonly WatchedKind[] = ['pool', 'node', 'route'];

export function query(...kinds: readonly WatchedKind[]): StreamQuery {
  return new Set(kinds.length > 0 ? kinds : ALL_KINDS);
}

/** Any text that differs when the object does. */
function describe(object: WatchedObject): string {
  return JSON.stringify(object, (_, value: unknown) => {
    if (typeof value === 'bigint') return String(value);
    return typeof value === 'object' && value !== null ? inOrder(value) : value;
  });
}

/** Independent of the order in which fields were set. */
function inOrder(value: object): unknown {
  if (value instanceof Map) return [...value];
  if (Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => compareTexts(a, b)));
}

/** Messages as lines of JSON, and a count of encoded messages. */
export class LineCodec {
  encoded = 0;
  messages = 0;

  readonly change = (change: EncodableChange): Uint8Array => {
    this.encoded++;
    const line =
      change.type === 'put'
        ? { kind: change.object.kind, name: nameOf(change.object), object: describe(change.object) }
        : { kind: change.kind, name: change.name };
    return Buffer.from(`${JSON.stringify(line)}\n`);
  };

  readonly message = ({ phase, reset, changes, resumeToken, isLocked }: StreamMessage): Uint8Array => {
    this.messages++;
    return Buffer.concat([Buffer.from(`${JSON.stringify({ phase, reset, resumeToken, isLocked })}\n`), ...changes]);
  };
}

interface ReadMessage {
  readonly phase: StreamPhase;
  readonly reset: boolean;
  readonly resumeToken: string;
  readonly isLocked: boolean;
  readonly changes: readonly { readonly kind: WatchedKind; readonly name: string; readonly object?: string }[];
}

export function readMessage(bytes: Uint8Array): ReadMessage {
  const [head = '', ...lines] = Buffer.from(bytes).toString().trimEnd().split('\n');
  return { ...JSON.parse(head), changes: lines.map((line) => JSON.parse(line)) };
}

/** A replica: a mirror of the store, and the hub that it feeds. */
export interface WatchingReplica {
  readonly objects: Catalog;
  readonly hub: StreamHub;
  readonly mirror: Mirror;
  readonly codec: LineCodec;
  close(): Promise<void>;
}

export type WatchingOptions = Partial<HubOptions> & Pick<CatalogOptions, 'recentCapacity'>;

export async function startWatching(store: MemoryStore, rest: WatchingOptions = {}): Promise<WatchingReplica> {
  const codec = new LineCodec();
  const currentRevision = (signal: AbortSignal): Promise<number> => store.revision(signal);
  const objects = new Catalog({ keys, encode: codec.change, recentCapacity: rest.recentCapacity });
  const { observe } = objects;
  const encode = codec.message;
  const hub = new StreamHub({ objects, encode, clock: systemClock, datastore: 'd', currentRevision, ...rest });
  const clock = { ...systemClock, sleep: (_: number, signal: AbortSignal) => systemClock.sleep(1, signal) };
  const report = (): void => undefined;
  const mirror = await Mirror.start({ store, keys, clock, random: () => 0.5, report, observe }, forever);
  const close = async (): Promise<void> => {
    hub.close();
    await mirror.close();
  };
  return { objects, hub, mirror, codec, close };
}

/** Writes records as another replica would. */
export async function write(store: MemoryStore, ...records: readonly RecordValue[]): Promise<number> {
  const puts = records.map((record) => ({ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }));
  await store.commit({ comparisons: [], puts, deletes: [] }, forever);
  return store.revision(forever);
}

/** Writes Calico's ClusterInformation as `calicoctl datastore migrate lock` and `unlock` do; undefined removes it. */
export async function setLock(store: MemoryStore, isLocked: boolean | undefined): Promise<number> {
  const key = keys.clusterInformation;
  if (isLocked === undefined) return remove(store, key);
  const value = JSON.stringify({ metadata: { name: 'default' }, spec: { datastoreReady: !isLocked } });
  await store.commit({ comparisons: [], puts: [{ key, value: Buffer.from(value) }], deletes: [] }, forever);
  return store.revision(forever);
}

export async function remove(store: MemoryStore, ...removed: readonly string[]): Promise<number> {
  await store.commit({ comparisons: [], puts: [], deletes: removed }, forever);
  return store.revision(forever);
}

/** The objects that a client has received, and its resume token. */
export class WatchingClient {
  readonly objects = new Map<string, string>();
  token = '';
  resets = 0;
  isLocked = false;
  readonly phases: StreamPhase[] = [];

  apply({ phase, reset, changes, resumeToken, isLocked }: ReadMessage): void {
    this.isLocked = isLocked;
    if (reset) {
      this.objects.clear();
      this.resets++;
    }
    for (const { kind, name, object } of changes) {
      if (object === undefined) this.objects.delete(`${kind} ${name}`);
      else this.objects.set(`${kind} ${name}`, object);
    }
    if (resumeToken !== '') this.token = resumeToken;
    this.phases.push(phase);
  }

  get revision(): number {
    return parseToken(this.token)?.revision ?? 0;
  }

  request(wanted: StreamQuery) {
    return { query: wanted, from: this.token === '' ? undefined : parseToken(this.token) };
  }

  /** Reads on until the client has everything up to a revision. */
  async readUntil(hub: StreamHub, wanted: StreamQuery, revision: number): Promise<void> {
    const controller = new AbortController();
    for await (const bytes of hub.watch(this.request(wanted), controller.signal)) {
      this.apply(readMessage(bytes));
      if (this.revision >= revision) break;
    }
    controller.abort();
  }
}

/** A fresh list of all objects, read from the store. */
export async function freshList(store: MemoryStore, wanted: StreamQuery): Promise<Map<string, string>> {
  const report = (): void => undefined;
  const mirror = await Mirror.start({ store, keys, clock: systemClock, random: () => 0.5, report }, forever);
  await mirror.close();
  const listed = new Map<string, string>();
  for (const object of objectsOf(mirror.view))
    if (wanted.has(object.kind)) listed.set(`${object.kind} ${nameOf(object)}`, describe(object));
  return listed;
}

function* objectsOf(view: View): Generator<WatchedObject> {
  for (const value of view.pools()) yield { kind: 'pool', value };
  for (const value of view.nodes()) yield { kind: 'node', value };
  for (const block of view.blocksIn(defaultRoute(4))) {
    const poolName = poolOf(view.pools(), block.prefix)?.name;
    const nodeName = block.owner?.kind === 'host' ? block.owner.name : undefined;
    const borrowed = block.allocations.flatMap((_, ordinal) => {
      const attributes = attributesAt(block, ordinal);
      const borrower = attributes?.releasedAtMs === undefined ? attributes?.owner.node : undefined;
      const isBorrowed = borrower !== undefined && borrower !== nodeName;
      return isBorrowed ? [{ address: addressAt(block.prefix, ordinal), nodeName: borrower }] : [];
    });
    yield { kind: 'route', value: { prefix: block.prefix, poolName, nodeName, borrowed } };
  }
}

export function sorted(objects: ReadonlyMap<string, string>): [string, string][] {
  return [...objects].sort(([a], [b]) => (a < b ? -1 : 1));
}

export async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 1));
}
