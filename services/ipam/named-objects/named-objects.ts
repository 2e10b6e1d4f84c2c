import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';

import { wholeSeconds } from '../records/block.js';
import { pageOf, type Page, type PageQuery } from '../records/page.js';
import { versionOf } from '../records/versions.js';
import type { Change, Decision, View } from '../records/view.js';

/** Fields that the service adds to the content of an object. */
interface Identity {
  readonly uid: string;
  readonly createTimeMs: number;
}

interface Named {
  readonly name: string;
}

export type NamedObject = Named & Identity;

/** An object of this version. */
export interface VersionedName extends Named {
  /** Empty for any. */
  readonly resourceVersion: string;
}

export interface Replacement<Spec> {
  readonly spec: Spec;
  /** Change only if the object still is of this version; empty for any. */
  readonly resourceVersion: string;
}

/** A kind of objects. */
interface Kind<Value, Spec> {
  /** In texts: `request policy`, `request policies`. */
  readonly noun: string;
  readonly plural: string;
  /** Key of the name in the details of failures and in log lines. */
  readonly key: string;
  readonly exists: FailureCode;
  readonly notFound: FailureCode;
  /** All objects, in the order of their names. @throws Failure STORE_CORRUPT */
  readonly all: (view: View) => readonly Value[];
  /** @throws Failure STORE_CORRUPT if there is an object of the name that cannot be read */
  readonly requireReadable: (view: View, name: string) => void;
  readonly make: (spec: Spec, identity: Identity) => Value;
  /** @throws Failure STORE_LIMIT */
  readonly put: (view: View, value: Value) => Change[];
  readonly remove: (view: View, value: Value) => Change[];
  /** Completes the log line of a change: `created reservation "x" …`. */
  readonly describe: (value: Value) => string;
}

/** Decisions about the objects of a kind that an operator creates, replaces and deletes by name. */
export class NamedObjects<Value extends NamedObject, Spec extends Named> {
  readonly kind: Kind<Value, Spec>;

  constructor(kind: Kind<Value, Spec>) {
    this.kind = kind;
  }

  /** @throws Failure of {@link Kind.exists}; STORE_LIMIT, STORE_CORRUPT */
  create(
    view: View,
    { spec, uid, nowMs }: { readonly spec: Spec; readonly uid: string; readonly nowMs: number },
  ): Decision<Value> {
    const { all, exists, make, put } = this.kind;
    if (all(view).some(({ name }) => name === spec.name))
      throw this.#failure(exists, spec.name, 'exists already; choose another name, or update it');
    const value = make(spec, { uid, createTimeMs: wholeSeconds(nowMs) });
    return { changes: put(view, value), outcome: value };
  }

  /** @throws Failure of {@link Kind.notFound}; STORE_CORRUPT */
  get(view: View, name: string): Value {
    const { all, key, noun, notFound, plural, requireReadable } = this.kind;
    const value = all(view).find((each) => each.name === name);
    if (value) return value;
    requireReadable(view, name);
    const text = `there is no ${noun} "${name}"; list the ${plural} for their names`;
    throw new Failure(notFound, text, { details: { [key]: name } });
  }

  /** @throws Failure STORE_CORRUPT */
  list(view: View, query: PageQuery): Page<Value> {
    return pageOf(this.kind.all(view), query);
  }

  /** Idempotent without a version. @throws Failure like {@link get}; STALE_VERSION, STORE_LIMIT */
  update(
    view: View,
    { spec, resourceVersion }: Replacement<Spec>,
  ): Decision<{ readonly value: Value; readonly changed: boolean }> {
    const { make, put } = this.kind;
    const stored = this.#requireVersion(view, { name: spec.name, resourceVersion });
    const value = make(spec, { uid: stored.uid, createTimeMs: stored.createTimeMs });
    const changed = versionOf(value) !== versionOf(stored);
    return { changes: changed ? put(view, value) : [], outcome: { value, changed } };
  }

  /** @throws Failure like {@link get}; STALE_VERSION */
  delete(view: View, named: VersionedName): Decision<Value> {
    const value = this.#requireVersion(view, named);
    return { changes: this.kind.remove(view, value), outcome: value };
  }

  #requireVersion(view: View, { name, resourceVersion }: VersionedName): Value {
    const value = this.get(view, name);
    if (resourceVersion === '' || resourceVersion === versionOf(value)) return value;
    const reason = `was changed since resource version ${resourceVersion}; read it again and retry`;
    throw this.#failure('STALE_VERSION', name, reason);
  }

  #failure(code: FailureCode, name: string, reason: string): Failure {
    return new Failure(code, `${this.kind.noun} "${name}" ${reason}`, { details: { [this.kind.key]: name } });
  }
}
