import {
  WatchKind,
  WatchPhase,
  WatchResponse,
  WatchServiceService,
  type BlockRoute as BlockRouteMessage,
  type WatchedChange,
  type WatchRequest,
  type WatchRequest as WatchRequestMessage,
} from '@podwire/proto/podwire/ipam/v1/watch';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import type { RpcService } from '@podwire/shared/rpc/server';
import { preparedMethod, type StreamHandler, type Streaming } from '@podwire/shared/rpc/streaming';

import { parseToken, type StreamPosition, type StreamSource, type Subscription } from '../engine/streams/hub.js';
import type { StreamMessage, StreamPhase, StreamQuery } from '../engine/streams/stream.js';
import { nodeMessage } from '../nodes/nodes-rpc.js';
import { poolFields } from '../pools/pools-rpc.js';
import {
  nameOf,
  type BlockRoute,
  type EncodableChange,
  type WatchedKind,
  type WatchedObject,
} from './watched-objects.js';

export function watchService(watches: StreamSource, streaming: Streaming): RpcService {
  const method = preparedMethod(WatchServiceService.watch);
  return {
    name: 'podwire.ipam.v1.WatchService',
    definition: { watch: method },
    implementation: { watch: streaming(method, watch(watches)) },
  };
}

/** Messages are bytes, encoded once for all streams with the same query. */
function watch(watches: StreamSource): StreamHandler<WatchRequest, Uint8Array> {
  return (message, { signal }) => watches.watch(readWatchRequest(message), signal);
}

const KINDS: Partial<Record<WatchKind, WatchedKind>> = {
  [WatchKind.WATCH_KIND_POOLS]: 'pool',
  [WatchKind.WATCH_KIND_NODES]: 'node',
  [WatchKind.WATCH_KIND_ROUTES]: 'route',
};

const KIND_MESSAGES: Record<WatchedKind, WatchKind> = {
  pool: WatchKind.WATCH_KIND_POOLS,
  node: WatchKind.WATCH_KIND_NODES,
  route: WatchKind.WATCH_KIND_ROUTES,
};

const PHASES: Record<StreamPhase, WatchPhase> = {
  snapshot: WatchPhase.WATCH_PHASE_SNAPSHOT,
  snapshotComplete: WatchPhase.WATCH_PHASE_SNAPSHOT_COMPLETE,
  changes: WatchPhase.WATCH_PHASE_CHANGES,
  bookmark: WatchPhase.WATCH_PHASE_BOOKMARK,
};

function readWatchRequest(message: WatchRequestMessage): Subscription {
  return readChecked('Watch', (checks) => ({
    query: readKinds(message.kinds, checks),
    from: readToken(message.resumeToken, checks),
  }));
}

function readKinds(messages: readonly WatchKind[], checks: Checks): StreamQuery {
  if (messages.length === 0) checks.check('kinds', 'is empty; name at least one kind');
  const kinds = new Set<WatchedKind>();
  messages.forEach((message, index) => {
    const kind = KINDS[message];
    if (kind) kinds.add(kind);
    else checks.check(`kinds[${index}]`, `is ${message}; unknown kind`);
  });
  return kinds;
}

function readToken(token: string, checks: Checks): StreamPosition | undefined {
  if (token === '') return undefined;
  const position = parseToken(token);
  if (!position) checks.check('resume_token', 'was not issued by Watch; start without one');
  return position;
}

/**
 * Messages as bytes. Concatenated protobuf messages form one message, so an object is encoded once, as a
 * WatchResponse with only this change, and reused in every message.
 */
export function encodeMessage({ phase, reset, changes, resumeToken, isLocked }: StreamMessage): Uint8Array {
  return Buffer.concat([encode({ phase: PHASES[phase], reset, resumeToken, datastoreLocked: isLocked }), ...changes]);
}

export function encodeChange(change: EncodableChange): Uint8Array {
  return encode({ changes: [changeMessage(change)] });
}

function encode(parts: Partial<WatchResponse>): Uint8Array {
  return WatchResponse.encode({
    phase: WatchPhase.WATCH_PHASE_UNSPECIFIED,
    reset: false,
    changes: [],
    resumeToken: '',
    datastoreLocked: false,
    ...parts,
  }).finish();
}

function changeMessage(change: EncodableChange): WatchedChange {
  if (change.type === 'delete') return { kind: KIND_MESSAGES[change.kind], name: change.name, object: undefined };
  const { object } = change;
  return { kind: KIND_MESSAGES[object.kind], name: nameOf(object), object: objectMessage(object) };
}

function objectMessage(object: WatchedObject): WatchedChange['object'] {
  switch (object.kind) {
    case 'pool':
      return { $case: 'pool', value: poolFields(object.value) };
    case 'node':
      return { $case: 'node', value: nodeMessage({ node: object.value }) };
    case 'route':
      return { $case: 'route', value: routeMessage(object.value) };
  }
}

function routeMessage({ prefix, poolName = '', nodeName = '', borrowed }: BlockRoute): BlockRouteMessage {
  return {
    cidr: formatPrefix(prefix),
    poolName,
    nodeName,
    borrowed: borrowed.map((one) => ({ address: formatAddress(one.address), nodeName: one.nodeName })),
  };
}
