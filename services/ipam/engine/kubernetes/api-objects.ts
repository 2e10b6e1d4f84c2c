import { isDeepStrictEqual } from 'node:util';

import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal, isAborted } from '@podwire/shared/failure/signal';
import { backoffMs, type BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import {
  MERGE_PATCH,
  NOT_EXECUTED,
  pauseMs,
  type ApiAnswer,
  type ApiRequest,
  type KubernetesApi,
} from '../../api-server/api.js';
import { listPages, METADATA_ONLY } from '../../api-server/lists.js';
import { ObjectFeed } from '../../api-server/object-feed.js';
import {
  asObject,
  formatJson,
  isObject,
  objectIn,
  parseJson,
  type Json,
  type JsonObject,
} from '../../records/json/json.js';
import type { ApiObject, ObjectApi, ObjectContent, ObjectObserver, WriteOutcome } from './object-api.js';
import { isMarkedDeleted, ObjectForms, type CalicoGroup, type ReadObject, type Resource } from './object-forms.js';
import { deletionTimeIn, finalizersOf, POOL_FINALIZER } from './pool-form.js';

interface ApiObjectsOptions {
  readonly api: KubernetesApi;
  readonly forms: ObjectForms;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Receives each failure of a watch, which is retried, and undefined when it is open again. Must not throw. */
  readonly report: (resource: string, failure: unknown) => void;
  /** Called before each write. Throws a Failure while this process must not write. */
  readonly authorizeWrite: () => void;
}

const BACKOFF: BackoffBounds = { baseMs: 50, maxMs: 2_000 };

const NOT_FOUND = 404;
const CONFLICT = 409;

/** A write in progress. */
interface Attempt {
  readonly request: Omit<ApiRequest, 'signal'>;
  readonly id: string;
  /** Whether the object that a repeated request meets already has the wanted content. */
  readonly isDone: (found: JsonObject | undefined) => boolean;
}

/**
 * The objects of a cluster's API server.
 *
 * The API server may execute a request after its failure was reported. So a request is repeated until its outcome is known. The
 * API server refuses a request whose object has changed, so at most one of the repetitions has an effect. The same refusal fences
 * a request that is in flight while this process loses the lease: either it is too late for its object's version, or the next
 * leader's write of that object is, which then reads the object.
 */
export class ApiObjects implements ObjectApi {
  readonly #options: ApiObjectsOptions;
  readonly #feeds: ObjectFeed<JsonObject>[] = [];

  constructor(options: ApiObjectsOptions) {
    this.#options = options;
  }

  objectOf(key: string): string | undefined {
    return this.#options.forms.objectOf(key);
  }

  async follow(observer: ObjectObserver, signal: AbortSignal): Promise<void> {
    await Promise.all(
      this.#options.forms.resources.map((resource) => this.#followResource(resource, observer, signal)),
    );
  }

  async versions(signal: AbortSignal): Promise<ReadonlyMap<string, string>> {
    const { api, forms } = this.#options;
    const versions = new Map<string, string>();
    const list = async (resource: Resource): Promise<void> => {
      const fieldSelector = ObjectForms.fieldSelector(resource) ?? '';
      const request = { path: resource.path, fieldSelector, accept: METADATA_ONLY, signal };
      for await (const { items } of listPages(api, request))
        for (const item of items) {
          const object = asObject(item);
          if (object) versions.set(idOf(resource, object), versionOf(object));
        }
    };
    try {
      await Promise.all(forms.resources.map(list));
    } catch (error) {
      throw storeFailure(error);
    }
    return versions;
  }

  async read(id: string, signal: AbortSignal): Promise<ApiObject | undefined> {
    const { resource } = this.#options.forms.placeOf(id);
    const object = await this.#readRaw(id, signal);
    return object && this.#apiObject(resource, object);
  }

  async write(content: ObjectContent, base: ApiObject | undefined, signal: AbortSignal): Promise<WriteOutcome> {
    const { forms } = this.#options;
    const { resource, name } = forms.placeOf(content.id);
    if (resource.plural === 'nodes' && !base) throw missingNode(name);
    const isDone = (found: JsonObject | undefined): boolean =>
      found !== undefined && this.#hasContent(resource, found, content);
    const patch = forms.patch(content, base?.source);
    const path = base ? `${resource.path}/${name}` : resource.path;
    const body = patch ?? withFinalizer(resource, forms.write(content, base?.source));
    const request = patch
      ? ({ method: 'PATCH', path, json: formatJson(body), contentType: MERGE_PATCH } as const)
      : ({ method: base ? 'PUT' : 'POST', path, json: formatJson(body) } as const);
    const written = await this.#settle({ id: content.id, request, isDone }, signal);
    if (written.type === 'refused') return this.#refused(resource, written.found, signal);
    const [value] = content.records.values();
    if (resource.plural === 'ippools' && deletionTimeIn(value) !== undefined)
      return this.#beginDeletion(content.id, written.object, signal);
    return { type: 'written', object: this.#asWritten(resource, written.object, content) };
  }

  async remove(base: ApiObject, signal: AbortSignal): Promise<WriteOutcome> {
    const { forms } = this.#options;
    const { resource, name } = forms.placeOf(base.id);
    const path = `${resource.path}/${name}`;
    const isGone = (found: JsonObject | undefined): boolean => found === undefined;
    if (resource.plural === 'nodes') {
      const body = forms.patch({ ...base, records: new Map() }, base.source) ?? {};
      const request = { method: 'PATCH', path, body, contentType: MERGE_PATCH } as const;
      const written = await this.#settle({ id: base.id, request, isDone: isGone }, signal);
      if (written.type === 'refused') return this.#refused(resource, written.found, signal);
      return { type: 'written', object: this.#apiObject(resource, written.object) };
    }
    const request = { method: 'DELETE', path, body: preconditionsOf(base) } as const;
    const ended = await this.#settle({ id: base.id, request, isDone: isGone }, signal);
    if (ended.type === 'refused' && ended.found) return this.#refused(resource, ended.found, signal);
    const version = resource.plural === 'ippools' ? await this.#endDeletion(base.id, signal) : undefined;
    return { type: 'written', object: undefined, ...(version === undefined ? {} : { version }) };
  }

  /** Age of the latest report of the watch that has been silent for the longest time. */
  get watchAgeMs(): number {
    return Math.max(0, ...this.#feeds.map(({ ageMs }) => ageMs));
  }

  close(): void {
    for (const feed of this.#feeds) void feed.stop();
    this.#options.api.close();
  }

  #followResource(resource: Resource, observer: ObjectObserver, signal: AbortSignal): Promise<void> {
    const { api, clock, random, report } = this.#options;
    return new Promise((resolve, reject) => {
      const feed = new ObjectFeed({
        ...{ api, clock, random, path: resource.path },
        fieldSelector: ObjectForms.fieldSelector(resource) ?? '',
        report: (failure) => report(resource.plural, failure),
        restored: () => observer.restored(),
        read: asObject,
        listed: (items, version) => {
          const objects = items.flatMap((object) => this.#apiObject(resource, object) ?? []);
          observer.listed(resource.plural, version, objects);
          resolve();
        },
        changed: (type, object) => {
          const known = type === 'DELETED' ? undefined : this.#apiObject(resource, object);
          if (known) observer.changed(known);
          else observer.deleted(idOf(resource, object), versionOf(object));
        },
      });
      this.#feeds.push(feed);
      signal.addEventListener('abort', () => {
        void feed.stop();
        reject(failureOfSignal(signal));
      });
    });
  }

  /** Sends a request until its outcome is known. @throws Failure STORE_UNAVAILABLE, STORE_DENIED, or the signal's */
  async #settle(attempt: Attempt, signal: AbortSignal): Promise<Settled> {
    const { clock, random, api, authorizeWrite } = this.#options;
    let isRepeated = false;
    for (let count = 0; ; count++) {
      try {
        authorizeWrite();
        const { status, body } = requireServed(await api.send({ ...attempt.request, signal }), attempt.request);
        if (status !== NOT_FOUND && status !== CONFLICT) return { type: 'written', object: asObject(body) ?? {} };
        const found = await this.#readRaw(attempt.id, signal);
        return isRepeated && attempt.isDone(found)
          ? { type: 'written', object: found ?? {} }
          : { type: 'refused', found };
      } catch (error) {
        if (!(error instanceof Failure) || isAborted(signal) || !REPEATED.has(error.code)) throw storeFailure(error);
        isRepeated ||= error.details.executed !== NOT_EXECUTED.executed;
        await clock.sleep(pauseMs(error, backoffMs(count, BACKOFF, random())), signal);
        if (isAborted(signal)) throw storeFailure(error);
      }
    }
  }

  /** Another writer was faster. Deletes an object that it has only marked as deleted. */
  async #refused(resource: Resource, found: JsonObject | undefined, signal: AbortSignal): Promise<WriteOutcome> {
    const object = found && this.#apiObject(resource, found);
    if (found && !object) {
      if (!isMarkedDeleted(found)) throw foreignContent(idOf(resource, found));
      await this.#send({ method: 'DELETE', path: pathOf(resource, found), body: uidOf(found) }, signal);
    }
    return { type: 'conflict', found: object };
  }

  /** The API server keeps a deleted pool while it has the finalizer. */
  async #beginDeletion(id: string, object: JsonObject, signal: AbortSignal): Promise<WriteOutcome> {
    const { resource } = this.#options.forms.placeOf(id);
    await this.#send({ method: 'DELETE', path: pathOf(resource, object), body: uidOf(object) }, signal);
    const deleted = await this.#readRaw(id, signal);
    return { type: 'written', object: deleted && this.#apiObject(resource, deleted) };
  }

  /** Removes the own finalizer, if the object still exists. @returns the object's last version */
  async #endDeletion(id: string, signal: AbortSignal): Promise<string | undefined> {
    const { resource } = this.#options.forms.placeOf(id);
    const object = await this.#readRaw(id, signal);
    if (!object) return undefined;
    const finalizers = finalizersOf(object).filter((each) => each !== POOL_FINALIZER);
    const { uid = null, resourceVersion = null } = objectIn(object, 'metadata');
    const body = { metadata: { uid, resourceVersion, finalizers } };
    const request = { method: 'PATCH', path: pathOf(resource, object), body, contentType: MERGE_PATCH } as const;
    const ended = await this.#send(request, signal);
    return versionOf(asObject(ended.body) ?? object);
  }

  async #readRaw(id: string, signal: AbortSignal): Promise<JsonObject | undefined> {
    const { resource, name } = this.#options.forms.placeOf(id);
    const { status, body } = await this.#send({ method: 'GET', path: `${resource.path}/${name}` }, signal);
    return status === NOT_FOUND ? undefined : asObject(body);
  }

  async #send(request: Omit<ApiRequest, 'signal'>, signal: AbortSignal): Promise<ApiAnswer> {
    if (request.method !== 'GET') this.#options.authorizeWrite();
    try {
      return requireServed(await this.#options.api.send({ ...request, signal }), request);
    } catch (error) {
      throw storeFailure(error);
    }
  }

  #hasContent(resource: Resource, object: JsonObject, { records }: ObjectContent): boolean {
    const read = this.#options.forms.read(resource, object);
    return read !== undefined && isDeepStrictEqual(parsed(read.records), parsed(records));
  }

  /** The object after an own write. Its records keep the caller's bytes, except where the API server adds fields. */
  #asWritten(resource: Resource, object: JsonObject, { records, details }: ObjectContent): ApiObject | undefined {
    const read = this.#apiObject(resource, object);
    return read && SERVER_SETS.includes(resource.plural) ? read : read && { ...read, records, details };
  }

  #apiObject(resource: Resource, object: JsonObject): ApiObject | undefined {
    const read: ReadObject | undefined = this.#options.forms.read(resource, object);
    const { uid } = objectIn(object, 'metadata');
    if (!read || typeof uid !== 'string') return undefined;
    const source = ObjectForms.source(resource, object);
    return { id: idOf(resource, object), uid, version: versionOf(object), source, ...read };
  }
}

