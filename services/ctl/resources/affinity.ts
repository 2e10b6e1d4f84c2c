import {
  AffinityReleaseResult,
  AffinityServiceService,
  OwnerKind,
  type Affinity,
  type ReleaseAffinityRequest,
} from '@podwire/proto/podwire/ipam/v1/affinity';
import { AffinityState } from '@podwire/proto/podwire/ipam/v1/block';
import { Failure } from '@podwire/shared/failure/failure';
import type { z } from 'zod';

import { allPages, type Context } from '../clients/services.js';
import { IN_USE } from '../command-line/options.js';
import { DONE, FAILED, sentence } from '../output/report.js';
import { wordOf } from '../output/words.js';
import { requireNamed } from './block.js';
import { resource, type Filter, type Wanted } from './resource.js';
import type { BLOCK_AFFINITY_SPEC } from './specs.js';

const STATES: Readonly<Record<string, string>> = {
  [AffinityState.AFFINITY_STATE_PENDING]: 'pending',
  [AffinityState.AFFINITY_STATE_CONFIRMED]: 'confirmed',
  [AffinityState.AFFINITY_STATE_PENDING_DELETION]: 'pendingDeletion',
};

const typeOf = ({ owner }: Affinity): string => (owner?.kind === OwnerKind.OWNER_KIND_VIRTUAL ? 'virtual' : 'host');

async function listAffinities({ node, pool }: Pick<Filter, 'node' | 'pool'>, { ipam }: Context): Promise<Affinity[]> {
  const filter = { nodeName: node, poolName: pool };
  const pages = await allPages((page) => ipam.call(AffinityServiceService.listAffinities, { ...page, ...filter }));
  const affinities = pages.flatMap((page) => page.affinities);
  if (affinities.length === 0) await requireNamed(ipam, { node, pool });
  return affinities;
}

async function claim(
  { spec }: Wanted<z.infer<typeof BLOCK_AFFINITY_SPEC>>,
  context: Context,
): Promise<Affinity | undefined> {
  const { cidr, node } = spec;
  const { refused } = await context.ipam.call(AffinityServiceService.claimAffinity, { cidr, nodeName: node });
  if (refused.length > 0) {
    const faults = refused.map((each) => `${each.cidr}: ${each.reason}`).join('; ');
    throw new Failure('INVALID_REQUEST', `BlockAffinity of ${node}: blocks are not claimed: ${faults}`);
  }
  const affinities = await listAffinities({ node, pool: '' }, context);
  return affinities.find(({ blockCidr }) => blockCidr === cidr);
}

export const BLOCK_AFFINITY = resource<Affinity, z.infer<typeof BLOCK_AFFINITY_SPEC>>({
  filters: ['node', 'pool'],
  columns: [
    { head: 'NAME', isWide: true, cell: nameOf },
    { head: 'BLOCK', cell: ({ blockCidr }) => blockCidr },
    { head: 'NODE', cell: ({ owner }) => owner?.name ?? '' },
    { head: 'TYPE', cell: typeOf },
    { head: 'STATE', cell: ({ state }) => wordOf(AffinityState[state], 'AFFINITY_STATE_') },
    { head: 'BACKED', cell: ({ backed }) => (backed ? 'yes' : 'no') },
    { head: 'POOL', cell: ({ poolName }) => poolName },
    { head: 'USED', isNumber: true, cell: ({ usedCount }) => String(usedCount) },
  ],
  none: 'affinities: none',
  nameOf,
  aliasOf: ({ blockCidr }) => blockCidr,
  spec: (affinity) => ({
    state: STATES[affinity.state] ?? '',
    node: affinity.owner?.name ?? '',
    type: typeOf(affinity),
    cidr: affinity.blockCidr,
    deleted: false,
  }),
  details: (affinity) => [
    {
      kind: 'fields',
      fields: [
        ['Name', nameOf(affinity)],
        ['Block', affinity.blockCidr],
        ['Node', affinity.owner?.name ?? ''],
        ['Type', typeOf(affinity)],
        ['State', wordOf(AffinityState[affinity.state], 'AFFINITY_STATE_')],
        ['Backed', affinity.backed ? 'yes' : 'no: the block does not exist, or names another owner'],
        ['Pool', affinity.poolName],
        ['Used', String(affinity.usedCount)],
      ],
    },
  ],
  data: (affinity, { json }) =>
    json.of(AffinityServiceService.listAffinities, { affinities: [affinity], nextPageToken: '' }),
  list: listAffinities,
  schema: async () => (await import('./specs.js')).BLOCK_AFFINITY_SPEC,
  create: claim,
  update: claim,
  deletion: {
    flags: [IN_USE],
    warning: (input) =>
      input.has(IN_USE)
        ? 'This claim would end. The block stays without an owner while its addresses are in use:'
        : 'This claim would end, and its block be removed, if none of its addresses is in use:',
    run: async (name, _, input, context) => {
      const affinities = await listAffinities({ node: '', pool: '' }, context);
      const found = affinities.find((affinity) => nameOf(affinity) === name || affinity.blockCidr === name);
      if (!found)
        throw new Failure(
          'ATTACHMENT_NOT_FOUND',
          `blockaffinity "${name}" not found; "podwirectl get affinities" lists them`,
        );
      const request: ReleaseAffinityRequest = {
        scope: { $case: 'blockCidr', value: found.blockCidr },
        mustBeEmpty: !input.has(IN_USE),
      };
      const answer = await context.ipam.call(AffinityServiceService.releaseAffinity, request);
      const kept = [
        AffinityReleaseResult.AFFINITY_RELEASE_RESULT_NOT_EMPTY,
        AffinityReleaseResult.AFFINITY_RELEASE_RESULT_NOT_OWNED,
      ];
      return {
        sections: answer.affinities.map(({ blockCidr, result }) =>
          sentence(`affinity of ${blockCidr}: ${wordOf(AffinityReleaseResult[result], 'AFFINITY_RELEASE_RESULT_')}`),
        ),
        data: () => context.json.of(AffinityServiceService.releaseAffinity, answer),
        exitCode: answer.affinities.some(({ result }) => kept.includes(result)) ? FAILED : DONE,
      };
    },
  },
});

/** Name in Calico's form: `node-1-10-65-0-0-26`. */
function nameOf({ owner, blockCidr }: Affinity): string {
  return `${owner?.name ?? ''}-${blockCidr.replaceAll(/[./:]/g, '-')}`;
}
