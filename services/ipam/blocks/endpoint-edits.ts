import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { formatPrefix, ordinalOf, type Prefix } from '@podwire/shared/net/prefix';

import { cannotRead, expectBlock } from '../records/absence.js';
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
import { addressOf } from '../records/block.js';
import { heldAddressesOf, sameAttachment } from '../records/derived-endpoint.js';
import { blockOf, unreadableBlockOf } from './lookup.js';

/**
 * The owner whose endpoints a release removes, whatever addresses they name: one attachment, or all attachments of a
 * handle.
 */
export type ReleaseTarget =
  | { readonly type: 'attachment'; readonly attachment: Attachment }
  | { readonly type: 'handle'; readonly handleId: string };

/** An allocation that has ended and that an endpoint may still name. */
export type EndedAllocation = Pick<EndpointAddress, 'address' | 'sequenceNumber'>;

/** The change of the endpoint under a key. */
interface Edit {
  readonly key: EndpointKey;
  readonly before: AnyEndpoint | undefined;
  after: AnyEndpoint | undefined;
  isChanged: boolean;
}

/**
 * Changes endpoints with a release. Difficulties:
 *
 * - Attachments share keys, so one decision may change an endpoint several times. Only data of the released attachment
 *   may be removed.
 * - A removed endpoint restores the latest endpoint that it replaced and that still holds an address. The commit
 *   compares the blocks that show this.
 * - The view may show a block before it shows its endpoint, which would then be left over. So the commit also compares
 *   that the endpoint is missing or belongs to another attachment.
 */
export class EndpointEdits {
  readonly #view: View;
  /** Texts of the released addresses. */
  readonly #released: ReadonlySet<string>;
  readonly #edits = new Map<string, Edit>();
  /** Comparisons with the blocks that were read. */
  readonly #expected = new Map<string, readonly Change[]>();

  /** @param released - addresses that the same decision releases; the endpoints of their attachments lose them */
  constructor(view: View, released: readonly HeldAddress[]) {
    this.#view = view;
    this.#released = new Set(released.map((held) => formatPrefix(addressOf(held))));
    for (const { attributes } of released) {
      const attachment = attachmentOf(attributes);
      if (attachment) this.#release(attachment, endpointKey({ attachment, ...holderOf(attributes) }));
    }
  }

  /** Removes the target's endpoints, including endpoints whose addresses were released earlier or by another tool. */
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

  /** Removes an ended allocation from an endpoint that still names it. */
  removeAllocation(key: EndpointKey, attachment: Attachment, ended: EndedAllocation): this {
    this.#removeAddresses(key, attachment, (named) => !isSameAllocation(named, ended));
    return this;
  }

  changes(): Change[] {
    const edits = [...this.#edits.values()].flatMap((edit) => this.#changeOf(edit));
    return [...edits, ...[...this.#expected.values()].flat()];
  }

  #changeOf({ key, before, after, isChanged }: Edit): Change[] {
    if (!isChanged) {
      if (cannotRead(this.#view, { kind: 'endpoint', key })) return [];
      return [{ type: 'expect', record: { key, ...(before ?? MISSING) } }];
    }
    if (after) return [{ type: 'put', record: { key, ...after } }];
    return before ? [{ type: 'delete', record: { key, ...before } }] : [];
  }

  /** @param key - the endpoint's key according to the attributes */
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

  /** Removes addresses from an attachment's endpoint, and the endpoint with the last one. */
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

  /** The latest of the replaced endpoints that still holds an address, with the ones before it. */
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

  /** Whether another writer's endpoint still holds an address; also true where that is unknown. */
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
    const isHeldByOther = holders.some(
      (held) =>
        held.handleId?.startsWith(`${network}.`) !== true &&
        (held.handleId?.endsWith(`.${containerId}`) === true || isVirtualMachine(held)),
    );
    if (!isHeldByOther) this.#removeForeign(this.#editOf(key), containerId);
  }

  #removeForeign(edit: Edit, containerId: string): void {
    if (edit.after?.kind === 'foreignEndpoint') this.#set(edit, undefined);
    if (edit.after?.kind !== 'endpoint') return;
    const left = replacedEndpoints(edit.after).filter(
      (one) => one.kind === 'endpoint' || one.value.containerId !== containerId,
    );
    this.#set(edit, { kind: 'endpoint', value: withReplacedEndpoints(edit.after.value, left) });
  }

  /**
   * The holders of the addresses after this release; `unknown` if an address is in no block, or there are no addresses.
   */
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

  /** The attributes of an address that stays held after this release. */
  #attributesIn(prefix: Prefix, address: Prefix): AllocationAttributes | undefined {
    const value = this.#view.block(prefix);
    this.#expected.set(formatPrefix(prefix), expectBlock(this.#view, prefix));
    const attributes = value && attributesAt(value, ordinalOf(value.prefix, address));
    const isHeld = attributes?.releasedAtMs === undefined && !this.#released.has(formatPrefix(address));
    return isHeld ? attributes : undefined;
  }
}

/** Only the key of a missing record counts: the commit compares what the view had under it, which is nothing. */
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

/** Maximum number of blocks that a release compares in order to restore a replaced endpoint. */
export function restoreOperations(view: View, attributes: AllocationAttributes): number {
  const attachment = attachmentOf(attributes);
  const stored = attachment && view.endpoint(endpointKey({ attachment, ...holderOf(attributes) }));
  return (stored?.replaced ?? []).reduce((count, { value }) => count + value.addresses.length, 0);
}
