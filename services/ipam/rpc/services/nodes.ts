import { NodeServiceService, type NodeServiceServer } from '@podwire/proto/podwire/ipam/v1/node';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { allocateTunnelAddress } from '../allocate-tunnel-address.js';
import { deleteNode } from '../delete-node.js';
import { getNode } from '../get-node.js';
import { listNodes } from '../list-nodes.js';
import { registerNode } from '../register-node.js';
import { releaseTunnelAddress } from '../release-tunnel-address.js';
import { updateNode } from '../update-node.js';

export function nodeService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: NodeServiceServer = {
    registerNode: unary(NodeServiceService.registerNode, registerNode(ipam)),
    getNode: unary(NodeServiceService.getNode, getNode(ipam)),
    listNodes: unary(NodeServiceService.listNodes, listNodes(ipam)),
    updateNode: unary(NodeServiceService.updateNode, updateNode(ipam)),
    deleteNode: unary(NodeServiceService.deleteNode, deleteNode(ipam)),
    allocateTunnelAddress: unary(NodeServiceService.allocateTunnelAddress, allocateTunnelAddress(ipam)),
    releaseTunnelAddress: unary(NodeServiceService.releaseTunnelAddress, releaseTunnelAddress(ipam)),
  };
  return { name: 'podwire.ipam.v1.NodeService', definition: NodeServiceService, implementation };
}