type Settled =
  | { readonly type: 'written'; readonly object: JsonObject }
  | { readonly type: 'refused'; readonly found: JsonObject | undefined };

/** Resources of which the API server sets fields of records: UID, creation and deletion time. */
const SERVER_SETS: readonly string[] = ['ippools', 'ipreservations', 'nodes'];

const REPEATED: ReadonlySet<string> = new Set(['UNREACHABLE', 'DEADLINE_EXCEEDED']);

/**
 * Finds the API group with Calico's objects. As in Calico, v3 is used only if it alone is served, or once a migration has copied
 * all objects to it. @returns undefined if none is served
 */
export async function discoverGroup(api: KubernetesApi, signal?: AbortSignal): Promise<CalicoGroup | undefined> {
  const [v1, v3] = ['crd.projectcalico.org/v1', 'projectcalico.org/v3'] as const;
  if (await isServed(api, `/apis/${v1}/ipamblocks`, signal)) return (await isMigrated(api, signal)) ? v3 : v1;
  return (await isServed(api, `/apis/${v3}/ipamblocks`, signal)) ? v3 : undefined;
}

/**
 * Whether Calico's migration has copied all objects to v3, and cannot be aborted any more. It then leaves v1 locked, and unlocks v3;
 * an operator decides when it deletes v1.
 */
