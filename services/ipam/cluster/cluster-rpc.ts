import {
  ClusterServiceService,
  NodeContact,
  type CallNodeRequest,
  type CallNodeResponse,
  type ConnectNodeRequest,
  type ConnectNodeResponse,
  type GetClusterInfoResponse,
  type NodeReport,
  type NodeRequest,
  type NodeState,
} from '@podwire/proto/podwire/ipam/v1/cluster';
import { isFailureCode, type FailureCode } from '@podwire/shared/failure/codes';
import { decodeFailure } from '@podwire/shared/failure/status';
import { readChecked } from '@podwire/shared/requests/checks';
import { formatPageToken, readPage, type ListScope } from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { DuplexHandler, Streaming, StreamHandler } from '@podwire/shared/rpc/streaming';
import type { Unary } from '@podwire/shared/rpc/unary';
import type { Clock } from '@podwire/shared/runtime/clock';
import { compareNames } from '@podwire/shared/words/order';

import { dateOf, readObjectName } from '../messages/parts.js';
import type { LastContact, Nodes } from '../nodes/nodes-operations.js';
import type { PodIdentity } from '../records/attributes.js';
import { subdomainFault } from '../records/names.js';
import { pageOf } from '../records/page.js';
import { NodeConnections } from './cluster-operations.js';

type Connections = NodeConnections<NodeReport, NodeRequest>;

/** Dependencies of the service. */
export interface ClusterOptions {
  readonly nodes: Pick<Nodes, 'contacts' | 'get'>;
  /** Name of this process among all podwire-ipam. */
  readonly instance: string;
  /** Whether further processes serve the same datastore at the same time. */
  readonly hasReplicas: boolean;
  /** Reads the datastore. @throws Failure STORE_UNAVAILABLE */
  readonly info: (signal: AbortSignal) => Promise<GetClusterInfoResponse>;
  readonly clock: Clock;
  /** A condition of a node began or ended. Must not throw. */
  readonly conditionChanged: (nodeName: string, reason: string, state: ConditionState) => void;
  /** The ADD of a pod failed on a node. Must not throw. */
  readonly podFailed: (nodeName: string, pod: PodIdentity, failure: PodFailure) => void;
}

interface ConditionState {
  readonly isActive: boolean;
  readonly note: string;
}

interface PodFailure {
  readonly code: FailureCode;
  readonly message: string;
  readonly count: number;
}

/** Failures of a pod that one message of a node may have. */
const MAX_FAILED_PODS = 256;

interface ClusterServer extends ClusterOptions {
  readonly connections: Connections;
}

export function clusterService(options: ClusterOptions, unary: Unary, streaming: Streaming): RpcService {
  const server: ClusterServer = { ...options, connections: new NodeConnections(options.clock) };
  return {
    name: 'podwire.ipam.v1.ClusterService',
    definition: ClusterServiceService,
    implementation: {
      connectNode: streaming.duplex(ClusterServiceService.connectNode, connectHandler(server)),
      listNodeStates: unary(ClusterServiceService.listNodeStates, async (message, { signal }) => {
        const page = readChecked('ListNodeStates', (checks) => readPage(message, SCOPE, checks));
        const { items, more } = pageOf(await nodeStates(server, signal), page);
        return { nodes: [...items], nextPageToken: formatPageToken(SCOPE, more ? items.at(-1)?.name : undefined) };
      }),
      callNode: streaming(ClusterServiceService.callNode, callHandler(server)),
      getClusterInfo: unary(ClusterServiceService.getClusterInfo, (_, { signal }) => server.info(signal)),
    },
  };
}

const SCOPE: ListScope = ['node-states'];

function connectHandler({
  connections,
  instance,
  hasReplicas,
  conditionChanged,
  podFailed,
}: ClusterServer): DuplexHandler<ConnectNodeRequest, ConnectNodeResponse> {
  return async function* ({ nodeName, report }, { signal }, later) {
    const first = readChecked('ConnectNode', (checks) => {
      checks.check('node_name', subdomainFault(nodeName));
      checks.check('report', report ? undefined : 'is missing; the first message needs it');
      return report;
    });
    if (!first) return;
    let reported = connections.get(nodeName)?.report;
    const noteConditions = (report: NodeReport): void => {
      for (const { reason, ...state } of changedConditions(reported, report)) conditionChanged(nodeName, reason, state);
      reported = report;
    };
    const connection = connections.open(nodeName, first);
    noteConditions(first);
    later(({ report: changed, answer, failedPods }) => {
      if (changed) {
        connection.latestReport = changed;
        noteConditions(changed);
      }
      for (const { pod, code, message, count } of failedPods.slice(0, MAX_FAILED_PODS))
        if (pod && isFailureCode(code)) podFailed(nodeName, pod, { code, message, count });
      if (!answer) return;
      const { callNumber, part, isLast, error } = answer;
      const failure = error.length > 0 ? decodeFailure(error) : undefined;
      connection.answer({ callNumber: Number(callNumber), part, isLast, failure });
    });
    try {
      yield { instance, hasReplicas, call: undefined };
      for await (const { number, timeoutMs, request } of connection.calls(signal))
        yield { instance: '', hasReplicas: false, call: { number: BigInt(number), timeoutMs, request } };
    } finally {
      connection.close();
    }
  };
}

