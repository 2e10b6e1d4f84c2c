import { NodeServiceService, NodeUtilization, TunnelKind, type Node } from '@podwire/proto/podwire/ipam/v1/node';
import { counted } from '@podwire/shared/words/counted';

import { text } from '../command-line/forms.js';
import type { Positional, Verb } from '../command-line/verb.js';
import type { Fields } from '../output/report.js';
import { momentAndAge, percent, wordOf } from '../output/words.js';
import { inUseOf } from './address-counts.js';

export const NODE_NAME: Positional<string> = { form: text('NAME'), about: 'name of the node', presence: 'required' };

export const nodesShow: Verb = {
  name: 'nodes show',
  about: 'everything about one node, as IPAM knows it; "node status" shows what the node itself reports',
  positionals: [NODE_NAME],
  run: async (input, { ipam, json, clock }) => {
    const answer = await ipam.call(NodeServiceService.getNode, { name: input.at(NODE_NAME) });
    return {
      sections: answer.node ? [nodeFields(answer.node, clock.nowMs())] : [],
      data: () => json.of(NodeServiceService.getNode, answer),
    };
  },
};

/** `vxlan-ipv4 10.65.0.1`. A kind without an address is no tunnel: each node tells beforehand which MAC addresses its devices would have. */
export function tunnelsOf({ tunnels }: Node): string {
  const told = tunnels.filter(({ address }) => address !== '');
  return told.map(({ kind, address }) => `${wordOf(TunnelKind[kind], 'TUNNEL_KIND_')} ${address}`).join(', ');
}

export function nodeFields(node: Node, nowMs: number): Fields {
  const counts = node.utilization ?? NodeUtilization.create();
  const inUse = inUseOf(counts);
  return {
    kind: 'fields',
    fields: [
      ['Name', node.name],
      ['IPv4', node.ipv4Address],
      ['IPv6', node.ipv6Address],
      ['Registered', momentAndAge(node.createTime, nowMs)],
      ['Deleted since', momentAndAge(node.deleteTime, nowMs)],
      ['Blocks', `${counts.blocks}, with ${counted(counts.capacity, 'address', 'addresses')}`],
      ['In use', `${inUse} (${percent(inUse, counts.capacity)})`],
      ['Cooling', String(counts.cooling)],
      ['Reserved', String(counts.reserved)],
      ['Available', String(counts.available)],
      ['Tunnels', tunnelsOf(node)],
      ['AS number', node.asNumber === undefined ? '' : String(node.asNumber)],
      [
        'Labels',
        Object.entries(node.labels)
          .map(([key, value]) => `${key}=${value}`)
          .join(', '),
      ],
      ['Version', node.resourceVersion],
    ],
  };
}
