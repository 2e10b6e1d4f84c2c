import { HandleServiceService, type Handle, type HandleAddress } from '@podwire/proto/podwire/ipam/v1/handle';
import { Failure } from '@podwire/shared/failure/failure';

import { allPages, type Context } from '../clients/services.js';
import { FORCE, SEARCH_ALL_BLOCKS } from '../command-line/options.js';
import { sentence, type Table } from '../output/report.js';
import { podOf } from '../output/words.js';
import { keptReport } from './kept.js';
import { resource } from './resource.js';

async function addressesOf(handleId: string, { ipam }: Context): Promise<HandleAddress[]> {
  try {
    const pages = await allPages((page) => ipam.call(HandleServiceService.getHandle, { ...page, handleId }));
    return pages.flatMap(({ addresses }) => addresses);
  } catch (error) {
    if (error instanceof Failure && error.code === 'HANDLE_NOT_FOUND') return [];
    throw error;
  }
}

function addressTable(addresses: readonly HandleAddress[]): Table {
  return {
    kind: 'table',
    columns: ['ADDRESS', 'POD', 'NODE', { right: 'SEQUENCE' }],
    rows: addresses.map(({ address, attributes, sequenceNumber }) => [
      ...[address, podOf(attributes), attributes.node ?? ''],
      String(sequenceNumber),
    ]),
    none: 'addresses: none; the endpoints of its containers, if any, would be removed',
  };
}

function blocksWith(addresses: readonly HandleAddress[]): Handle['blocks'] {
  const counts = new Map<string, number>();
  for (const { blockCidr } of addresses) counts.set(blockCidr, (counts.get(blockCidr) ?? 0) + 1);
  return [...counts].map(([cidr, addressCount]) => ({ cidr, addressCount }));
}

const countOf = ({ blocks }: Handle): number => blocks.reduce((sum, { addressCount }) => sum + addressCount, 0);

export const HANDLE = resource<Handle>({
  columns: [
    { head: 'HANDLE', cell: ({ handleId }) => handleId },
    { head: 'ADDRESSES', isNumber: true, cell: (handle) => String(countOf(handle)) },
    { head: 'BLOCKS', cell: ({ blocks }) => blocks.map(({ cidr }) => cidr).join(', ') },
  ],
  none: 'handles: none',
  nameOf: ({ handleId }) => handleId,
  spec: ({ handleId, blocks }) => ({
    handleID: handleId,
    block: Object.fromEntries(blocks.map(({ cidr, addressCount }) => [cidr, addressCount])),
  }),
  details: async ({ handleId }, _, context) => [addressTable(await addressesOf(handleId, context))],
  data: (handle, { json }) => json.of(HandleServiceService.listHandles, { handles: [handle], nextPageToken: '' }),
  list: async (_, { ipam }) => {
    const pages = await allPages((page) => ipam.call(HandleServiceService.listHandles, { ...page, prefix: '' }));
    return pages.flatMap(({ handles }) => handles);
  },
  // The record of a handle may be lost while blocks name it.
  get: async (handleId, context) => ({ handleId, blocks: blocksWith(await addressesOf(handleId, context)) }),
  notFound: 'HANDLE_NOT_FOUND',
  deletion: {
    flags: [SEARCH_ALL_BLOCKS, FORCE],
    warning: () => 'All addresses of this handle would be released, and the endpoints of its containers removed:',
    run: async (handleId, _, input, { ipam, json }) => {
      const request = { handleId, searchAllBlocks: input.has(SEARCH_ALL_BLOCKS), force: input.has(FORCE) || undefined };
      const answer = await ipam.call(HandleServiceService.releaseHandle, request);
      const { addresses } = answer;
      const message =
        addresses.length > 0
          ? `${addresses.join(', ')} of ${handleId} released`
          : `${handleId} holds no address; its endpoints, if any, are removed`;
      const { sections, exitCode } = keptReport(answer);
      const isKept = addresses.length === 0 && sections.length > 0;
      return {
        sections: [...(isKept ? [] : [sentence(message)]), ...sections],
        data: () => json.of(HandleServiceService.releaseHandle, answer),
        exitCode,
      };
    },
  },
  instead: 'allocations write them',
});
