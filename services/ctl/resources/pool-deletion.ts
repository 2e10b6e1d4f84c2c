import {
  PoolServiceService,
  PoolState,
  type DeletePoolResponse,
  type PoolDeletionMode,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { counted } from '@podwire/shared/words/counted';

import type { Context } from '../clients/services.js';
import { unconfirmed, YES } from '../command-line/options.js';
import type { Input, Verb } from '../command-line/verb.js';
import { POOL_NAME, RESOURCE_VERSION } from '../commands/pool-options.js';
import { poolFields } from '../commands/pools-show.js';
import { sentence, type Report } from '../output/report.js';

interface Deletion {
  readonly mode: PoolDeletionMode;
  /** What would be done, for people. */
  readonly warning: string;
}

/** Deletes a pool in one of the contract's ways, or tells what that would do. */
export async function deletePool(input: Input, context: Context, deletion: Deletion): Promise<Report> {
  const { ipam, json, clock } = context;
  const name = input.at(POOL_NAME);
  if (!input.has(YES)) {
    const found = await ipam.call(PoolServiceService.getPool, { name });
    const sections = [sentence(deletion.warning), ...(found.pool ? [poolFields(found.pool, clock.nowMs())] : [])];
    return unconfirmed({ sections, data: () => json.of(PoolServiceService.getPool, found) }, input.typed());
  }
  const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
  const answer = await ipam.call(PoolServiceService.deletePool, { name, resourceVersion, mode: deletion.mode });
  return { ...outcome(name, answer), data: () => json.of(PoolServiceService.deletePool, answer) };
}

function outcome(name: string, answer: DeletePoolResponse): Omit<Report, 'data'> {
  const { state, heldAddresses, coolingAddresses, holders, unreadableRecord, releasedAddresses } = answer;
  const released =
    releasedAddresses > 0n ? `, and has given back ${counted(releasedAddresses, 'address', 'addresses')}` : '';
  if (state !== PoolState.POOL_STATE_DRAINING) return { sections: [sentence(`pool ${name} is gone${released}`)] };
  const unreadable = `it stays until the record ${unreadableRecord} is corrected or deleted in the datastore`;
  return {
    sections: [
      sentence(
        `pool ${name} is draining${released}: ${counted(heldAddresses, 'address', 'addresses')} in use, ${coolingAddresses} cooling down; ` +
          'it gives none any more, and goes with the last',
      ),
      {
        kind: 'table',
        columns: ['NODE', { right: 'ADDRESSES' }],
        rows: holders.map(({ nodeName, addresses }) => [nodeName, String(addresses)]),
        none: 'No node holds an address of it.',
      },
    ],
    hints: [
      `who holds them: podwirectl blocks --pool ${name} --addresses`,
      ...(unreadableRecord === '' ? [] : [unreadable]),
    ],
  };
}

/** What both verbs that delete a pool take. */
export const DELETION_ARGUMENTS: Pick<Verb, 'positionals' | 'options'> = {
  positionals: [POOL_NAME],
  options: [RESOURCE_VERSION],
};
