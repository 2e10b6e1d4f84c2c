import type { Clock } from '@podwire/shared/runtime/clock';

import { MERGE_PATCH, type KubernetesApi } from '../../api-server/api.js';
import { listPages } from '../../api-server/lists.js';
import { asObject, isObject, objectIn, type JsonObject } from '../../records/json/json.js';
import type { Resource } from './object-forms.js';
import {
  ALLOCATABLE,
  conditionsOf,
  finalizersOf,
  isOwnCondition,
  POOL_FINALIZER,
  STATUS_MANAGER,
} from './pool-form.js';

/** The part of a pool's object that podwire-ipam writes. */
export interface PublishedStatus {
  readonly name: string;
  readonly isAllocatable: boolean;
  /** In the form of a condition's reason: one word in camel case. */
  readonly reason: string;
  readonly message: string;
  /** Whether a deletion waits for podwire-ipam; undefined: as it is. */
  readonly isDrained: boolean | undefined;
}

interface PoolStatusWriterOptions {
  readonly api: KubernetesApi;
  /** Calico's IPPool in the group that is in use. */
  readonly resource: Resource;
  readonly clock: Clock;
}

const APPLY_PATCH = 'application/apply-patch+yaml';

/**
 * Writes the condition `Allocatable` and the finalizer of pools. Spec, labels and annotations are the user's. A condition of another
 * writer, such as Calico's pool controller, stays: server-side apply takes over nothing by itself. Calico's definitions before 3.32
 * have no status, and their pools no condition.
 */
export class PoolStatusWriter {
  readonly #options: PoolStatusWriterOptions;

  constructor(options: PoolStatusWriterOptions) {
    this.#options = options;
  }

  /** Idempotent. Pools that do not exist are skipped. @throws Failure of the API server */
  async publish(statuses: readonly PublishedStatus[], signal: AbortSignal): Promise<void> {
    const byName = new Map(statuses.map((status) => [status.name, status]));
    const { api, resource } = this.#options;
    for await (const { items } of listPages(api, { path: resource.path, signal }))
      for (const item of items) {
        const object = asObject(item) ?? {};
        const status = byName.get(nameOf(object));
        if (status) await this.#publishOne(status, object, signal);
      }
  }

  async #publishOne(status: PublishedStatus, object: JsonObject, signal: AbortSignal): Promise<void> {
    const metadata = objectIn(object, 'metadata');
    const finalizers = finalizersOf(object);
    const hasFinalizer = finalizers.includes(POOL_FINALIZER);
    if (metadata.deletionTimestamp === undefined && status.isDrained === true && !hasFinalizer)
      await this.#setFinalizers(object, [...finalizers, POOL_FINALIZER], signal);
    if (status.isDrained === false && hasFinalizer) {
      const left = finalizers.filter((each) => each !== POOL_FINALIZER);
      await this.#setFinalizers(object, left, signal);
    }
    await this.#setCondition(status, object, signal);
  }

  /** A pool that another writer has changed meanwhile is left to the next run. */
  async #setFinalizers(object: JsonObject, finalizers: readonly string[], signal: AbortSignal): Promise<void> {
    const { api, resource } = this.#options;
    const { uid = null, resourceVersion = null } = objectIn(object, 'metadata');
    const path = `${resource.path}/${nameOf(object)}`;
    const body = { metadata: { uid, resourceVersion, finalizers } };
    await api.send({ method: 'PATCH', path, body, contentType: MERGE_PATCH, signal });
  }

  async #setCondition(status: PublishedStatus, object: JsonObject, signal: AbortSignal): Promise<void> {
    const { api, resource, clock } = this.#options;
    const { generation } = objectIn(object, 'metadata');
    const found = conditionsOf(object).find((each) => isObject(each) && each.type === ALLOCATABLE);
    const known = isObject(found) ? found : undefined;
    if (known && !isOwnCondition(object)) return;
    const { reason, message } = status;
    const wanted = {
      type: ALLOCATABLE,
      status: status.isAllocatable ? 'True' : 'False',
      reason,
      message,
      ...(typeof generation === 'number' ? { observedGeneration: generation } : {}),
    };
    const fields = Object.entries(wanted);
    if (known && fields.every(([name, value]) => known[name] === value)) return;
    const lastTransitionTime =
      known?.status === wanted.status ? known.lastTransitionTime : new Date(clock.nowMs()).toISOString();
    const name = nameOf(object);
    const body = {
      apiVersion: resource.apiVersion,
      kind: resource.kind,
      metadata: { name, uid: objectIn(object, 'metadata').uid },
      status: { conditions: [{ ...wanted, lastTransitionTime }] },
    };
    const path = `${resource.path}/${name}/status?fieldManager=${STATUS_MANAGER}`;
    // Missing, or another writer's condition: both are no failures.
    await api.send({ method: 'PATCH', path, body, contentType: APPLY_PATCH, signal });
  }
}

function nameOf(object: JsonObject): string {
  const { name } = objectIn(object, 'metadata');
  return typeof name === 'string' ? name : '';
}
