import {
  AddressServiceService,
  AllocateRequest,
  BlockOrigin,
  BlockVerdict,
  IpFamily,
  type ExplainAllocationRequest,
  type ExplainAllocationResponse,
  type ExplainedFamily,
  type ExplainedPool,
  type ExplainedRecall,
} from '@podwire/proto/podwire/ipam/v1/address';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { formatCount } from '@podwire/shared/words/format-count';

import { ADDRESS, ATTACHMENT, LABEL, oneOf, POD_NAME, text, wholeNumber } from '../command-line/forms.js';
import { argument, option, repeatedOption, type Input, type Verb } from '../command-line/verb.js';
import { DONE, PROBLEM_FOUND, sentence, type Section, type Table } from '../output/report.js';
import { wordOf } from '../output/words.js';
import { requireNamed } from '../resources/block.js';

const NODE = argument(text('NODE', 'nodes'), 'the node that the pod runs on', 'required');

const FAMILY = repeatedOption(
  '--family',
  oneOf({ 4: IpFamily.IP_FAMILY_IPV4, 6: IpFamily.IP_FAMILY_IPV6 }),
  'a family to allocate (the family of --address, else 4)',
);
const POOL = repeatedOption(
  '--pool',
  text('NAME|CIDR', 'ippools'),
  'a pool to allocate from (all with matching selectors)',
);
const ADDRESS_OPTION = repeatedOption('--address', ADDRESS, 'an address to request');
const POD = option('--pod', POD_NAME, 'the requesting pod, for pools and policies that depend on its namespace');
const NAMESPACE_LABEL = repeatedOption('--namespace-label', LABEL, 'a label of the pod’s namespace');
const ATTACHMENT_OPTION = option(
  '--attachment',
  ATTACHMENT,
  'an attachment, as in the log of its ADD; one that has an address gets the same address (an attachment without one)',
);
const BLOCKS = option(
  '--blocks',
  wholeNumber('NUMBER', { min: 1, max: 10_000 }),
  'maximum number of blocks to list; further blocks are counted (1000)',
);

/** A placeholder attachment that does not exist. */
const PLACEHOLDER_ATTACHMENT: Attachment = { network: 'podwirectl', containerId: 'explain', interfaceName: 'eth0' };

export const explain: Verb = {
  name: 'explain',
  about: 'preview the allocation for a pod on a node, or why it would fail; nothing is allocated',
  details:
    'Lists every pool and block that is considered, with the result. Exit code 4: the allocation would be refused.',
  positionals: [NODE],
  options: [FAMILY, POOL, ADDRESS_OPTION, POD, NAMESPACE_LABEL, ATTACHMENT_OPTION, BLOCKS],
  examples: [
    'explain node-1',
    'explain node-1 --family 4 --family 6 --pool second',
    'explain node-1 --address 10.65.0.7',
  ],
  run: async (input, { ipam, json }) => {
    const request = requestOf(input);
    // The service would allocate for a node that registers later; a preview for a misspelled one misleads.
    await requireNamed(ipam, { node: input.at(NODE), pool: '' });
    const answer = await ipam.call(AddressServiceService.explainAllocation, request);
    const isRefused = answer.refusalCode !== '';
    return {
      sections: [verdict(answer), ...answer.families.flatMap(familySections)],
      data: () => json.of(AddressServiceService.explainAllocation, answer),
      exitCode: isRefused ? PROBLEM_FOUND : DONE,
    };
  },
};

function requestOf(input: Input): ExplainAllocationRequest {
  const pod = input.get(POD);
  const labels = input.all(NAMESPACE_LABEL).map(({ key, value }): [string, string] => [key, value]);
  const request = AllocateRequest.fromPartial({
    attachment: input.get(ATTACHMENT_OPTION) ?? PLACEHOLDER_ATTACHMENT,
    nodeName: input.at(NODE),
    ...(pod && { pod }),
    families: input.all(FAMILY),
    pools: input.all(POOL),
    addresses: input.all(ADDRESS_OPTION),
    namespaceLabels: Object.fromEntries(labels),
  });
  return { request, maxBlocks: input.get(BLOCKS) ?? 0, anyNamespace: false };
}

function verdict({ refusalCode, refusal, alreadyAllocated }: ExplainAllocationResponse): Section {
  if (refusalCode !== '') return sentence(`allocation preview: refused: ${refusal} (${refusalCode})`);
  return sentence(
    alreadyAllocated ? 'allocation preview: the attachment already has its addresses' : 'allocation preview:',
  );
}

const familyName = (family: IpFamily): string => (family === IpFamily.IP_FAMILY_IPV6 ? 'IPv6' : 'IPv4');

function familySections({ family, grant, pools, morePools, recall }: ExplainedFamily): Section[] {
  const origin = grant && wordOf(BlockOrigin[grant.origin], 'BLOCK_ORIGIN_');
  const originText = origin === undefined || origin === '' ? '' : ` (${origin})`;
  const allocation = grant
    ? `${familyName(family)}: ${grant.address} of block ${grant.blockCidr}${originText}, pool ${grant.poolName}`
    : `${familyName(family)}: ${recall ? recallText(recall) : 'none'}`;
  const more = morePools > 0 ? [sentence(`… and ${formatCount(morePools, 'pool')} more`)] : [];
  return [sentence(allocation), poolTable(pools), ...more];
}

function recallText({ leased, nodes }: ExplainedRecall): string {
  const holders = nodes.map(({ nodeName, leased: count }) => `${nodeName} (${count})`).join(', ');
  return `none is free; ${formatCount(leased, 'leased address', 'leased addresses')} would be recalled from ${holders}`;
}

function poolTable(pools: readonly ExplainedPool[]): Table {
  return {
    kind: 'table',
    columns: ['POOL', 'BLOCK', 'RESULT', 'REASON'],
    rows: pools.flatMap(poolRows),
    none: 'pools considered: none',
  };
}

function poolRows({ name, cidr, passedOverReason, blocks, moreBlocks, noClaimReason }: ExplainedPool): string[][] {
  if (passedOverReason !== '') return [[name, cidr, 'skipped', passedOverReason]];
  const found = (verdictOf: BlockVerdict): string => wordOf(BlockVerdict[verdictOf], 'BLOCK_VERDICT_');
  const rows = [
    ...blocks.map((block) => [name, block.cidr, found(block.verdict), block.reason]),
    ...moreBlocks.map((more) => [name, `${more.count} more`, found(more.verdict), '']),
    ...(noClaimReason === '' ? [] : [[name, 'new block', 'cannot be claimed', noClaimReason]]),
  ];
  return rows.length > 0 ? rows : [[name, cidr, 'usable', 'no block is claimed yet']];
}