async function isMigrated(api: KubernetesApi, signal?: AbortSignal): Promise<boolean> {
  const read = async (path: string): Promise<JsonObject> => {
    const { status, body } = await api.send({ method: 'GET', path, ...(signal && { signal }) });
    return (status === NOT_FOUND ? undefined : asObject(body)) ?? {};
  };
  const group = '/apis/migration.projectcalico.org';
  const { version } = objectIn(await read(group), 'preferredVersion');
  if (typeof version !== 'string') return false;
  const { phase } = objectIn(await read(`${group}/${version}/datastoremigrations/v1-to-v3`), 'status');
  return phase === 'Converged' || phase === 'Complete';
}

/** Whether the API server has the definition of the objects at a path. It creates none while it deletes the definition. */
async function isServed(api: KubernetesApi, path: string, signal?: AbortSignal): Promise<boolean> {
  const slash = path.lastIndexOf('/');
  const request = { method: 'GET', path: path.slice(0, slash), ...(signal && { signal }) } as const;
  const { status, body } = await api.send(request);
  const resources = asObject(body)?.resources;
  const isWanted = (resource: Json): boolean => {
    if (!isObject(resource) || resource.name !== path.slice(slash + 1)) return false;
    return Array.isArray(resource.verbs) && resource.verbs.includes('create');
  };
  return status !== NOT_FOUND && Array.isArray(resources) && resources.some(isWanted);
}

