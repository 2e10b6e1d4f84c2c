import { PoolDeletionMode } from '@podwire/proto/podwire/ipam/v1/pool';

import { YES } from '../command-line/options.js';
import type { Verb } from '../command-line/verb.js';
import { deletePool, DELETION_ARGUMENTS } from '../resources/pool-deletion.js';

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
