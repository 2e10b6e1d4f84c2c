import { HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';

import { allPages } from '../clients/pages.js';
import { text } from '../command-line/forms.js';
import type { Flag, Positional, Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { podOf } from '../output/words.js';
import { unconfirmed, YES } from './confirm.js';

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
      const pages = await allPages((page) => ipam.call(HandleServiceService.getHandle, { ...page, handleId }));
      const addresses = pages.flatMap((page) => page.addresses);
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
            none: 'It holds nothing.',
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
      addresses.length > 0 ? `${handleId} has given back ${addresses.join(', ')}` : `${handleId} holds nothing`;
    return { sections: [sentence(told)], data: () => json.of(HandleServiceService.releaseHandle, answer) };
  },
};
