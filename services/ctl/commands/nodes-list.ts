import { NodeServiceService, type Node } from '@podwire/proto/podwire/ipam/v1/node';

import { allPages } from '../clients/pages.js';
import type { Verb } from '../command-line/verb.js';
import { age, percent } from '../output/words.js';
import { tunnelsOf } from './nodes-show.js';

export const nodesList: Verb = {
  name: 'nodes list',
  about: 'the registered nodes, and what they hold',
  run: async (_, { ipam, json, clock }) => {
    const pages = await allPages((page) => ipam.call(NodeServiceService.listNodes, page));
    const nodes = pages.flatMap((page) => page.nodes);
    const row = (node: Node): string[] => {
      const { name, ipv4Address, ipv6Address, utilization, deleteTime, createTime } = node;
      const { blocks = 0n, capacity = 0n, allocated = 0n } = utilization ?? {};
      const state = deleteTime === undefined ? 'registered' : 'being deleted';
      const numbers = [String(blocks), String(allocated), percent(allocated, capacity)];
      return [name, ipv4Address, ipv6Address, tunnelsOf(node), ...numbers, state, age(createTime, clock.nowMs())];
    };
    return {
      sections: [
        {
          kind: 'table',
          columns: [
            'NAME',
            'IPV4',
            'IPV6',
            'TUNNELS',
            { right: 'BLOCKS' },
            { right: 'IN USE' },
            { right: 'USED' },
            'STATE',
            'AGE',
          ],
          rows: nodes.map(row),
          none: 'No node is registered.',
        },
      ],
      data: () => json.of(NodeServiceService.listNodes, { nodes, nextPageToken: '' }),
    };
  },
};
