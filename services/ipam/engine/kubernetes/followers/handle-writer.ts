import { observeMetrics } from '@podwire/shared/telemetry/instruments';

import type { KubernetesApi } from '../../../api-server/api.js';
import { listPages } from '../../../api-server/lists.js';
import type { Handle } from '../../../records/block.js';
import { lockedFailure } from '../../../records/datastore-lock.js';
import { asObject, objectIn, type JsonObject } from '../../../records/json/json.js';
import type { RecordKeys } from '../../../records/json/keys.js';
import { decodeRecord } from '../../../records/json/registry.js';
import { isLeaseHandle } from '../../../records/lease.js';
import { subdomainFault } from '../../../records/names.js';
import type { RecordChange, Store } from '../../store.js';
import { preconditionsOf, versionOf } from '../api-objects.js';
import type { CalicoGroup } from '../object-forms.js';
import { RecordFollower, type FollowerDeps } from './record-follower.js';

interface HandleWriterOptions extends FollowerDeps {
  readonly api: KubernetesApi;
  readonly group: CalicoGroup;
  readonly store: Pick<Store, 'read' | 'revision' | 'scan' | 'watch'>;
  readonly keys: RecordKeys;
}

/** Age from which on an allocation's handle has an object, in milliseconds. Most pods of Jobs end before. */
const WRITE_DELAY_MS = 60_000;

/** Another writer's handle without an allocation is deleted after this time: Calico writes a handle before its block. */
const FOREIGN_DELAY_MS = 300_000;

/** At most five writes per second. */
const PAUSE_MS = 200;

/** Marks objects that podwire-ipam has written. */
const MARK = 'podwire.dev/handle';

const TUNNEL = /^(ipip|vxlan|vxlan-v6|wireguard|wireguard-v6)-tunnel-addr-/;

const [NOT_FOUND, CONFLICT] = [404, 409];

/** An object of the API server. */
interface HandleObject {
  /** The handle's ID. */
  readonly id: string;
  readonly uid: string;
  readonly version: string;
  readonly isOwn: boolean;
  /** Numbers of addresses by block; undefined if they are wrong. */
  readonly counts: Handle['blocks'] | undefined;
}

/**
 * Writes Calico's IPAMHandle objects, which podwire-ipam itself does not need: handles follow from the blocks. `calicoctl ipam check`
 * counts an allocation without a handle as a problem. A handle is written late, so that a short-lived pod costs no write.
 *
 * An object that Calico has written keeps its content, as Calico changes handle and block one after the other. It is deleted if
 * its allocation has been gone for minutes, because podwire-ipam may have released the address.
 */
export class HandleWriter {
  readonly #options: HandleWriterOptions;
  readonly #path: string;
  /** The objects by name. */
  readonly #objects = new Map<string, HandleObject>();
  /** IDs with capital letters by the object's name. */
  readonly #mixedCase = new Map<string, Set<string>>();
  /** IDs that are no names of objects, or whose name another handle has. */
  readonly #unnamed = new Set<string>();
  readonly #follower: RecordFollower;
  readonly #endMetrics: () => void;

