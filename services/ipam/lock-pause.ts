import type { Logger } from '@podwire/shared/runtime/log';

import type { UpkeepTask } from './upkeep.js';

export interface LockPauseOptions {
  /** Whether Calico's tools have locked the datastore, as far as this replica knows. */
  readonly isLocked: () => Promise<boolean>;
  readonly log: Logger;
}

/** Keeps upkeep from changing who holds what while the datastore is locked, and logs when a lock begins and ends. */
export class LockPause {
  readonly #options: LockPauseOptions;
  #wasLocked = false;

  constructor(options: LockPauseOptions) {
    this.#options = options;
  }

  /** The task, which does nothing while the datastore is locked. */
  unlessLocked({ name, run }: UpkeepTask): UpkeepTask {
    return {
      name,
      run: async (signal) => {
        if (!(await this.#look())) await run(signal);
      },
    };
  }

  async #look(): Promise<boolean> {
    const { isLocked, log } = this.#options;
    const locked = await isLocked();
    if (locked && !this.#wasLocked)
      log.warn(
        'the datastore is locked (datastoreReady false in Calico\'s ClusterInformation "default"): allocations and releases fail with STORE_LOCKED, and upkeep pauses; unlock it after the migration: calicoctl datastore migrate unlock',
      );
    if (!locked && this.#wasLocked) log.info('the datastore is unlocked: allocations and releases are served again');
    this.#wasLocked = locked;
    return locked;
  }
}