/**
 * An object whose resource is not served any more is not a missing one: a migration has deleted Calico's definitions. Of a missing
 * object the API server returns a Status.
 * @throws Failure STORE_UNAVAILABLE
 */
function requireServed(answer: ApiAnswer, { path }: Pick<ApiRequest, 'path'>): ApiAnswer {
  if (answer.status !== NOT_FOUND || answer.body !== undefined) return answer;
  throw new Failure('STORE_UNAVAILABLE', `${path}: the API server does not serve this resource; apply its definition`);
}

export function storeFailure(error: unknown): unknown {
  if (!(error instanceof Failure)) return error;
  const { message, details } = error;
  if (error.code === 'ACCESS_DENIED') return new Failure('STORE_DENIED', message, { details, cause: error });
  const isUnavailable = error.code === 'UNREACHABLE' || error.code === 'DEADLINE_EXCEEDED';
  return isUnavailable ? new Failure('STORE_UNAVAILABLE', message, { details, cause: error }) : error;
}

/** Deleting it could free addresses in use. */
function foreignContent(id: string): Failure {
  const [plural = '', name = ''] = id.split('/', 2);
  const text = `${plural} ${name}: its CIDR or node does not belong to its name, so podwire-ipam does not read it and cannot write it; correct it with kubectl edit ${plural} ${name}, or delete it if no pod has an address of it`;
  return new Failure('STORE_CORRUPT', text);
}

function missingNode(name: string): Failure {
  const text = `node "${name}": Kubernetes has no such Node; give the node the name that kubectl get nodes shows`;
  return new Failure('NODE_NOT_FOUND', text, { details: { node: name } });
}

function idOf({ plural }: Resource, object: JsonObject): string {
  const { name } = objectIn(object, 'metadata');
  return `${plural}/${typeof name === 'string' ? name : ''}`;
}

function pathOf({ path }: Resource, object: JsonObject): string {
  const { name } = objectIn(object, 'metadata');
  return `${path}/${typeof name === 'string' ? name : ''}`;
}

export function versionOf(object: JsonObject): string {
  const { resourceVersion } = objectIn(object, 'metadata');
  return typeof resourceVersion === 'string' ? resourceVersion : '';
}

export function preconditionsOf({ uid, version }: Pick<ApiObject, 'uid' | 'version'>): JsonObject {
  return { apiVersion: 'v1', kind: 'DeleteOptions', preconditions: { uid, resourceVersion: version } };
}

function uidOf(object: JsonObject): JsonObject {
  const { uid = null } = objectIn(object, 'metadata');
  return { apiVersion: 'v1', kind: 'DeleteOptions', preconditions: { uid } };
}

function withFinalizer({ plural }: Resource, object: JsonObject): JsonObject {
  const finalizers = finalizersOf(object);
  if (plural !== 'ippools' || finalizers.includes(POOL_FINALIZER)) return object;
  return { ...object, metadata: { ...objectIn(object, 'metadata'), finalizers: [...finalizers, POOL_FINALIZER] } };
}

function parsed(records: ReadonlyMap<string, Uint8Array>): ReadonlyMap<string, unknown> {
  return new Map([...records].map(([key, value]) => [key, parseJson(Buffer.from(value).toString() || '{}')]));
}
