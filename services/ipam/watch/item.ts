import type { WatchedObject } from './watched.js';

/**
 * An object as it is at the catalog's revision: the same item for as long as there is one under its key, whatever it becomes. The
 * catalog alone changes it.
 */
export interface Item {
  readonly key: string;
  object: WatchedObject;
  /** Revision at which it came to be: it is newer than all that did at an older one, in the order of the items. */
  readonly madeAt: number;
  /** Its change message, once somebody needed it and there was room. */
  encoded: Uint8Array | undefined;
  /** Number of its last change among the recent ones, which may be kept no more; -1 before the first. */
  changeNumber: number;
}
