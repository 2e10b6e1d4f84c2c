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
} from '@podwire/proto/podwire/ipam/v1/address';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { formatCount } from '@podwire/shared/words/format-count';

import {
  ADDRESS,
  ATTACHMENT,
  LABEL,
  oneOf,
  POD_NAME,
  text,
  wholeNumber,
  type Label,
  type PodName,
} from '../command-line/forms.js';
import type { Input, Option, Positional, Verb } from '../command-line/verb.js';
import { DONE, FOUND_WRONG, sentence, type Section, type Table } from '../output/report.js';
import { wordOf } from '../output/words.js';

const NODE: Positional<string> = { form: text('NODE'), about: 'the node that the pod runs on', presence: 'required' };

const FAMILY: Option<IpFamily> = {
  name: '--family',
  form: oneOf({ 4: IpFamily.IP_FAMILY_IPV4, 6: IpFamily.IP_FAMILY_IPV6 }),
  about: 'a wanted family (those of --address, else 4)',
  repeated: true,
};
const POOL: Option<string> = {
  name: '--pool',
  form: text('NAME|CIDR'),
  about: 'a pool to take from (those whose selectors match)',
  repeated: true,
};
const WANTED: Option<string> = {
  name: '--address',
  form: ADDRESS,
  about: 'a particular address that is wanted',
  repeated: true,
};
const POD: Option<PodName> = {
  name: '--pod',
  form: POD_NAME,
  about: 'the pod that asks, for pools and rules that look at its namespace',
};
const NAMESPACE_LABEL: Option<Label> = {
  name: '--namespace-label',
  form: LABEL,
  about: 'a label of the pod’s namespace',
  repeated: true,
};
const WHOSE: Option<Attachment> = {
  name: '--attachment',
  form: ATTACHMENT,
  about: 'an attachment, as the log of its ADD names it: one that has an address gets the same (one that has none)',
};
const BLOCKS: Option<number> = {
  name: '--blocks',
  form: wholeNumber('NUMBER', { min: 1, max: 10_000 }),
  about: 'most blocks that are named; the others are counted (1000)',
};

/** A placeholder attachment that does not exist. */
const NOBODY: Attachment = { network: 'podwirectl', containerId: 'explain', interfaceName: 'eth0' };

export const explain: Verb = {
  name: 'explain',
  about: 'which address a pod on a node would get, or why it would get none; nothing is allocated',
  details: 'Every pool and block that is looked at is named, with what is found. Exit code 4: it would be refused.',
  positionals: [NODE],
  options: [FAMILY, POOL, WANTED, POD, NAMESPACE_LABEL, WHOSE, BLOCKS],
  examples: [
    'explain node-1',
    'explain node-1 --family 4 --family 6 --pool second',
    'explain node-1 --address 10.65.0.7',
  ],
  run: async (input, { ipam, json }) => {
    const request = requestOf(input);
    const answer = await ipam.call(AddressServiceService.explainAllocation, request);
    const isRefused = answer.refusalCode !== '';
    return {
      sections: [verdict(answer), ...answer.families.flatMap(familySections)],
      data: () => json.of(AddressServiceService.explainAllocation, answer),
      exitCode: isRefused ? FOUND_WRONG : DONE,
    };
  },
};

function requestOf(input: Input): ExplainAllocationRequest {
  const pod = input.get(POD);
  const labels = input.all(NAMESPACE_LABEL).map(({ key, value }): [string, string] => [key, value]);
  const request = AllocateRequest.fromPartial({
    attachment: input.get(WHOSE) ?? NOBODY,
    nodeName: input.at(NODE),
    ...(pod && { pod }),
    families: input.all(FAMILY),
    pools: input.all(POOL),
    addresses: input.all(WANTED),
    namespaceLabels: Object.fromEntries(labels),
  });
  return { request, maxBlocks: input.get(BLOCKS) ?? 0, anyNamespace: false };
}

function verdict({ refusalCode, refusal, alreadyAllocated }: ExplainAllocationResponse): Section {
  if (refusalCode !== '') return sentence(`It would be refused: ${refusal} (${refusalCode})`);
  return sentence(alreadyAllocated ? 'The attachment has its addresses already:' : 'It would be given:');
}

const familyName = (family: IpFamily): string => (family === IpFamily.IP_FAMILY_IPV6 ? 'IPv6' : 'IPv4');

function familySections({ family, grant, pools, morePools }: ExplainedFamily): Section[] {
  const origin = grant && wordOf(BlockOrigin[grant.origin], 'BLOCK_ORIGIN_');
  const from = origin === undefined || origin === '' ? '' : `, ${origin}`;
  const given = grant
    ? `${familyName(family)}: ${grant.address} of block ${grant.blockCidr}${from}, of pool ${grant.poolName}`
    : `${familyName(family)}: none`;
  const more = morePools > 0 ? [sentence(`… and ${formatCount(morePools, 'pool')} more`)] : [];
  return [sentence(given), poolTable(pools), ...more];
}

function poolTable(pools: readonly ExplainedPool[]): Table {
  return {
    kind: 'table',
    columns: ['POOL', 'BLOCK', 'FOUND', 'WHY'],
    rows: pools.flatMap(poolRows),
    none: 'No pool was looked at.',
  };
}

function poolRows({ name, cidr, passedOverReason, blocks, moreBlocks, noClaimReason }: ExplainedPool): string[][] {
  if (passedOverReason !== '') return [[name, cidr, 'passed over', passedOverReason]];
  const found = (verdictOf: BlockVerdict): string => wordOf(BlockVerdict[verdictOf], 'BLOCK_VERDICT_');
  const rows = [
    ...blocks.map((block) => [name, block.cidr, found(block.verdict), block.reason]),
    ...moreBlocks.map((more) => [name, `${more.count} more`, found(more.verdict), '']),
    ...(noClaimReason === '' ? [] : [[name, 'a new one', 'none to claim', noClaimReason]]),
  ];
  return rows.length > 0 ? rows : [[name, cidr, 'open', 'no block is claimed yet']];
}
