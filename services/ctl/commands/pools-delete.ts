import { PoolDeletionMode } from '@podwire/proto/podwire/ipam/v1/pool';

import { YES } from '../command-line/options.js';
import type { Flag, Verb } from '../command-line/verb.js';
import { deletePool, DELETION_ARGUMENTS } from '../resources/pool-deletion.js';

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
