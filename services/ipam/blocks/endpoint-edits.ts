import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { formatPrefix, ordinalOf, type Prefix } from '@podwire/shared/net/prefix';

import { cannotRead, expectNoBlock } from '../records/absence.js';
import {
  attachmentOf,
  belongsTo,
  containerIdsOf,
  holderOf,
  isVirtualMachine,
  type AllocationAttributes,
} from '../records/attributes.js';
import { attributesAt, type HeldAddress } from '../records/block.js';
import {
  endpointKey,
  formatEndpointKey,
  makeEndpoint,
  type AnyEndpoint,
  type Endpoint,
  type EndpointAddress,
  type EndpointKey,
  type ForeignEndpoint,
} from '../records/endpoint.js';
import type { Change, View } from '../records/view.js';
import { endpointAt, replacedEndpoints, withReplacedEndpoints } from './endpoint-key.js';
import { addressOf, heldAddressesOf, sameAttachment } from './holding.js';
import { blockOf, unreadableBlockOf } from './lookup.js';

/**
 * Whose endpoints end, independent of the addresses they name: those of one attachment, or of all attachments of a
 * handle.
 */
export type ReleaseTarget =
  | { readonly type: 'attachment'; readonly attachment: Attachment }
  | { readonly type: 'handle'; readonly handleId: string };

/** An allocation that has ended, as an endpoint may still name it. */
export type EndedAllocation = Pick<EndpointAddress, 'address' | 'sequenceNumber'>;

/** What is to become of the endpoint under a key. */
interface Edit {
  readonly key: EndpointKey;
  readonly before: AnyEndpoint | undefined;
  after: AnyEndpoint | undefined;
  isChanged: boolean;
}

/**
 * What a release does to endpoints. What makes it hard:
 *
 * - Attachments share keys, so that one decision may change one endpoint several times. Nothing is taken from an endpoint but what is of
 *   the attachment that is released.
 * - An endpoint that goes puts back the latest of those that it replaced that still holds what it names. What the blocks say of that is
 *   compared at the commit.
 * - An endpoint that a view does not show may be on its way, while its block is shown already: then it would be left behind. So that
 *   it is missing, or another's, is compared too.
 */
export class EndpointEdits {
  readonly #view: View;
  /** Texts of the addresses that go back. */
  readonly #released: ReadonlySet<string>;
  readonly #edits = new Map<string, Edit>();
  /** Blocks that were looked at, and have to be as they were seen. */
  readonly #expected = new Map<string, Change>();

  /** @param released - addresses that the same decision releases; the endpoints of their attachments lose them */
  constructor(view: View, released: readonly HeldAddress[]) {
    this.#view = view;
    this.#released = new Set(released.map((held) => formatPrefix(addressOf(held))));
    for (const { attributes } of released) {
      const attachment = attachmentOf(attributes);
      if (attachment) this.#release(attachment, endpointKey({ attachment, ...holderOf(attributes) }));
    }
  }

  /** Removes the endpoints of what ends, also those that name addresses which were released before, or by another tool. */
  removeAll(target: ReleaseTarget): this {
    const containerIds =
      target.type === 'attachment' ? [target.attachment.containerId] : containerIdsOf(target.handleId);
    for (const containerId of containerIds)
      for (const record of this.#view.endpointsOfContainer(containerId)) {
        const { key } = record;
        for (const one of [record, ...replacedEndpoints(record)]) {
          if (one.kind === 'foreignEndpoint') this.#removeForeignOf(key, one.value, target);
          else if (isTarget(one.value.attachment, target))
            this.#removeAddresses(key, one.value.attachment, () => false);
        }
      }
    return this;
  }

  /** Takes an allocation that has ended from an endpoint that names it. */
  removeAllocation(key: EndpointKey, attachment: Attachment, ended: EndedAllocation): this {
    this.#removeAddresses(key, attachment, (named) => !isSameAllocation(named, ended));
    return this;
  }

