import {
  AddressReleaseResult as ResultMessage,
  AddressServiceService,
  AddressState as StateMessage,
  type AddressHolder as HolderMessage,
  type Attributes,
  type GetAddressResponse,
  type ReleaseAddressesRequest,
  type ReleasedAddress,
  type SetAttributesRequest,
} from '@podwire/proto/podwire/ipam/v1/address';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';
import { withAttachment } from '@podwire/shared/runtime/log';

import { endpointMessage } from '../endpoints/endpoints-rpc.js';
import { dateOf, readAddress, readAttachment, readNetns } from '../messages/parts.js';
import type { OwnerAttributes } from '../records/attributes.js';
import { sameNetns } from '../records/endpoint.js';
import { handleFault } from '../records/names.js';
import type { Addresses, Assignments } from './addresses-operations.js';
import type { AddressHolder, AddressReport, AttributesChange } from './addresses.js';
import { allocateHandler, explainAllocationHandler, type AddressServiceDeps } from './allocate/allocate-rpc.js';
import { assignmentMessage, readAssignAddressesRequest } from './assign-rpc.js';
import type { AddressRelease, AddressReleaseResult } from './release.js';

export function addressService(
  { addresses, assignments }: { addresses: Addresses; assignments: Assignments },
  unary: Unary,
  deps: AddressServiceDeps,
): RpcService {
  return unaryService(AddressServiceService, unary, {
    allocate: allocateHandler(addresses, deps),
    assignAddresses: async (message, { signal }) => {
      const request = readAssignAddressesRequest(message);
      return assignmentMessage(request, await assignments.assign(request, signal));
    },
    explainAllocation: explainAllocationHandler(assignments),
    release: async (message, { signal }) => {
      const attachment = readChecked('Release', (checks) => readAttachment(message.attachment, checks));
      const released = await withAttachment(attachment, () => addresses.release(attachment, signal));
      return { addresses: released.addresses.map(formatPrefix) };
    },
    getEndpoint: async (message, { signal }) => {
      const attachment = readChecked('GetEndpoint', (checks) => readAttachment(message.attachment, checks));
      const endpoint = await withAttachment(attachment, () => addresses.getEndpoint(attachment, signal));
      return { endpoint: endpointMessage(endpoint) };
    },
    releaseAddresses: async (message, { signal }) => {
      const releases = readReleaseAddressesRequest(message);
      const { nodeName: callingNode = '', force = false } = message;
      const results =
        callingNode === ''
          ? await addresses.releaseUnused(releases, force, signal)
          : await addresses.releaseEach(releases, signal, { callingNode });
      const released = releases.flatMap((release, index) =>
        results.slice(index, index + 1).map((result) => releasedAddressMessage(release, result)),
      );
      return { addresses: released };
    },
    getAddress: async (message, { signal }) => {
      const address = readChecked('GetAddress', (checks) => readAddress('address', message.address, checks));
      return addressMessage(await addresses.get(address, signal));
    },
    setAttributes: async (message, { signal }) => {
      const change = readSetAttributesRequest(message);
      return { holder: holderMessage(await addresses.setAttributes(change, signal)) };
    },
  });
}

const MAX_RELEASES_COUNT = 1000;
const MAX_ATTRIBUTES_COUNT = 64;
const MAX_ATTRIBUTE_NAME_BYTES = 256;
const MAX_ATTRIBUTE_VALUE_BYTES = 1024;

function readReleaseAddressesRequest({ releases: messages }: ReleaseAddressesRequest): AddressRelease[] {
  return readChecked('ReleaseAddresses', (checks) => {
    if (messages.length > MAX_RELEASES_COUNT)
      checks.check('releases', `has ${messages.length} entries; at most ${MAX_RELEASES_COUNT} are allowed`);
    const releases = new Map<string, AddressRelease>();
    messages
      .slice(0, MAX_RELEASES_COUNT)
      .forEach(({ address: text, handleId, sequenceNumber, netns: netnsMessage }, index) => {
        const field = `releases[${index}]`;
        const address = readAddress(`${field}.address`, text, checks);
        if (handleId !== undefined) checks.check(`${field}.handle_id`, handleFault(handleId));
        const before = releases.get(formatAddress(address));
        const netns = netnsMessage && readNetns(`${field}.netns`, netnsMessage, checks);
        const differs =
          before &&
          (before.handleId !== handleId || before.sequenceNumber !== sequenceNumber || !sameNetns(before.netns, netns));
        checks.check(field, differs ? 'repeats an address with different conditions' : undefined);
        releases.set(formatAddress(address), { address, handleId, sequenceNumber, netns });
      });
    return [...releases.values()];
  });
}

