import { read, type IpamOptions } from '../engine/updates/operation.js';
import type { Page, PageQuery } from '../records/page.js';
import type { NamedObject, NamedObjects, Replacement, VersionedName } from './named-objects.js';

/** Manages the objects of a kind. Changes use one lane, and are reported after the commit. */
export class NamedOperations<Value extends NamedObject, Spec extends { readonly name: string }> {
  readonly #options: IpamOptions;
  readonly #objects: NamedObjects<Value, Spec>;
  readonly #lane: string;

  constructor(options: IpamOptions, objects: NamedObjects<Value, Spec>) {
    this.#options = options;
    this.#objects = objects;
    this.#lane = objects.kind.plural;
  }

  /** Not idempotent. @throws Failure like {@link NamedObjects.create} */
  async create(spec: Spec, signal: AbortSignal): Promise<Value> {
    const { updates, clock, newUid } = this.#options;
    const creation = { spec, uid: newUid(), nowMs: clock.nowMs() };
    const created = await updates.update(this.#lane, (view) => this.#objects.create(view, creation), { signal });
    this.#report('created', created);
    return created;
  }

  /** @throws Failure like {@link NamedObjects.get} */
  get(name: string, signal: AbortSignal): Promise<Value> {
    return read(this.#options, (view) => this.#objects.get(view, name), signal);
  }

  /** @throws Failure STORE_CORRUPT */
  list(query: PageQuery, signal: AbortSignal): Promise<Page<Value>> {
    return read(this.#options, (view) => this.#objects.list(view, query), signal);
  }

  /** Idempotent without a version. @throws Failure like {@link NamedObjects.update} */
  async update(replacement: Replacement<Spec>, signal: AbortSignal): Promise<Value> {
    const { updates } = this.#options;
    const updated = await updates.update(this.#lane, (view) => this.#objects.update(view, replacement), { signal });
    if (updated.changed) this.#report('updated', updated.value);
    return updated.value;
  }

  /** @throws Failure like {@link NamedObjects.delete} */
  async delete(named: VersionedName, signal: AbortSignal): Promise<void> {
    const { updates } = this.#options;
    this.#report('deleted', await updates.update(this.#lane, (view) => this.#objects.delete(view, named), { signal }));
  }

  #report(event: 'created' | 'updated' | 'deleted', value: Value): void {
    const { noun, key, describe } = this.#objects.kind;
    const text = `${event} ${noun} "${value.name}" ${describe(value)}`;
    this.#options.events.log.info({ [`podwire.${key}`]: value.name }, text);
  }
}
