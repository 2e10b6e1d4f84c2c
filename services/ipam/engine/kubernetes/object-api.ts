import type { NetnsIdentity } from '../../records/attributes.js';
import type { JsonObject } from '../../records/json/json.js';

/** Facts about an attachment. On other datastores only its endpoint's record has them. */
export interface HolderDetails {
  /** UID of the pod; empty if unknown. */
  readonly podUid: string;
  readonly netns: NetnsIdentity | undefined;
}

/** An object of the API server that holds records, in the form of {@link Store}'s values. */
export interface ApiObject {
  /** Resource and name: `ipamblocks/10-65-0-0-26`. */
  readonly id: string;
  /** Differs for every object that ever had the name. */
  readonly uid: string;
  /** Resource version, comparable with other versions of the same resource (KEP-5504). */
  readonly version: string;
  /** Records by key. */
  readonly records: ReadonlyMap<string, Uint8Array>;
  /** Parts of the object that its records lack, for the next write; opaque to the store. */
  readonly source?: JsonObject;
  /** Details of the holders of a block's addresses, by formatted attachment. */
  readonly details: ReadonlyMap<string, HolderDetails>;
}

/** The wanted content of an object. */
export type ObjectContent = Pick<ApiObject, 'id' | 'records' | 'details'>;

export type WriteOutcome =
  /** `object`: as stored now; undefined after a deletion. `version`: the deleted object's last one, if it is not the base's. */
  | { readonly type: 'written'; readonly object: ApiObject | undefined; readonly version?: string }
  /** Nothing was written, because another writer was faster. `found`: the object as it is; undefined if there is none. */
  | { readonly type: 'conflict'; readonly found: ApiObject | undefined };

/** Receives what happens to the objects. No function may throw. */
export interface ObjectObserver {
  changed(object: ApiObject): void;
  deleted(id: string, version: string): void;
  /** All objects of a resource at a version; they may have changed unseen. */
  listed(resource: string, version: string, objects: readonly ApiObject[]): void;
  /** The API server has an earlier state than before: its etcd was restored from a backup. */
  restored(): void;
}

/**
 * The objects of the API server. Every write is one request that the API server carries out or refuses as a whole.
 * Methods fail with STORE_UNAVAILABLE or STORE_DENIED, and with CANCELLED or DEADLINE_EXCEEDED when their signal fires first;
 * after a failed write its outcome is unknown.
 */
export interface ObjectApi {
  /** The object that holds a record; undefined for keys that have no place in the API server. */
  objectOf(key: string): string | undefined;

  /** Reports all objects, and then their changes, until the signal fires. Resolves when all have been listed. */
  follow(observer: ObjectObserver, signal: AbortSignal): Promise<void>;

  /** Versions of all objects by ID, at least as new as the last write that was answered before the call. */
  versions(signal: AbortSignal): Promise<ReadonlyMap<string, string>>;

  read(id: string, signal: AbortSignal): Promise<ApiObject | undefined>;

  /** Creates an object (`base` undefined), or replaces it if it is still the base. */
  write(content: ObjectContent, base: ApiObject | undefined, signal: AbortSignal): Promise<WriteOutcome>;

  /** Deletes an object if it is still the base. */
  remove(base: ApiObject, signal: AbortSignal): Promise<WriteOutcome>;

  close(): void;
}
