import {
  NodeServiceService,
  RoutingState,
  type GetNodeStatusResponse,
  type Tunnel,
} from '@podwire/proto/podwire/dataplane/v1/node';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import type { SessionStatus } from '../bird/sessions.js';
import type { Condition } from '../conditions/conditions.js';
import type { NodeStatus } from '../routes/status.js';
import type { RoutingMode, WantedTunnel } from '../routes/wanted.js';
import type { RegisteredAddresses } from './registration.js';

const STATES: Readonly<Record<NodeStatus['state'], RoutingState>> = {
  waiting: RoutingState.ROUTING_STATE_WAITING,
  silent: RoutingState.ROUTING_STATE_SILENT,
  reconciling: RoutingState.ROUTING_STATE_RECONCILING,
  'as-wanted': RoutingState.ROUTING_STATE_AS_WANTED,
};

export function nodeService(overview: () => NodeOverview, unary: Unary): RpcService {
  return unaryService(NodeServiceService, unary, { getNodeStatus: () => Promise.resolve(statusMessage(overview())) });
}

export function statusMessage(overview: NodeOverview): GetNodeStatusResponse {
  const { nodeName, registered, routing, routes, podMtuBytes, sessions, attachmentCount, podRepairCount } = overview;
  return {
    nodeName,
    ipv4Address: registered?.ipv4Address ?? '',
    ipv6Address: registered?.ipv6Address ?? '',
    routing,
    tunnels: (routes?.tunnels ?? []).map(tunnelMessage),
    routingState: routes ? STATES[routes.state] : RoutingState.ROUTING_STATE_UNSPECIFIED,
    wanted: routes?.wanted,
    present: routes?.present,
    checkedAt: routes?.checkedAtMs === undefined ? undefined : new Date(routes.checkedAtMs),
    driftCount: BigInt(routes?.driftCount ?? 0),
    podMtuBytes,
    bgpSessions: sessions.map(({ session: { neighbour, about }, state }) => ({
      neighbour,
      about,
      state: state?.state ?? '',
      importedCount: state?.importedCount ?? 0,
      exportedCount: state?.exportedCount ?? 0,
    })),
    attachmentCount,
    podRepairCount: BigInt(podRepairCount),
    conditions: overview.conditions.map(({ reason, message }) => ({ reason, message })),
    ...overview.leases,
  };
}

function tunnelMessage(tunnel: WantedTunnel): Tunnel {
  const { name, kind, address = '', mtuBytes } = tunnel;
  return { name, kind, address, macAddress: tunnel.kind === 'vxlan' ? tunnel.mac : '', mtuBytes };
}

/** The node's state as its dataplane reports it. */
export interface NodeOverview {
  readonly nodeName: string;
  /** Addresses as last registered in IPAM; undefined: not registered yet. */
  readonly registered: RegisteredAddresses | undefined;
  readonly routing: RoutingMode;
  /** Status; undefined when the node belongs to no cluster. */
  readonly routes: NodeStatus | undefined;
  readonly podMtuBytes: number;
  readonly sessions: readonly SessionStatus[];
  readonly attachmentCount: number;
  readonly podRepairCount: number;
  readonly conditions: readonly Condition[];
  readonly leases: LeaseCounts;
}

/** The node's addresses that podwire-ipam does not know as they are. */
export interface LeaseCounts {
  /** Addresses that pods can get without podwire-ipam. */
  readonly leaseCount: number;
  /** Pods whose addresses are still to be bound. */
  readonly unboundCount: number;
  /** Deleted pods whose addresses are still to be returned. */
  readonly unreturnedCount: number;
}
