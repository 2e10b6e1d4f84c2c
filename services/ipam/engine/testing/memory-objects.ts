import { Failure } from '@podwire/shared/failure/failure';

import type { RecordKeys } from '../../records/json/keys.js';
import type { ApiObject, ObjectApi, ObjectContent, ObjectObserver, WriteOutcome } from '../kubernetes/object-api.js';

export interface Connection {
  /** How many writes are carried out before the process dies: it then gets no answer, and no report. Default: all. */
  readonly writesCount?: number;
  /** When reports arrive: before anything else happens, after some turns of the event loop, or not. Default: `prompt`. */
  readonly reports?: 'prompt' | 'late' | 'never';
}

/** Records of one object each, but for Podwire's own ones, which share one. */
function objectOf(keys: RecordKeys, key: string): string | undefined {
  if (keys.isOfHandle(key) || key.startsWith(keys.endpoints) || key.startsWith(keys.history)) return undefined;
  if ([keys.requestPolicies, keys.epoch, keys.revokedCertificates].includes(key)) return 'configmaps/podwire';
  return `records/${key}`;
}

/** The fake: the objects of an API server, for any number of processes. */
export class MemoryObjects {
  readonly #keys: RecordKeys;
  readonly #objects = new Map<string, ApiObject>();
  readonly #observers = new Set<{ readonly observer: ObjectObserver; readonly isLate: boolean }>();
  #version = 100;
  #uid = 0;
  /** Writes that were carried out. */
  writesCount = 0;

  constructor(keys: RecordKeys) {
    this.#keys = keys;
  }

  /** A process's connection. */
  connect({ writesCount = Infinity, reports = 'prompt' }: Connection = {}): ObjectApi {
    let left = writesCount;
    let isDead = false;
    const observers = this.#observers;
    const own = new Set<{ readonly observer: ObjectObserver; readonly isLate: boolean }>();
    const disconnect = (): void => {
      for (const each of own) observers.delete(each);
    };
    const carryOut = async (write: () => WriteOutcome): Promise<WriteOutcome> => {
      await new Promise((resolve) => setImmediate(resolve));
      if (!isDead && left === 0) {
        isDead = true;
        disconnect();
      }
      if (isDead) throw new Failure('STORE_UNAVAILABLE', 'the process is dead');
      const outcome = write();
      if (outcome.type === 'written') left--;
      return outcome;
    };
    return {
      objectOf: (key) => objectOf(this.#keys, key),
      follow: (observer, signal) => {
        observer.listed('records', String(this.#version), this.#listed('records/'));
        observer.listed('configmaps', String(this.#version), this.#listed('configmaps/'));
        const entry = { observer, isLate: reports === 'late' };
        own.add(entry);
        if (reports !== 'never') observers.add(entry);
        signal.addEventListener('abort', disconnect);
        return Promise.resolve();
      },
      versions: () => Promise.resolve(new Map([...this.#objects.values()].map(({ id, version }) => [id, version]))),
      read: (id) => (isDead ? Promise.reject(new Failure('STORE_UNAVAILABLE', 'dead')) : Promise.resolve(this.get(id))),
      write: (content, base) => carryOut(() => this.write(content, base)),
      remove: (base) => carryOut(() => this.remove(base)),
      close: disconnect,
    };
  }

  /** The same objects, for another course of events. */
  copy(): MemoryObjects {
    const copy = new MemoryObjects(this.#keys);
    for (const [id, object] of this.#objects) copy.#objects.set(id, object);
    copy.#version = this.#version;
    copy.#uid = this.#uid;
    return copy;
  }

  get(id: string): ApiObject | undefined {
    return this.#objects.get(id);
  }

  /** Writes like every other process. */
  write(content: ObjectContent, base: ApiObject | undefined): WriteOutcome {
    const found = this.#objects.get(content.id);
    if (found?.uid !== base?.uid || found?.version !== base?.version) return { type: 'conflict', found };
    this.writesCount++;
    const object = { ...content, uid: found?.uid ?? `uid-${++this.#uid}`, version: String(++this.#version) };
    this.#objects.set(object.id, object);
    this.#report((observer) => observer.changed(object));
    return { type: 'written', object };
  }

  remove(base: ApiObject): WriteOutcome {
    const found = this.#objects.get(base.id);
    if (found?.uid !== base.uid || found.version !== base.version) return { type: 'conflict', found };
    this.writesCount++;
    this.#objects.delete(base.id);
    const version = String(++this.#version);
    this.#report((observer) => observer.deleted(base.id, version));
    return { type: 'written', object: undefined };
  }

  #listed(prefix: string): ApiObject[] {
    return [...this.#objects.values()].filter(({ id }) => id.startsWith(prefix));
  }

  #report(event: (observer: ObjectObserver) => void): void {
    for (const entry of this.#observers)
      if (entry.isLate) setTimeout(() => this.#observers.has(entry) && event(entry.observer), 1);
      else event(entry.observer);
  }
}
