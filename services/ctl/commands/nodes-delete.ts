import { NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { counted } from '@podwire/shared/words/counted';

import { unconfirmed, YES } from '../command-line/options.js';
import type { Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { NODE_NAME, nodeFields } from '../resources/nodes.js';
import { RESOURCE_VERSION } from './pool-options.js';

export const nodesDelete: Verb = {
  name: 'nodes delete',
  about: 'release everything that a node holds, and forget the node; its containers must have ended first',
  positionals: [NODE_NAME],
  options: [RESOURCE_VERSION],
  flags: [YES],
  run: async (input, { ipam, json, clock }) => {
    const name = input.at(NODE_NAME);
    if (!input.has(YES)) {
      const found = await ipam.call(NodeServiceService.getNode, { name });
      const sections = [
        sentence(
          'This node would give back all its addresses and blocks; pods that still run there would lose theirs. ' +
            'A podwire-dataplane that still runs there would register it again:',
        ),
        ...(found.node ? [nodeFields(found.node, clock.nowMs())] : []),
      ];
      const data = () => json.of(NodeServiceService.getNode, found);
      return unconfirmed({ sections, data }, input.typed());
    }
    const answer = await ipam.call(NodeServiceService.deleteNode, {
      name,
      resourceVersion: input.get(RESOURCE_VERSION) ?? '',
    });
    const { releasedAddresses, releasedBlocks } = answer;
    const given = `${counted(releasedAddresses, 'address', 'addresses')} and ${counted(releasedBlocks, 'block')}`;
    return {
      sections: [sentence(`node ${name} is gone, and has given back ${given}`)],
      data: () => json.of(NodeServiceService.deleteNode, answer),
    };
  },
};
