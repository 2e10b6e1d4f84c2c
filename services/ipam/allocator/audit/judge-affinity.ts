import { formatPrefix } from '@podwire/shared/net/prefix';

import { expectBlock, type Judging } from '../../audit/context.js';
import { makeFinding, named, ownerText, safely, type Finding } from '../../audit/finding.js';
import { expectNoBlock } from '../../records/absence.js';
import type { Affinity } from '../records.js';

/** What can be wrong with an affinity whose block does not name its owner. Others are judged with their block. */
export function judgeAffinity(judging: Judging, affinity: Affinity): Finding[] {
  const { owner, block: prefix, state } = affinity;
  if (judging.cannotRead({ kind: 'block', prefix })) return [];
  const block = judging.view.block(prefix);
  if (block?.owner?.kind === owner.kind && block.owner.name === owner.name) return [];
  const claim = `${ownerText(owner)} has an affinity (${state}) for block ${formatPrefix(prefix)}`;
  const reason = !block
    ? 'which does not exist'
    : block.owner
      ? `which belongs to ${ownerText(block.owner)}`
      : 'which nobody owns';
  const rests = block ? expectBlock(block) : expectNoBlock(prefix);
  return [
    makeFinding({
      kind: block ? 'affinityOfOthersBlock' : 'affinityWithoutBlock',
      subject: { type: 'affinity', owner, block: prefix },
      objects: [
        named.affinity(owner, prefix),
        named.block(prefix),
        ...(owner.kind === 'host' ? [named.node(owner.name)] : []),
      ],
      explanation: `${claim}, ${reason}`,
      remedy: safely('removes the affinity; the block stays as it is', () => [
        rests,
        { type: 'delete', record: { kind: 'affinity', value: affinity } },
      ]),
    }),
  ];
}