export const RELEASE_RESULTS: Record<AddressReleaseResult['state'], ResultMessage> = {
  released: ResultMessage.ADDRESS_RELEASE_RESULT_RELEASED,
  notAllocated: ResultMessage.ADDRESS_RELEASE_RESULT_NOT_ALLOCATED,
  mismatch: ResultMessage.ADDRESS_RELEASE_RESULT_MISMATCH,
  unreadable: ResultMessage.ADDRESS_RELEASE_RESULT_UNREADABLE,
  inUse: ResultMessage.ADDRESS_RELEASE_RESULT_IN_USE,
};

function releasedAddressMessage({ address }: AddressRelease, result: AddressReleaseResult): ReleasedAddress {
  return {
    address: formatAddress(address),
    result: RELEASE_RESULTS[result.state],
    holder: 'holder' in result ? holderMessage(result.holder) : undefined,
  };
}

function holderMessage({ handleId, owner, alternateOwner, sequenceNumber }: AddressHolder): HolderMessage {
  return {
    handleId: handleId ?? '',
    attributes: { ...owner },
    sequenceNumber,
    alternateAttributes: { ...alternateOwner },
  };
}

const STATES: Record<AddressReport['state']['kind'], StateMessage> = {
  free: StateMessage.ADDRESS_STATE_FREE,
  allocated: StateMessage.ADDRESS_STATE_ALLOCATED,
  leased: StateMessage.ADDRESS_STATE_LEASED,
  cooling: StateMessage.ADDRESS_STATE_COOLING,
  reserved: StateMessage.ADDRESS_STATE_RESERVED,
  unmanaged: StateMessage.ADDRESS_STATE_UNMANAGED,
};

function addressMessage({ state, block, poolName }: AddressReport): GetAddressResponse {
  const { kind } = state;
  const held = kind === 'allocated' || kind === 'leased' ? state : undefined;
  return {
    state: STATES[kind],
    blockCidr: block ? formatPrefix(block.prefix) : '',
    poolName: poolName ?? '',
    holder: held && holderMessage(held.holder),
    allocateTime: dateOf(held?.sinceMs),
    releaseTime: kind === 'cooling' ? dateOf(state.releasedAtMs) : undefined,
    coolUntilTime: kind === 'cooling' ? dateOf(state.untilMs) : undefined,
    reservationNames: kind === 'reserved' ? [...state.reservationNames] : [],
  };
}

function readSetAttributesRequest(message: SetAttributesRequest): AttributesChange {
  const { handleId, sequenceNumber, expected, attributes, expectedAlternate, alternate } = message;
  return readChecked('SetAttributes', (checks) => {
    if (handleId !== undefined) checks.check('handle_id', handleFault(handleId));
    if (!attributes && !alternate)
      checks.check('attributes', 'is missing, and so is alternate; set one of them, empty to remove all attributes');
    const read = (field: string, message: Attributes | undefined) =>
      message && readAttributes(field, message.values, checks);
    return {
      address: readAddress('address', message.address, checks),
      handleId,
      sequenceNumber,
      expected: read('expected', expected),
      attributes: read('attributes', attributes),
      expectedAlternate: read('expected_alternate', expectedAlternate),
      alternate: read('alternate', alternate),
    };
  });
}

function readAttributes(field: string, values: OwnerAttributes, checks: Checks): OwnerAttributes {
  const entries = Object.entries(values);
  if (entries.length > MAX_ATTRIBUTES_COUNT)
    checks.check(field, `has ${entries.length} entries; at most ${MAX_ATTRIBUTES_COUNT} are allowed`);
  for (const [name, value] of entries.slice(0, MAX_ATTRIBUTES_COUNT)) {
    if (name === '') checks.check(field, 'has an entry without a name');
    if (Buffer.byteLength(name) > MAX_ATTRIBUTE_NAME_BYTES)
      checks.check(field, `has a name longer than ${MAX_ATTRIBUTE_NAME_BYTES} bytes`);
    if (Buffer.byteLength(value) > MAX_ATTRIBUTE_VALUE_BYTES)
      checks.check(`${field}["${name}"]`, `is longer than ${MAX_ATTRIBUTE_VALUE_BYTES} bytes`);
  }
  return { ...values };
}
