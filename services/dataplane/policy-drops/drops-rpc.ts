import {
  NetworkPolicyServiceService,
  type ListPolicyDropsRequest,
  type ListPolicyDropsResponse,
  type PolicyDrop as DropMessage,
} from '@podwire/proto/podwire/dataplane/v1/network_policy';
import { formatAddress } from '@podwire/shared/net/address';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { filteredPod, messageOfDrop, type PolicyDrop, type PolicyDrops } from './drops.js';

/** @param drops - undefined: network policies are not enforced */
export function networkPolicyService(drops: ReportedDrops | undefined, unary: Unary): RpcService {
  return unaryService(NetworkPolicyServiceService, unary, {
    listPolicyDrops: (request) => Promise.resolve(dropsMessage(drops, request)),
  });
}

type ReportedDrops = Pick<PolicyDrops, 'list' | 'latestNumber' | 'lostCount' | 'fault'>;

export function dropsMessage(
  drops: ReportedDrops | undefined,
  { namespace, afterNumber }: ListPolicyDropsRequest,
): ListPolicyDropsResponse {
  const off = 'network policies are off on this node; set PODWIRE_NODE_NETWORK_POLICIES=true';
  if (!drops) return { drops: [], latestNumber: 0n, unavailable: off, lostCount: 0n };
  const { latestNumber, lostCount, fault = '' } = drops;
  const selected = drops.list(Number(afterNumber)).filter((drop) => isOf(namespace, drop));
  return {
    drops: selected.map(dropMessage),
    latestNumber: BigInt(latestNumber),
    unavailable: fault,
    lostCount: BigInt(lostCount),
  };
}

function isOf(namespace: string, drop: PolicyDrop): boolean {
  return namespace === '' || filteredPod(drop)?.namespace === namespace;
}

function dropMessage(drop: PolicyDrop): DropMessage {
  const { number, atMs, direction, source, destination, protocol, ports, reason, policies } = drop;
  return {
    number: BigInt(number),
    time: new Date(atMs),
    direction,
    sourceAddress: formatAddress(source),
    destinationAddress: formatAddress(destination),
    protocol,
    sourcePort: ports?.source,
    destinationPort: ports?.destination,
    sourcePod: drop.sourcePod,
    destinationPod: drop.destinationPod,
    reason,
    message: messageOfDrop(drop),
    policies: [...policies],
  };
}
