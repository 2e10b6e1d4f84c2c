import {
  AddressReleaseResult as ResultMessage,
  AddressState as StateMessage,
  type AddressHolder as HolderMessage,
  type Attributes,
  type GetAddressResponse,
  type ReleaseAddressesRequest,
  type ReleasedAddress,
  type SetAttributesRequest,
} from '@podwire/proto/podwire/ipam/v1/address';
import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { checked, type Checks } from '@podwire/shared/rpc/checks';

import { handleFault } from '../allocator/handle-name.js';
import type { AddressHolder, AddressRelease, AddressReleaseResult } from '../allocator/release-addresses.js';
import type { AttributesChange } from '../allocator/set-attributes.js';
import type { OwnerAttributes } from '../records/attributes.js';
import { sameNetns } from '../records/endpoint.js';
import { readNetns } from '../rpc/wire-netns.js';
import type { AddressReport } from './addresses.js';

const MAX_RELEASES_COUNT = 1000;
const MAX_ATTRIBUTES_COUNT = 64;
const MAX_ATTRIBUTE_NAME_BYTES = 256;
const MAX_ATTRIBUTE_VALUE_BYTES = 1024;

/** Stands in for what was found wrong: the request is refused. */
const NO_ADDRESS: Address = { family: 4, value: 0n };

export function readAddress(field: string, text: string, checks: Checks): Address {
  const address = parseAddress(text);
  checks.check(field, address ? undefined : 'is no IPv4 or IPv6 address without prefix length');
  return address ?? NO_ADDRESS;
}

export function readReleaseAddressesRequest({ releases: messages }: ReleaseAddressesRequest): AddressRelease[] {
  return checked('ReleaseAddresses', (checks) => {
    if (messages.length > MAX_RELEASES_COUNT)
      checks.check('releases', `has ${messages.length} entries; at most ${MAX_RELEASES_COUNT} are allowed`);
    const releases = new Map<string, AddressRelease>();
    messages.slice(0, MAX_RELEASES_COUNT).forEach(({ address: text, handleId, sequenceNumber, netns: told }, index) => {
      const field = `releases[${index}]`;
      const address = readAddress(`${field}.address`, text, checks);
      if (handleId !== undefined) checks.check(`${field}.handle_id`, handleFault(handleId));
      const before = releases.get(formatAddress(address));
      const netns = told && readNetns(`${field}.netns`, told, checks);
      const differs =
        before &&
        (before.handleId !== handleId || before.sequenceNumber !== sequenceNumber || !sameNetns(before.netns, netns));
      checks.check(field, differs ? 'names an address for the second time, on other conditions' : undefined);
      releases.set(formatAddress(address), { address, handleId, sequenceNumber, netns });
    });
    return [...releases.values()];
  });
}

const RESULTS: Record<AddressReleaseResult['state'], ResultMessage> = {
  released: ResultMessage.ADDRESS_RELEASE_RESULT_RELEASED,
  notAllocated: ResultMessage.ADDRESS_RELEASE_RESULT_NOT_ALLOCATED,
  mismatch: ResultMessage.ADDRESS_RELEASE_RESULT_MISMATCH,
  unreadable: ResultMessage.ADDRESS_RELEASE_RESULT_UNREADABLE,
};

export function releasedAddressMessage({ address }: AddressRelease, result: AddressReleaseResult): ReleasedAddress {
  return {
    address: formatAddress(address),
    result: RESULTS[result.state],
    holder: 'holder' in result ? holderMessage(result.holder) : undefined,
  };
}

export function holderMessage({ handleId, owner, alternateOwner, sequenceNumber }: AddressHolder): HolderMessage {
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
  cooling: StateMessage.ADDRESS_STATE_COOLING,
  reserved: StateMessage.ADDRESS_STATE_RESERVED,
  unmanaged: StateMessage.ADDRESS_STATE_UNMANAGED,
};

export function addressMessage({ state, block, poolName }: AddressReport): GetAddressResponse {
  const { kind } = state;
  return {
    state: STATES[kind],
    blockCidr: block ? formatPrefix(block.prefix) : '',
    poolName: poolName ?? '',
    holder: kind === 'allocated' ? holderMessage(state.holder) : undefined,
    allocateTime: kind === 'allocated' ? dateOf(state.sinceMs) : undefined,
    releaseTime: kind === 'cooling' ? dateOf(state.releasedAtMs) : undefined,
    coolUntilTime: kind === 'cooling' ? dateOf(state.untilMs) : undefined,
    reservationNames: kind === 'reserved' ? [...state.reservationNames] : [],
  };
}

export function dateOf(timeMs: number | undefined): Date | undefined {
  return timeMs === undefined ? undefined : new Date(timeMs);
}

export function readSetAttributesRequest(message: SetAttributesRequest): AttributesChange {
  const { handleId, sequenceNumber, expected, attributes, expectedAlternate, alternate } = message;
  return checked('SetAttributes', (checks) => {
    if (handleId !== undefined) checks.check('handle_id', handleFault(handleId));
    if (!attributes && !alternate)
      checks.check('attributes', 'is missing, and so is alternate; an empty one takes all attributes away');
    const read = (field: string, given: Attributes | undefined) => given && readAttributes(field, given.values, checks);
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
