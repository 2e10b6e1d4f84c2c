import { NodeServiceService, NodeUtilization, type Node } from '@podwire/proto/podwire/ipam/v1/node';

import { allPages } from '../clients/pages.js';
import type { Verb } from '../command-line/verb.js';
import { age } from '../output/words.js';
import { COUNT_COLUMNS, countCells } from '../resources/address-counts.js';
import { tunnelsOf } from '../resources/nodes.js';

export const nodesList: Verb = {
  name: 'nodes list',
  about: 'the registered nodes, and what they hold',
  run: async (_, { ipam, json, clock }) => {
    const pages = await allPages((page) => ipam.call(NodeServiceService.listNodes, page));
    const nodes = pages.flatMap((page) => page.nodes);
    const row = (node: Node): string[] => {
      const { name, ipv4Address, ipv6Address, utilization, deleteTime, createTime } = node;
      const counts = utilization ?? NodeUtilization.create();
      const state = deleteTime === undefined ? 'registered' : 'being deleted';
      const numbers = [String(counts.blocks), ...countCells(counts)];
      return [name, ipv4Address, ipv6Address, tunnelsOf(node), ...numbers, state, age(createTime, clock.nowMs())];
    };
    return {
      sections: [
        {
          kind: 'table',
          columns: ['NAME', 'IPV4', 'IPV6', 'TUNNELS', { right: 'BLOCKS' }, ...COUNT_COLUMNS, 'STATE', 'AGE'],
          rows: nodes.map(row),
          none: 'No node is registered.',
        },
      ],
      data: () => json.of(NodeServiceService.listNodes, { nodes, nextPageToken: '' }),
    };
  },
};
