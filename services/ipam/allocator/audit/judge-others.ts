import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix, prefixesOverlap } from '@podwire/shared/net/prefix';

import type { Judging } from '../../audit/context.js';
import { standingOf } from '../../audit/endpoint-findings.js';
import { makeFinding, named, noRemedy, type Finding } from '../../audit/finding.js';
import type { UnreadableRecord } from '../../records/view.js';
import type { Node, Pool } from '../records.js';

/** Whether a pool shares addresses with one behind it in the order of the names. */
export function judgePool({ view }: Judging, pool: Pool): Finding[] {
  const others = view.pools().filter((other) => other.name > pool.name && prefixesOverlap(other.prefix, pool.prefix));
  if (others.length === 0) return [];
  const text = (each: Pool): string => `"${each.name}" ${formatPrefix(each.prefix)}`;
  return [
    makeFinding({
      kind: 'poolsOverlap',
      subject: { type: 'pool', name: pool.name },
      objects: [named.pool(pool.name), ...others.map(({ name }) => named.pool(name))],
      explanation: `pool ${text(pool)} overlaps ${others.map(text).join(', ')}`,
      remedy: noRemedy('disable and delete all but one of them'),
    }),
  ];
}

/** Whether a node's tunnel addresses are its own. */
export function judgeNode(judging: Judging, node: Node): Finding[] {
  return [...node.tunnels].flatMap(([kind, { address }]) => {
    const standing = standingOf(judging, address);
    const text = `node ${node.name} has ${formatAddress(address)} as its ${kind}`;
    const objects = [named.address(address), named.node(node.name)] as const;
    const subject = { type: 'node', name: node.name } as const;
    switch (standing.state) {
      case 'unknown':
      case 'outside':
        return [];
      case 'noBlock':
      case 'free': {
        const explanation = `${text}, which is not allocated, so a container may get it`;
        const remedy = noRemedy('let the node get a tunnel address anew');
        return [makeFinding({ kind: 'tunnelUnallocated', subject, objects, explanation, remedy })];
      }
      case 'held': {
        const { owner, handleId } = standing.attributes;
        if (owner.node === node.name && owner.type !== undefined) return [];
        const explanation = `${text}, which is allocated to handle ${handleId ?? 'none'}`;
        const remedy = noRemedy('let the node get another tunnel address');
        return [makeFinding({ kind: 'addressOfSeveralOwners', subject, objects, explanation, remedy })];
      }
    }
  });
}

export function judgeUnreadable({ key, reason }: UnreadableRecord): Finding {
  return makeFinding({
    kind: 'recordUnreadable',
    subject: { type: 'record', key },
    objects: [named.record(key)],
    explanation: `record ${key} cannot be read: ${reason}`,
    remedy: noRemedy('what it was to say cannot be told; correct or delete it in the datastore'),
  });
}
