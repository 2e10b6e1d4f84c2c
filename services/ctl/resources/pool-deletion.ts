import {
  PoolDeletionMode,
  PoolServiceService,
  PoolState,
  type DeletePoolResponse,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Context } from '../clients/services.js';
import { RESOURCE_VERSION, unconfirmed, YES } from '../command-line/options.js';
import type { Flag, Input, Verb } from '../command-line/verb.js';
import { sentence, type Report } from '../output/report.js';
import { POOL_NAME, poolFields } from './pools.js';

interface Deletion {
  readonly mode: PoolDeletionMode;
  /** What would be done, for people. */
  readonly warning: string;
}

/** Deletes a pool in one of the API's modes, or previews the deletion. */
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
    releasedAddresses > 0n ? `, and has given back ${formatCount(releasedAddresses, 'address', 'addresses')}` : '';
  if (state !== PoolState.POOL_STATE_DRAINING) return { sections: [sentence(`pool ${name} is gone${released}`)] };
  const unreadable = `it stays until the record ${unreadableRecord} is corrected or deleted in the datastore`;
  return {
    sections: [
      sentence(
        `pool ${name} is draining${released}: ${formatCount(heldAddresses, 'address', 'addresses')} in use, ${coolingAddresses} cooling down; ` +
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
const DELETION_ARGUMENTS: Pick<Verb, 'positionals' | 'options'> = {
  positionals: [POOL_NAME],
  options: [RESOURCE_VERSION],
};

const RELEASE: Flag = {
  name: '--release-addresses',
  about: 'release its addresses, whoever holds them, even if pods are still using them',
};

export const poolsDelete: Verb = {
  name: 'pools delete',
  about: 'delete a pool that has no address in use',
  details: 'While addresses are in use it is refused, and says on which nodes; "pools drain" waits for their release.',
  ...DELETION_ARGUMENTS,
  flags: [RELEASE, YES],
  run: (input, context) =>
    input.has(RELEASE)
      ? deletePool(input, context, {
          mode: PoolDeletionMode.POOL_DELETION_MODE_RELEASE_ADDRESSES,
          warning: 'All addresses of this pool would be given back, whoever uses them, and others may get them:',
        })
      : deletePool(input, context, {
          mode: PoolDeletionMode.POOL_DELETION_MODE_REFUSE_IF_IN_USE,
          warning: 'This pool would be deleted, provided that no address of it is in use:',
        }),
};

export const poolsDrain: Verb = {
  name: 'pools drain',
  about: 'give out no more addresses of a pool, and delete it once the last one is released',
  details:
    'That cannot be taken back. To keep the pool, and have it give no address: pools update NAME --disabled true.',
  ...DELETION_ARGUMENTS,
  flags: [YES],
  run: (input, context) =>
    deletePool(input, context, {
      mode: PoolDeletionMode.POOL_DELETION_MODE_DRAIN,
      warning: 'This pool would give no address any more, and go with its last one; that cannot be taken back:',
    }),
};