/** Conditions that each node has when it connects, or until it follows the leader: they concern podwire-ipam, not the node. */
const OF_CONNECTION: readonly string[] = ['IpamUnreachable', 'PoliciesNotFollowed'];

/** Conditions that began or ended between two reports, by their reasons. */
function changedConditions(
  before: NodeReport | undefined,
  now: NodeReport,
): readonly ({ readonly reason: string } & ConditionState)[] {
  const conditionsOf = (report: NodeReport | undefined): Map<string, string> => {
    const known = report?.status?.conditions.filter(({ reason }) => !OF_CONNECTION.includes(reason)) ?? [];
    return new Map(known.map(({ reason, message }) => [reason, message]));
  };
  const [earlier, current] = [conditionsOf(before), conditionsOf(now)];
  const begun = [...current].filter(([reason]) => !earlier.has(reason));
  const ended = [...earlier.keys()].filter((reason) => !current.has(reason));
  return [
    ...begun.map(([reason, note]) => ({ reason, isActive: true, note })),
    ...ended.map((reason) => ({ reason, isActive: false, note: `${reason} ended` })),
  ];
}

const MAX_CALL_TIMEOUT_MS = 600_000;
const DEFAULT_CALL_TIMEOUT_MS = 10_000;
const MAX_BODY_BYTES = 256 * 1024;

function callHandler({ connections, nodes }: ClusterServer): StreamHandler<CallNodeRequest, CallNodeResponse> {
  return async function* (message, { signal }) {
    const nodeName = readObjectName('CallNode', message.nodeName);
    const { request, timeoutMs } = readCall(message);
    if (!connections.get(nodeName)) await nodes.get(nodeName, signal);
    for await (const part of connections.call(nodeName, request, timeoutMs, signal)) yield { part: Buffer.from(part) };
  };
}

function readCall({ request, timeoutMs }: CallNodeRequest): {
  readonly request: NodeRequest;
  readonly timeoutMs: number;
} {
  return readChecked('CallNode', (checks) => {
    const { path = '', body = Buffer.alloc(0), httpMethod = '', httpHeaders = {} } = request ?? {};
    checks.check('request.path', path.startsWith('/') ? undefined : 'must begin with a slash');
    checks.check('request.body', body.length > MAX_BODY_BYTES ? `is larger than ${MAX_BODY_BYTES} bytes` : undefined);
    const isTooLong = timeoutMs > MAX_CALL_TIMEOUT_MS;
    checks.check('timeout_ms', isTooLong ? `is ${timeoutMs}; at most ${MAX_CALL_TIMEOUT_MS} is allowed` : undefined);
    return { request: { path, body, httpMethod, httpHeaders }, timeoutMs: timeoutMs || DEFAULT_CALL_TIMEOUT_MS };
  });
}

/** All registered or connected nodes, sorted by name. */
async function nodeStates({ connections, nodes }: ClusterServer, signal: AbortSignal): Promise<NodeState[]> {
  const registered = new Map((await nodes.contacts(signal)).map((node) => [node.name, node]));
  connections.retain(new Set(registered.keys()));
  const names = new Set([...registered.keys(), ...connections.connectedNames]);
  return [...names].map((name) => nodeState(name, registered.get(name), connections)).sort(compareNames);
}

function nodeState(name: string, registered: LastContact | undefined, connections: Connections): NodeState {
  const known = connections.get(name);
  const heardAtMs = registered?.heardAtMs ?? 0;
  const contactAtMs = Math.max(heardAtMs, known?.contactAtMs ?? 0);
  // A node that was heard of after its connection ended may be connected to another podwire-ipam.
  const isRecent = registered?.isAlive === true && (!known || heardAtMs > known.contactAtMs);
  const unconnected = isRecent ? NodeContact.NODE_CONTACT_RECENT : NodeContact.NODE_CONTACT_SILENT;
  return {
    name,
    contact: known?.isConnected ? NodeContact.NODE_CONTACT_CONNECTED : unconnected,
    contactTime: dateOf(contactAtMs === 0 ? undefined : contactAtMs),
    report: known?.report,
  };
}
