import {
  HandleServiceService,
  type GetHandleRequest,
  type Handle as HandleMessage,
  type HandleAddress,
  type ListHandlesRequest,
} from '@podwire/proto/podwire/ipam/v1/handle';
import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, type Prefix } from '@podwire/shared/net/prefix';
import { readChecked } from '@podwire/shared/requests/checks';
import {
  formatPageToken,
  readPage,
  readPageSize,
  readPageToken,
  type ListScope,
} from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { continueHandleRelease, heldByHandle, type HandleRelease } from '../addresses/release.js';
import type { NodeInquiry } from '../blocks/running-nodes-operations.js';
import { keptMessage } from '../blocks/running-nodes-rpc.js';
import { blockLane, read, type IpamOptions } from '../engine/updates/operation.js';
import type { Handle, HeldAddress } from '../records/block.js';
import { cutHandle, handleFault } from '../records/names.js';
import type { Page } from '../records/page.js';
import type { View } from '../records/view.js';
import { listHandleAddresses, listHandles, type HandleAddressQuery, type HandleQuery } from './handles.js';

export function handleService(handles: Handles, unary: Unary): RpcService {
  return unaryService(HandleServiceService, unary, {
    listHandles: async (message, { signal }) => {
      const { items, more } = await handles.list(readListQuery(message), signal);
      return {
        handles: items.map(handleMessage),
        nextPageToken: formatPageToken(listScopeOf(message), more ? items.at(-1)?.id : undefined),
      };
    },
    getHandle: async (message, { signal }) => {
      const { items, more } = await handles.addresses(readQuery(message), signal);
      const last = items.at(-1);
      const lastAddress = last && formatAddress(addressAt(last.block.prefix, last.ordinal));
      return {
        addresses: items.map(handleAddressMessage),
        nextPageToken: formatPageToken(scopeOf(message), more ? lastAddress : undefined),
      };
    },
    releaseHandle: async (message, { signal }) => {
      const handleId = cutHandle(message.handleId);
      readChecked('ReleaseHandle', (checks) => checks.check('handle_id', handleFault(handleId)));
      const { searchAllBlocks: searchesAllBlocks, force } = message;
      const { addresses, kept } = await handles.release({ handleId, searchesAllBlocks, force }, signal);
      return { addresses: addresses.map(formatPrefix), ...keptMessage(kept) };
    },
  });
}

const MAX_PREFIX_BYTES = 512;

function listScopeOf({ prefix }: ListHandlesRequest): ListScope {
  return ['handles', prefix];
}

function readListQuery(message: ListHandlesRequest): HandleQuery {
  return readChecked('ListHandles', (checks) => {
    const isLong = Buffer.byteLength(message.prefix) > MAX_PREFIX_BYTES;
    checks.check('prefix', isLong ? `is longer than ${MAX_PREFIX_BYTES} bytes` : undefined);
    const after = readPageToken(message, listScopeOf(message), checks);
    return { limit: readPageSize(message, checks), after, prefix: message.prefix };
  });
}

function scopeOf({ handleId }: GetHandleRequest): ListScope {
  return ['handle', handleId];
}

function readQuery(message: GetHandleRequest): HandleAddressQuery {
  return readChecked('GetHandle', (checks) => {
    checks.check('handle_id', handleFault(message.handleId));
    const { limit, after } = readPage(message, scopeOf(message), checks);
    return { handleId: message.handleId, limit, after: parseAddress(after) };
  });
}

interface HandleReleaseRequest extends Pick<HandleRelease, 'handleId' | 'searchesAllBlocks'> {
  /** Whether to ask nodes that run instead of refusing. Default: false. */
  readonly force?: boolean | undefined;
}

interface HandleReleased {
  readonly addresses: readonly Prefix[];
  /** Addresses that running nodes may use. */
  readonly kept: readonly HeldAddress[];
}

/** Lists and releases the addresses of handles. */
export class Handles {
  readonly #options: IpamOptions;
  readonly #inquiry: NodeInquiry;

  constructor(options: IpamOptions, inquiry: NodeInquiry) {
    this.#options = options;
    this.#inquiry = inquiry;
  }

  list(query: HandleQuery, signal: AbortSignal): Promise<Page<Handle>> {
    return read(this.#options, (view) => listHandles(view, query), signal);
  }

  /** @throws Failure HANDLE_NOT_FOUND */
  addresses(query: HandleAddressQuery, signal: AbortSignal): Promise<Page<HeldAddress>> {
    return read(this.#options, (view) => listHandleAddresses(view, query), signal);
  }

  /**
   * Releases all addresses of a handle, in several transactions if needed. Idempotent.
   * @throws Failure NODE_IN_USE when a pod of a node that runs has one, unless `force`
   */
  async release({ force = false, ...request }: HandleReleaseRequest, signal: AbortSignal): Promise<HandleReleased> {
    const { updates, events, clock } = this.#options;
    const scope = (view: View): HeldAddress[] => heldByHandle(view, request);
    const silent = await this.#inquiry.ask(scope, force, signal);
    const addresses: Prefix[] = [];
    for (let state = 'more'; state === 'more';) {
      const release = { nowMs: clock.nowMs(), silent, ...request };
      const lane = await updates.peek((view) => blockLane(scope(view)[0]?.block));
      const step = await updates.update(lane, (view) => continueHandleRelease(view, release), { signal });
      events.addressesReleased(step.addresses);
      addresses.push(...step.addresses);
      ({ state } = step);
    }
    return { addresses, kept: await this.#inquiry.kept(scope, silent, signal) };
  }
}

function handleMessage({ id, blocks }: Handle): HandleMessage {
  return { handleId: id, blocks: [...blocks].map(([cidr, addressCount]) => ({ cidr, addressCount })) };
}

function handleAddressMessage({ block, ordinal, attributes }: HeldAddress): HandleAddress {
  return {
    address: formatAddress(addressAt(block.prefix, ordinal)),
    blockCidr: formatPrefix(block.prefix),
    sequenceNumber: block.sequenceNumbers[ordinal] ?? 0n,
    attributes: { ...attributes.owner },
  };
}
