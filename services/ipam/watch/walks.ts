import type { Catalog } from './catalog.js';
import type { Item } from './item.js';
import type { WatchQuery } from './watched.js';

/** A walk over the objects that a query wants. */
export interface Walk {
  /** The next object; undefined at the end, and once the walk was ended. */
  next(): Item | undefined;
  /** Lets go of the objects. Idempotent. */
  end(): void;
}

/**
 * The walks for snapshots. One whose reader stands still keeps, by its iterator, a part of each object that came and went meanwhile, as
 * V8 keeps every table that a Map has outgrown for it. So those end that are behind all the changes that are kept: their readers have to begin
 * anew anyway.
 */
export class Walks {
  readonly #catalog: Catalog;
  /** With the number of the first change after their begin, oldest first. */
  readonly #open = new Map<Walk, number>();

  constructor(catalog: Catalog) {
    this.#catalog = catalog;
  }

  /** How many are under way. */
  get count(): number {
    return this.#open.size;
  }

  begin(query: WatchQuery): Walk {
    let items: Iterator<Item, void> | undefined = this.#catalog.wanted(query);
    const walk: Walk = {
      next: () => {
        const item = items?.next().value ?? undefined;
        if (!item) walk.end();
        return item;
      },
      end: () => {
        items = undefined;
        this.#open.delete(walk);
      },
    };
    this.#open.set(walk, this.#catalog.recent?.nextNumber ?? 0);
    return walk;
  }

  /** To be called after changes. */
  endOverdue(): void {
    const firstKept = this.#catalog.recent?.firstNumber ?? 0;
    for (const [walk, begunAt] of this.#open) {
      if (begunAt >= firstKept) return;
      walk.end();
    }
  }
}
