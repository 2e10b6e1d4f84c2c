import { HandleServiceService, type HandleAddress } from '@podwire/proto/podwire/ipam/v1/handle';
import { Failure } from '@podwire/shared/failure/failure';

import { allPages } from '../clients/pages.js';
import type { Service } from '../clients/services.js';
import { text } from '../command-line/forms.js';
import { unconfirmed, YES } from '../command-line/options.js';
import type { Flag, Positional, Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { podOf } from '../output/words.js';

const WHICH: Positional<string> = {
  form: text('HANDLE'),
  about: 'the handle, <network>.<container ID> for containers',
  presence: 'required',
};

const SEARCH: Flag = {
  name: '--search-all-blocks',
  about: 'look in every block: for addresses whose handle was lost',
};

export const releaseHandle: Verb = {
  name: 'release handle',
  about: 'release everything that a handle holds, and the endpoints of its containers',
  positionals: [WHICH],
  flags: [SEARCH, YES],
  run: async (input, { ipam, json }) => {
    const handleId = input.at(WHICH);
    if (!input.has(YES)) {
      const addresses = await heldBy(ipam, handleId);
      const preview = {
        sections: [
          {
            kind: 'table' as const,
            columns: ['ADDRESS', 'POD', 'NODE', { right: 'SEQUENCE' }],
            rows: addresses.map(({ address, attributes, sequenceNumber }) => [
              address,
              podOf(attributes),
              attributes.node ?? '',
              String(sequenceNumber),
            ]),
            none: 'It holds no address; endpoints that are left of its containers would be removed.',
          },
        ],
        data: () => json.of(HandleServiceService.getHandle, { addresses, nextPageToken: '' }),
      };
      return unconfirmed(preview, input.typed());
    }
    const answer = await ipam.call(HandleServiceService.releaseHandle, {
      handleId,
      searchAllBlocks: input.has(SEARCH),
    });
    const { addresses } = answer;
    const told =
      addresses.length > 0
        ? `${handleId} has given back ${addresses.join(', ')}`
        : `${handleId} holds no address, and has no endpoint any more`;
    return { sections: [sentence(told)], data: () => json.of(HandleServiceService.releaseHandle, answer) };
  },
};

async function heldBy(ipam: Service, handleId: string): Promise<HandleAddress[]> {
  try {
    const pages = await allPages((page) => ipam.call(HandleServiceService.getHandle, { ...page, handleId }));
    return pages.flatMap(({ addresses }) => addresses);
  } catch (error) {
    if (error instanceof Failure && error.code === 'HANDLE_NOT_FOUND') return [];
    throw error;
  }
}
