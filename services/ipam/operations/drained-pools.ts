import type { Pool } from '../allocator/records.js';
import type { IpamOptions } from '../engine/updates/operation.js';
import type { Decision } from '../records/view.js';

/**
 * The update loop for all that is no work on pools: a pool that is being deleted goes with the release of its last address, whoever
 * released it, and that is told once it is durable. What works on pools tells of it by itself.
 */
export function tellDrainedPools({ updates, events }: Pick<IpamOptions, 'updates' | 'events'>): IpamOptions['updates'] {
  return {
    read: (look, options) => updates.read(look, options),
    peek: (look) => updates.peek(look),
    update: (lane, decide, options) =>
      updates
        .update(lane, (view) => withDrained(decide(view)), options)
        .then(({ outcome, drained }) => {
          for (const pool of drained) events.poolDrained(pool);
          return outcome;
        }),
  };
}

interface Drained<Outcome> {
  readonly outcome: Outcome;
  /** Pools that go with the decision. */
  readonly drained: readonly Pool[];
}

function withDrained<Outcome>({ changes, outcome }: Decision<Outcome>): Decision<Drained<Outcome>> {
  const drained: Pool[] = [];
  for (const change of changes)
    if (change.type === 'delete' && change.record.kind === 'pool') drained.push(change.record.value);
  return { changes, outcome: { outcome, drained } };
}