  changes(): Change[] {
    const edits = [...this.#edits.values()].flatMap((edit) => this.#changeOf(edit));
    return [...edits, ...this.#expected.values()];
  }

  #changeOf({ key, before, after, isChanged }: Edit): Change[] {
    if (!isChanged) {
      if (cannotRead(this.#view, { kind: 'endpoint', key })) return [];
      return [{ type: 'expect', record: { key, ...(before ?? MISSING) } }];
    }
    if (after) return [{ type: 'put', record: { key, ...after } }];
    return before ? [{ type: 'delete', record: { key, ...before } }] : [];
  }

  /** @param key - where the endpoint is by what the attributes say */
  #release(attachment: Attachment, key: EndpointKey): void {
    const left = new Set(heldAddressesOf(this.#view, attachment).map((held) => formatPrefix(addressOf(held))));
    const isLeft = ({ address }: EndpointAddress): boolean => {
      const text = formatPrefix(address);
      return left.has(text) && !this.#released.has(text);
    };
    this.#removeAddresses(key, attachment, isLeft);
  }

  #editOf(key: EndpointKey): Edit {
    const text = formatEndpointKey(key);
    const known = this.#edits.get(text);
    if (known) return known;
    const before = endpointAt(this.#view, key);
    const edit = { key, before, after: before, isChanged: false };
    this.#edits.set(text, edit);
    return edit;
  }

  /** Takes addresses from what is recorded of an attachment; with the last, that goes. */
  #removeAddresses(key: EndpointKey, attachment: Attachment, isLeft: (address: EndpointAddress) => boolean): void {
    const edit = this.#editOf(key);
    if (edit.after?.kind !== 'endpoint') return;
    const { value } = edit.after;
    const isSame = (one: AnyEndpoint): boolean =>
      one.kind === 'endpoint' && sameAttachment(one.value.attachment, attachment);
    const reduce = (one: Endpoint): Endpoint => ({ ...one, addresses: one.addresses.filter(isLeft) });
    const replaced = value.replaced ?? [];
    if (isSame(edit.after)) {
      const reduced = reduce(value);
      this.#set(
        edit,
        reduced.addresses.length > 0 ? { kind: 'endpoint', value: reduced } : this.#restoreReplaced(key, replaced),
      );
    } else if (replaced.some(isSame)) {
      const reduced = replaced.map((one) =>
        one.kind === 'endpoint' && isSame(one) ? { ...one, value: reduce(one.value) } : one,
      );
      const left = reduced.filter((one) => !isSame(one) || one.value.addresses.length > 0);
      this.#set(edit, { kind: 'endpoint', value: withReplacedEndpoints(value, left) });
    }
  }

  #set(edit: Edit, after: AnyEndpoint | undefined): void {
    edit.after = after;
    edit.isChanged = true;
  }

  /** The latest of the replaced endpoints that still holds what it names, with those before it. */
  #restoreReplaced(key: EndpointKey, replaced: readonly AnyEndpoint[]): AnyEndpoint | undefined {
    for (const [index, one] of replaced.entries()) {
      if (one.kind === 'foreignEndpoint') {
        if (this.#isForeignInUse(key, one.value)) return one;
        continue;
      }
      const { attachment } = one.value;
      const addresses = one.value.addresses.filter(({ address, block }) => this.#isHeld(attachment, address, block));
      if (addresses.length > 0)
        return {
          kind: 'endpoint',
          value: withReplacedEndpoints({ ...one.value, addresses }, replaced.slice(index + 1)),
        };
    }
    return undefined;
  }

  #isHeld(attachment: Attachment, address: Prefix, prefix: Prefix): boolean {
    if (cannotRead(this.#view, { kind: 'block', prefix })) return true;
    const attributes = this.#attributesIn(prefix, address);
    return attributes !== undefined && belongsTo(attachment)(attributes);
  }

  /** Whether an address of another writer's endpoint is still its container's; also where that cannot be known. */
  #isForeignInUse({ namespace }: EndpointKey, { addresses, containerId, podName }: ForeignEndpoint): boolean {
    const holders = this.#holdersOf(addresses);
    if (holders === 'unknown') return true;
    return holders.some(
      ({ handleId: handle = '', owner }) =>
        handle.endsWith(`.${containerId}`) || (owner.pod === podName && owner.namespace === namespace),
    );
  }

  /** Another writer's endpoint does not name its network, so the handle that holds its addresses is used. */
  #removeForeignOf(key: EndpointKey, endpoint: ForeignEndpoint, target: ReleaseTarget): void {
    const { addresses, containerId, interfaceName } = endpoint;
    const isOfInterface = target.type === 'handle' || target.attachment.interfaceName === interfaceName;
    const isReleased = addresses.some((address) => this.#released.has(formatPrefix(address)));
    if (!isOfInterface && !isReleased) return;
    const holders = this.#holdersOf(addresses);
    if (holders === 'unknown') return;
    const network = networkOf(target, containerId);
    const isOthers = holders.some(
      (held) =>
        held.handleId?.startsWith(`${network}.`) !== true &&
        (held.handleId?.endsWith(`.${containerId}`) === true || isVirtualMachine(held)),
    );
    if (!isOthers) this.#removeForeign(this.#editOf(key), containerId);
  }

  #removeForeign(edit: Edit, containerId: string): void {
    if (edit.after?.kind === 'foreignEndpoint') this.#set(edit, undefined);
    if (edit.after?.kind !== 'endpoint') return;
    const left = replacedEndpoints(edit.after).filter(
      (one) => one.kind === 'endpoint' || one.value.containerId !== containerId,
    );
    this.#set(edit, { kind: 'endpoint', value: withReplacedEndpoints(edit.after.value, left) });
  }

  /** The holders of the addresses after this release; `unknown` where one is in no block, or there are none. */
  #holdersOf(addresses: readonly Prefix[]): AllocationAttributes[] | 'unknown' {
    const holders: AllocationAttributes[] = [];
    for (const address of addresses) {
      const block = unreadableBlockOf(this.#view, address) ? undefined : blockOf(this.#view, address);
      if (!block) return 'unknown';
      const attributes = this.#attributesIn(block.prefix, address);
      if (attributes) holders.push(attributes);
    }
    return addresses.length === 0 ? 'unknown' : holders;
  }

  /** The attributes of an address that is held in a block and not released by this change. */
  #attributesIn(prefix: Prefix, address: Prefix): AllocationAttributes | undefined {
    const value = this.#view.block(prefix);
    const expected: Change = value ? { type: 'expect', record: { kind: 'block', value } } : expectNoBlock(prefix);
    this.#expected.set(formatPrefix(prefix), expected);
    const attributes = value && attributesAt(value, ordinalOf(value.prefix, address));
    const isHeld = attributes?.releasedAtMs === undefined && !this.#released.has(formatPrefix(address));
    return isHeld ? attributes : undefined;
  }
}

