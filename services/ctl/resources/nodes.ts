import { NodeServiceService, NodeUtilization, TunnelKind, type Node } from '@podwire/proto/podwire/ipam/v1/node';
import { formatCount } from '@podwire/shared/words/format-count';

import { allPages } from '../clients/services.js';
import { text } from '../command-line/forms.js';
import { RESOURCE_VERSION, previewReport, YES } from '../command-line/options.js';
import type { Positional, Verb } from '../command-line/verb.js';
import { sentence, type Fields } from '../output/report.js';
import { age, momentAndAge, percent, wordOf } from '../output/words.js';
import { COUNT_COLUMNS, countCells, inUseOf } from './address-counts.js';

export const NODE_NAME: Positional<string> = { form: text('NAME'), about: 'name of the node', presence: 'required' };

export const nodesShow: Verb = {
  name: 'nodes show',
  about: 'details of one node in IPAM; "node status" shows the state that the node itself reports',
  positionals: [NODE_NAME],
  run: async (input, { ipam, json, clock }) => {
    const answer = await ipam.call(NodeServiceService.getNode, { name: input.at(NODE_NAME) });
    return {
      sections: answer.node ? [nodeFields(answer.node, clock.nowMs())] : [],
      data: () => json.of(NodeServiceService.getNode, answer),
    };
  },
};

/** `vxlan-ipv4 10.65.0.1`. An entry without an address is not a tunnel, but the MAC address that a node announces in advance. */
function tunnelsOf({ tunnels }: Node): string {
  const active = tunnels.filter(({ address }) => address !== '');
  return active.map(({ kind, address }) => `${wordOf(TunnelKind[kind], 'TUNNEL_KIND_')} ${address}`).join(', ');
}

function nodeFields(node: Node, nowMs: number): Fields {
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
      ['Blocks', `${counts.blocks}, with ${formatCount(counts.capacity, 'address', 'addresses')}`],
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

export const nodesDelete: Verb = {
  name: 'nodes delete',
  about: 'delete a node and release its blocks and addresses; its containers must have ended first',
  positionals: [NODE_NAME],
  options: [RESOURCE_VERSION],
  flags: [YES],
  run: async (input, { ipam, json, clock }) => {
    const name = input.at(NODE_NAME);
    if (!input.has(YES)) {
      const found = await ipam.call(NodeServiceService.getNode, { name });
      const sections = [
        sentence(
          'All addresses and blocks of this node would be released, including those of running pods. ' +
            'A podwire-dataplane that still runs there would register the node again:',
        ),
        ...(found.node ? [nodeFields(found.node, clock.nowMs())] : []),
      ];
      const data = () => json.of(NodeServiceService.getNode, found);
      return previewReport({ sections, data }, input.toCommandLine());
    }
    const answer = await ipam.call(NodeServiceService.deleteNode, {
      name,
      resourceVersion: input.get(RESOURCE_VERSION) ?? '',
    });
    const { releasedAddresses, releasedBlocks } = answer;
    const released = `${formatCount(releasedAddresses, 'address', 'addresses')} and ${formatCount(releasedBlocks, 'block')}`;
    return {
      sections: [sentence(`node ${name} is deleted; released: ${released}`)],
      data: () => json.of(NodeServiceService.deleteNode, answer),
    };
  },
};

export const nodesList: Verb = {
  name: 'nodes list',
  about: 'the registered nodes, with their blocks and addresses',
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
          none: 'nodes: none',
        },
      ],
      data: () => json.of(NodeServiceService.listNodes, { nodes, nextPageToken: '' }),
    };
  },
};
