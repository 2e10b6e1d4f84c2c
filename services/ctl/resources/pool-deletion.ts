import {
  PoolDeletionMode,
  PoolServiceService,
  PoolState,
  type DeletePoolResponse,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Context } from '../clients/services.js';
import { RESOURCE_VERSION, previewReport, YES } from '../command-line/options.js';
import type { Flag, Input, Verb } from '../command-line/verb.js';
import { sentence, type Report } from '../output/report.js';
import { POOL_NAME, poolFields } from './pools.js';

interface Deletion {
  readonly mode: PoolDeletionMode;
  /** Describes the deletion, for the preview. */
  readonly warning: string;
}

/** Deletes a pool in one of the API's modes, or previews the deletion. */
export async function deletePool(input: Input, context: Context, deletion: Deletion): Promise<Report> {
  const { ipam, json, clock } = context;
  const name = input.at(POOL_NAME);
  if (!input.has(YES)) {
    const found = await ipam.call(PoolServiceService.getPool, { name });
    const sections = [sentence(deletion.warning), ...(found.pool ? [poolFields(found.pool, clock.nowMs())] : [])];
    return previewReport({ sections, data: () => json.of(PoolServiceService.getPool, found) }, input.toCommandLine());
  }
  const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
  const answer = await ipam.call(PoolServiceService.deletePool, { name, resourceVersion, mode: deletion.mode });
  return { ...outcome(name, answer), data: () => json.of(PoolServiceService.deletePool, answer) };
}

function outcome(name: string, answer: DeletePoolResponse): Omit<Report, 'data'> {
  const { state, heldAddresses, coolingAddresses, holders, unreadableRecord, releasedAddresses } = answer;
  const released =
    releasedAddresses > 0n ? `; released: ${formatCount(releasedAddresses, 'address', 'addresses')}` : '';
  if (state !== PoolState.POOL_STATE_DRAINING) return { sections: [sentence(`pool ${name} is deleted${released}`)] };
  const unreadable = `the pool is not deleted until the record ${unreadableRecord} is corrected or deleted in the datastore`;
  return {
    sections: [
      sentence(
        `pool ${name} is draining${released}: ${formatCount(heldAddresses, 'address', 'addresses')} in use, ${coolingAddresses} cooling down; ` +
          'it allocates no addresses, and is deleted when the last one is released',
      ),
      {
        kind: 'table',
        columns: ['NODE', { right: 'ADDRESSES' }],
        rows: holders.map(({ nodeName, addresses }) => [nodeName, String(addresses)]),
        none: 'nodes with addresses: none',
      },
    ],
    hints: [
      `to list the owners: podwirectl blocks --pool ${name} --addresses`,
      ...(unreadableRecord === '' ? [] : [unreadable]),
    ],
  };
}

/** Arguments of both verbs that delete a pool. */
const DELETION_ARGUMENTS: Pick<Verb, 'positionals' | 'options'> = {
  positionals: [POOL_NAME],
  options: [RESOURCE_VERSION],
};

const RELEASE: Flag = {
  name: '--release-addresses',
  about: 'release all its addresses, including those of running pods',
};

export const poolsDelete: Verb = {
  name: 'pools delete',
  about: 'delete a pool without addresses in use',
  details: 'Refused while addresses are in use; the error lists their nodes. "pools drain" waits for their release.',
  ...DELETION_ARGUMENTS,
  flags: [RELEASE, YES],
  run: (input, context) =>
    input.has(RELEASE)
      ? deletePool(input, context, {
          mode: PoolDeletionMode.POOL_DELETION_MODE_RELEASE_ADDRESSES,
          warning:
            'All addresses of this pool would be released, including those of running pods, and may be allocated again:',
        })
      : deletePool(input, context, {
          mode: PoolDeletionMode.POOL_DELETION_MODE_REFUSE_IF_IN_USE,
          warning: 'This pool would be deleted if none of its addresses is in use:',
        }),
};

export const poolsDrain: Verb = {
  name: 'pools drain',
  about: 'stop allocation from a pool, and delete it when its last address is released',
  details: 'Irreversible. To stop allocation and keep the pool: pools update NAME --disabled true.',
  ...DELETION_ARGUMENTS,
  flags: [YES],
  run: (input, context) =>
    deletePool(input, context, {
      mode: PoolDeletionMode.POOL_DELETION_MODE_DRAIN,
      warning:
        'This pool would allocate no more addresses, and be deleted when its last one is released. This is irreversible:',
    }),
};