/** Of a record that is missing only the key counts: what is compared is what was seen under it, which is nothing. */
const MISSING: AnyEndpoint = {
  kind: 'endpoint',
  value: makeEndpoint(
    {
      attachment: { network: '', containerId: '', interfaceName: '' },
      nodeName: '',
      pod: undefined,
      netns: undefined,
      createdAtMs: undefined,
    },
    [],
  ),
};

function isTarget(attachment: Attachment, target: ReleaseTarget): boolean {
  return target.type === 'attachment'
    ? sameAttachment(attachment, target.attachment)
    : handleId(attachment) === target.handleId;
}

function networkOf(target: ReleaseTarget, containerId: string): string {
  return target.type === 'attachment'
    ? target.attachment.network
    : target.handleId.slice(0, target.handleId.length - containerId.length - 1);
}

export function isSameAllocation(named: EndedAllocation, { address, sequenceNumber }: EndedAllocation): boolean {
  return (
    named.sequenceNumber === sequenceNumber &&
    named.address.value === address.value &&
    named.address.family === address.family
  );
}

/** How many blocks a release of an attachment may have to compare for putting an endpoint back. */
export function restoreOperations(view: View, attributes: AllocationAttributes): number {
  const attachment = attachmentOf(attributes);
  const stored = attachment && view.endpoint(endpointKey({ attachment, ...holderOf(attributes) }));
  return (stored?.replaced ?? []).reduce((count, { value }) => count + value.addresses.length, 0);
}
