import { ObjectFeed, type ObjectFeedOptions } from './object-feed.js';

export interface NamedObject {
  readonly name: string;
}

/** A change of the cache, reported after it. */
export type CacheChange =
  /** The whole list was read: objects may have appeared, changed and vanished. */
  { readonly type: 'listed' } | { readonly type: 'changed' | 'deleted'; readonly name: string };

/** The objects of a path have distinct names. */
export interface ObjectCacheOptions<Value extends NamedObject> extends Omit<
  ObjectFeedOptions<Value>,
  'listed' | 'changed'
> {
  /** Receives each change. Must not throw. */
  readonly changed: (change: CacheChange) => void;
}

/** A copy of the API server's objects of one kind. */
export class ObjectCache<Value extends NamedObject> {
  readonly #feed: ObjectFeed<Value>;
  #objects = new Map<string, Value>();

  /** The creator stops it before it closes the API server. */
  constructor({ changed, ...rest }: ObjectCacheOptions<Value>) {
    this.#feed = new ObjectFeed({
      ...rest,
      listed: (values) => {
        this.#objects = new Map(values.map((value) => [value.name, value]));
        changed({ type: 'listed' });
      },
      changed: (type, value) => {
        const { name } = value;
        if (type === 'DELETED') this.#objects.delete(name);
        else this.#objects.set(name, value);
        changed({ type: type === 'DELETED' ? 'deleted' : 'changed', name });
      },
    });
  }

  /** Objects by name. */
  get objects(): ReadonlyMap<string, Value> {
    return this.#objects;
  }

  /** Whether it follows the API server: false before the first watch, and from a failure to the next watch. */
  get isCurrent(): boolean {
    return this.#feed.isCurrent;
  }

  /** Idempotent. */
  stop(): Promise<void> {
    return this.#feed.stop();
  }
}
