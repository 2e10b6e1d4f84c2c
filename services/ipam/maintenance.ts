import type { Events } from './engine/events.js';
import type { Ipam } from './ipam.js';
import type { UpkeepTask } from './upkeep.js';

/** Repairs that one run does at most; what is left waits for the next. */
const MAX_REPAIRS_COUNT = 1000;

export interface MaintenanceOptions {
  readonly audits: Pick<Ipam['audits'], 'collectGarbage'>;
  readonly events: Pick<Events, 'garbageLeft'>;
}

/**
 * Removes what an older Calico left behind: stray handles and affinities, empty blocks without an owner, addresses whose cool-down is
 * over in blocks that nobody uses. Nothing of it arises here, and none of it takes an address from anybody.
 *
 * The first round does nothing, as a replica has enough to do when it starts.
 */
export function garbageTask({ audits, events }: MaintenanceOptions): UpkeepTask {
  let rounds = 0;
  return {
    name: 'collect garbage',
    run: async (signal) => {
      if (rounds++ === 0) return;
      const { more } = await audits.collectGarbage(MAX_REPAIRS_COUNT, signal);
      if (more) events.garbageLeft(MAX_REPAIRS_COUNT);
    },
  };
}