  /** The creator stops it before it closes the store. */
  constructor(options: HandleWriterOptions) {
    this.#options = options;
    const { store, keys, group } = options;
    this.#path = `/apis/${group}/ipamhandles`;
    this.#follower = new RecordFollower({
      ...options,
      store,
      prefix: keys.handles,
      pauseMs: PAUSE_MS,
      begin: (signal) => this.#readObjects(signal),
      changed: (change) => this.#changed(change),
      write: (name, signal) => this.#write(name, signal),
    });
    this.#endMetrics = observeMetrics(['podwire.ipam.kubernetes.handles'], (observe) => {
      observe('podwire.ipam.kubernetes.handles', this.#follower.waitingCount, { state: 'pending' });
      observe('podwire.ipam.kubernetes.handles', this.#unnamed.size, { state: 'unnamed' });
    });
  }

  async stop(): Promise<void> {
    this.#endMetrics();
    await this.#follower.stop();
  }

  /** Reads all objects, and requests the correction of wrong ones. */
  async #readObjects(signal: AbortSignal): Promise<void> {
    const { api } = this.#options;
    this.#objects.clear();
    for await (const { items } of listPages(api, { path: this.#path, signal })) {
      const objects = items.map(asObject).filter((object) => object !== undefined);
      const ids = objects.map(idOf);
      const handles = await this.#read(ids, signal);
      for (const [index, object] of objects.entries()) this.#learn(object, handles.get(ids[index] ?? ''));
    }
  }

  #changed(change: RecordChange): void {
    const id = change.key.slice(this.#options.keys.handles.length);
    const name = id.toLowerCase();
    if (change.type === 'delete') this.#removed(id, name);
    else if (subdomainFault(name) !== undefined) this.#unnamed.add(id);
    else this.#exists(id, name, this.#decode(change.key, change.value));
  }

  #exists(id: string, name: string, handle: Handle | undefined): void {
    if (id !== name) this.#mixedCase.set(name, (this.#mixedCase.get(name) ?? new Set()).add(id));
    const object = this.#objects.get(name);
    const isLasting = isLeaseHandle(id) || TUNNEL.test(id);
    if (!object) this.#follower.request(name, isLasting ? 0 : WRITE_DELAY_MS);
    else if (handle && !isOfHandle(object, handle)) this.#follower.request(name, WRITE_DELAY_MS);
  }

  #removed(id: string, name: string): void {
    this.#unnamed.delete(id);
    const mixed = this.#mixedCase.get(name);
    mixed?.delete(id);
    if (mixed?.size === 0) this.#mixedCase.delete(name);
    const object = this.#objects.get(name);
    if (object) this.#follower.request(name, object.isOwn ? 0 : FOREIGN_DELAY_MS);
    else if (id === name && !mixed) this.#follower.cancel(name);
  }

  /** Brings the object of a name up to date. */
  async #write(name: string, signal: AbortSignal): Promise<void> {
    await this.#requireUnlocked(signal);
    const handles = await this.#read([name, ...(this.#mixedCase.get(name) ?? [])], signal);
    const known = this.#objects.get(name);
    const handle = (known && handles.get(known.id)) ?? [...handles.values()][0];
    if (known && !handle) await this.#delete(name, known, signal);
    if (!handle) return;
    const isForeign = known !== undefined && !known.isOwn;
    for (const { id } of handles.values()) this.#unnamed.add(id);
    if (!isForeign || known.id === handle.id) this.#unnamed.delete(handle.id);
    if (!known || !isOfHandle(known, handle)) await this.#put(name, handle, known, signal);
  }

  async #put(name: string, handle: Handle, known: HandleObject | undefined, signal: AbortSignal): Promise<void> {
    const { api, group } = this.#options;
    const version = known ? { uid: known.uid, resourceVersion: known.version } : {};
    const body = {
      apiVersion: group,
      kind: 'IPAMHandle',
      metadata: { name, annotations: { [MARK]: 'written' }, ...version },
      spec: { handleID: handle.id, block: Object.fromEntries(handle.blocks), deleted: false },
    };
    const path = known ? `${this.#path}/${name}` : this.#path;
    const { status, body: answer } = await api.send({ method: known ? 'PUT' : 'POST', path, body, signal });
    const written = asObject(answer);
    if (status === NOT_FOUND || status === CONFLICT) await this.#readAgain(name, signal);
    else if (written) this.#learn(written, handle);
  }

  async #delete(name: string, { uid, version }: HandleObject, signal: AbortSignal): Promise<void> {
    const path = `${this.#path}/${name}`;
    const body = preconditionsOf({ uid, version });
    const { status } = await this.#options.api.send({ method: 'DELETE', path, body, signal });
    if (status === CONFLICT) await this.#readAgain(name, signal);
    else this.#objects.delete(name);
  }

  /** Another writer has changed the object. */
  async #readAgain(name: string, signal: AbortSignal): Promise<void> {
    const { status, body } = await this.#options.api.send({ method: 'GET', path: `${this.#path}/${name}`, signal });
    const object = asObject(body);
    if (status !== NOT_FOUND && object) {
      const id = idOf(object);
      this.#learn(object, (await this.#read([id], signal)).get(id));
      return;
    }
    this.#objects.delete(name);
    this.#follower.request(name, PAUSE_MS);
  }

  /** Notes an object, and requests its correction if it is wrong. */
  #learn(object: JsonObject, handle: Handle | undefined): void {
    const { name, uid } = objectIn(object, 'metadata');
    const spec = objectIn(object, 'spec');
    if (typeof name !== 'string' || typeof uid !== 'string') return;
    // Calico marks an object that it is about to delete.
    const isMarked = spec.deleted === true;
    const hasMark = objectIn(objectIn(object, 'metadata'), 'annotations')[MARK] !== undefined;
    // Calico's migration to v3 loses the annotation.
    const isOwn = isMarked || hasMark || isLeaseHandle(idOf(object));
    const counts = handle && !isMarked && hasCounts(objectIn(spec, 'block'), handle) ? handle.blocks : undefined;
    this.#objects.set(name, { id: idOf(object), uid, version: versionOf(object), isOwn, counts });
    if (!handle || (isOwn && !counts)) this.#follower.request(name, isOwn ? 0 : FOREIGN_DELAY_MS);
  }

  /** The handles of IDs that have an allocation. */
  async #read(ids: readonly string[], signal: AbortSignal): Promise<ReadonlyMap<string, Handle>> {
    const { store, keys } = this.#options;
    const wanted = ids.map((id) => keys.handle(id));
    const { records } = await store.read(wanted, signal);
    const handles = records.flatMap(({ key, value }) => this.#decode(key, value) ?? []);
    return new Map(handles.map((handle) => [handle.id, handle]));
  }

  #decode(key: string, value: Uint8Array): Handle | undefined {
    const name = this.#options.keys.parse(key);
    const record = name && decodeRecord(key, name, value).record;
    return record?.kind === 'handle' ? record.value : undefined;
  }

  /** @throws Failure STORE_LOCKED during a migration of Calico */
  async #requireUnlocked(signal: AbortSignal): Promise<void> {
    const { store, keys } = this.#options;
    const key = keys.clusterInformation;
    const [stored] = (await store.read([key], signal)).records;
    const record = stored && decodeRecord(key, { kind: 'clusterInformation' }, stored.value).record;
    if (record?.kind === 'clusterInformation' && record.value.isLocked) throw lockedFailure();
  }
}

function idOf(object: JsonObject): string {
  const { handleID } = objectIn(object, 'spec');
  return typeof handleID === 'string' ? handleID : '';
}

/** Whether nothing has to be written. The content of another writer's object is its own. */
function isOfHandle({ id, isOwn, counts }: HandleObject, handle: Handle): boolean {
  if (!isOwn) return true;
  if (id !== handle.id || counts?.size !== handle.blocks.size) return false;
  return [...handle.blocks].every(([cidr, count]) => counts.get(cidr) === count);
}

function hasCounts(blocks: JsonObject, handle: Handle): boolean {
  const entries = Object.entries(blocks);
  return (
    entries.length === handle.blocks.size && entries.every(([cidr, count]) => Number(count) === handle.blocks.get(cidr))
  );
}
