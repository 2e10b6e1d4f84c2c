import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { comparePrefixes, formatPrefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import {
  allocatedAtMs,
  attachmentOf,
  holderOf,
  sameAttributes,
  type AllocationAttributes,
} from '../../records/attributes.js';
import { attributesAt, heldAddressesIn, type Block, type Handle, type HeldAddress } from '../../records/block.js';
import { addressIn } from '../../records/derived-endpoint.js';
import {
  endpointKey,
  formatEndpointKey,
  makeEndpoint,
  type AnyEndpoint,
  type Endpoint,
  type EndpointKey,
} from '../../records/endpoint.js';
import type { RecordKeys } from '../../records/json/keys.js';
import { writeRecord } from '../../records/json/registry.js';
import type { Pool } from '../../records/pool.js';
import type { HolderDetails } from './object-api.js';

interface DerivedRecordsOptions {
  readonly keys: RecordKeys;
  readonly pools: () => readonly Pool[];
}

export interface BlockChange {
  /** CIDR. */
  readonly cidr: string;
  /** The block from now on; undefined if it is deleted. */
  readonly block: Block | undefined;
  readonly details: ReadonlyMap<string, HolderDetails>;
}

/** The addresses of a handle in a block. */
type HeldIn = (cidr: string, handleId: string) => readonly HeldAddress[];

interface StoredBlock {
  readonly block: Block;
  readonly details: ReadonlyMap<string, HolderDetails>;
}

/**
 * The records of handles and endpoints. The API server has no objects for them: they follow from the blocks and the details of
 * the holders. A value is made when it is read, because nearly all are never read.
 */
export class DerivedRecords {
  readonly #options: DerivedRecordsOptions;
  readonly #blocks = new Map<string, StoredBlock>();
  /** CIDRs of the blocks that have addresses of a handle. */
  readonly #blocksOfHandle = new Index();
  /** Handles of the attachments that share an endpoint's key, by the key's text. */
  readonly #handlesOfEndpoint = new Index();

  constructor(options: DerivedRecordsOptions) {
    this.#options = options;
  }

  /** The keys of all derived records, in no order. */
  *keys(): Generator<string, void, void> {
    const { keys } = this.#options;
    for (const id of this.#blocksOfHandle.names()) yield keys.handle(id);
    for (const text of this.#handlesOfEndpoint.names()) yield keys.endpoints + text;
  }

  /** Whether records of this key are derived, existing or not. */
  covers(key: string): boolean {
    const { keys } = this.#options;
    return keys.isOfHandle(key) || key.startsWith(keys.endpoints);
  }

  has(key: string): boolean {
    const name = this.#options.keys.parse(key);
    if (name?.kind === 'handle') return this.#blocksOfHandle.has(name.id);
    return name?.kind === 'endpoint' && this.#handlesOfEndpoint.has(formatEndpointKey(name.key));
  }

  /** The stored form of a record. */
  value(key: string, heldIn = this.#search): Uint8Array | undefined {
    const name = this.#options.keys.parse(key);
    if (name?.kind === 'handle') {
      const handle = this.#handle(name.id, heldIn);
      return handle && writeRecord({ kind: 'handle', value: handle }, undefined).bytes;
    }
    if (name?.kind !== 'endpoint') return undefined;
    const value = this.#endpoint(formatEndpointKey(name.key), heldIn);
    return value && writeRecord({ kind: 'endpoint', key: name.key, value }, undefined).bytes;
  }

  /** Holders of the addresses of a block, by formatted attachment. */
  detailsOf(cidr: string): ReadonlyMap<string, HolderDetails> {
    return this.#blocks.get(cidr)?.details ?? NO_DETAILS;
  }

  /**
   * Replaces blocks.
   * @returns the derived records that may have changed, by key; undefined for records that no longer exist
   */
  replace(changes: readonly BlockChange[]): ReadonlyMap<string, Uint8Array | undefined> {
    const affected = new Set(changes.flatMap((change) => [...this.#affectedKeys(change)]));
    const known = new Set([...affected].filter((key) => this.has(key)));
    for (const change of changes) this.#replaceBlock(change);
    const changed = new Map<string, Uint8Array | undefined>();
    const heldIn = this.#indexed();
    for (const key of affected) {
      const value = this.value(key, heldIn);
      if (value || known.has(key)) changed.set(key, value);
    }
    return changed;
  }

  /** Adds blocks when the datastore is read for the first time. */
  load(changes: readonly BlockChange[]): void {
    for (const change of changes) this.#replaceBlock(change);
  }

  *#affectedKeys({ cidr, block, details }: BlockChange): Generator<string, void, void> {
    const known = this.#blocks.get(cidr);
    const count = Math.max(known?.block.allocations.length ?? 0, block?.allocations.length ?? 0);
    for (let ordinal = 0; ordinal < count; ordinal++) {
      const before = known && attributesAt(known.block, ordinal);
      const after = block && attributesAt(block, ordinal);
      const hasSameNumber = known?.block.sequenceNumbers[ordinal] === block?.sequenceNumbers[ordinal];
      const isSameHolder = before && after ? sameAttributes(before, after) : before === after;
      const isUnchanged =
        isSameHolder && hasSameNumber && sameDetails(detailsIn(known?.details, before), detailsIn(details, after));
      if (!isUnchanged) for (const attributes of [before, after]) yield* this.#keysOf(attributes);
    }
  }

  *#keysOf(attributes: AllocationAttributes | undefined): Generator<string, void, void> {
    if (attributes?.handleId === undefined) return;
    const { keys } = this.#options;
    yield keys.handle(attributes.handleId);
    const key = endpointKeyOf(attributes);
    if (key) yield keys.endpoint(key);
  }

  #replaceBlock({ cidr, block, details }: BlockChange): void {
    const known = this.#blocks.get(cidr);
    for (const { handleId } of known?.block.attributes ?? [])
      if (handleId !== undefined) this.#blocksOfHandle.remove(handleId, cidr);
    if (block) this.#blocks.set(cidr, { block, details });
    else this.#blocks.delete(cidr);
    for (const { handleId } of block?.attributes ?? [])
      if (handleId !== undefined) this.#blocksOfHandle.add(handleId, cidr);
    const [before, after] = [endpointsIn(known?.block), endpointsIn(block)];
    for (const [text, handles] of after) for (const handleId of handles) this.#handlesOfEndpoint.add(text, handleId);
    for (const [text, handles] of before)
      for (const handleId of handles)
        if (!after.get(text)?.has(handleId) && this.#heldUnder(text, handleId, this.#search).next().done)
          this.#handlesOfEndpoint.remove(text, handleId);
  }

  #handle(id: string, heldIn: HeldIn): Handle | undefined {
    const counts = this.#blocksOfHandle.values(id).map((cidr) => [cidr, heldIn(cidr, id).length] as const);
    return counts.length === 0 ? undefined : { id, blocks: new Map(counts) };
  }

  /** The endpoint of the latest attachment of a key, with the endpoints that it replaced. */
  #endpoint(text: string, heldIn: HeldIn): Endpoint | undefined {
    const ofAttachments = new Map<string, HeldAddress[]>();
    for (const handleId of this.#handlesOfEndpoint.values(text))
      for (const held of this.#heldUnder(text, handleId, heldIn)) {
        const attachment = attachmentOf(held.attributes);
        if (!attachment) continue;
        const name = formatAttachment(attachment);
        ofAttachments.set(name, [...(ofAttachments.get(name) ?? []), held]);
      }
    const [latest, ...replaced] = [...ofAttachments.values()]
      .map((held) => this.#endpointOf(held))
      .toSorted(
        (a, b) => (b.createTimeMs ?? 0) - (a.createTimeMs ?? 0) || compareAttachments(b.attachment, a.attachment),
      );
    if (!latest || replaced.length === 0) return latest;
    return { ...latest, replaced: replaced.map((value): AnyEndpoint => ({ kind: 'endpoint', value })) };
  }

  #endpointOf(unordered: readonly HeldAddress[]): Endpoint {
    const held = unordered.toSorted((a, b) => comparePrefixes(a.block.prefix, b.block.prefix));
    const [first] = held;
    const attachment = first && attachmentOf(first.attributes);
    if (!attachment) throw new Error('an endpoint must have an address');
    const holder = holderOf(first.attributes);
    const { podUid: uid = '', netns } =
      this.detailsOf(formatPrefix(first.block.prefix)).get(formatAttachment(attachment)) ?? {};
    const times = held.flatMap(({ attributes }) => allocatedAtMs(attributes) ?? []);
    const createdAtMs = times.length > 0 ? Math.min(...times) : undefined;
    const pod = holder.pod && { ...holder.pod, uid };
    const pools = this.#options.pools();
    return makeEndpoint(
      { attachment, nodeName: holder.nodeName, pod, netns, createdAtMs },
      held.map((address) => addressIn(pools, address)),
    );
  }

  /** The addresses of a handle whose attachments have an endpoint under a key. */
  *#heldUnder(text: string, handleId: string, heldIn: HeldIn): Generator<HeldAddress, void, void> {
    for (const cidr of this.#blocksOfHandle.values(handleId))
      for (const held of heldIn(cidr, handleId)) if (endpointTextOf(held.attributes) === text) yield held;
  }

  /** For one handle. */
  readonly #search: HeldIn = (cidr, handleId) =>
    heldAddressesIn(this.#block(cidr), (attributes) => attributes.handleId === handleId);

  /** For many handles of the same blocks, which stay as they are meanwhile. */
  #indexed(): HeldIn {
    const byBlock = new Map<string, Map<string | undefined, HeldAddress[]>>();
    return (cidr, handleId) => {
      let byHandle = byBlock.get(cidr);
      if (!byHandle) {
        byBlock.set(cidr, (byHandle = new Map<string | undefined, HeldAddress[]>()));
        for (const held of heldAddressesIn(this.#block(cidr), () => true)) {
          const known = byHandle.get(held.attributes.handleId);
          if (known) known.push(held);
          else byHandle.set(held.attributes.handleId, [held]);
        }
      }
      return byHandle.get(handleId) ?? [];
    };
  }

  #block(cidr: string): Block {
    const stored = this.#blocks.get(cidr);
    if (!stored) throw new Error(`an indexed block must exist: ${cidr}`);
    return stored.block;
  }
}

const NO_DETAILS: ReadonlyMap<string, HolderDetails> = new Map();

/** One or more values by name. A single value, the usual case, takes no list. */
class Index {
  readonly #values = new Map<string, string | readonly string[]>();

  names(): Iterable<string> {
    return this.#values.keys();
  }

  has(name: string): boolean {
    return this.#values.has(name);
  }

  values(name: string): readonly string[] {
    const values = this.#values.get(name);
    if (values === undefined) return [];
    return typeof values === 'string' ? [values] : values;
  }

  add(name: string, value: string): void {
    const values = this.values(name);
    if (values.includes(value)) return;
    this.#values.set(name, values.length === 0 ? value : [...values, value]);
  }

  remove(name: string, value: string): void {
    const left = this.values(name).filter((each) => each !== value);
    const [only] = left;
    if (only === undefined) this.#values.delete(name);
    else this.#values.set(name, left.length === 1 ? only : left);
  }
}

/** The key of an address's endpoint; undefined for addresses of other writers, tunnels and leases, and for cooling addresses. */
function endpointKeyOf(attributes: AllocationAttributes): EndpointKey | undefined {
  if (attributes.releasedAtMs !== undefined) return undefined;
  const attachment = attachmentOf(attributes);
  return attachment && endpointKey({ attachment, ...holderOf(attributes) });
}

function endpointTextOf(attributes: AllocationAttributes): string | undefined {
  const key = endpointKeyOf(attributes);
  return key && formatEndpointKey(key);
}

/** Handles by the endpoints with addresses in a block. */
function endpointsIn(block: Block | undefined): ReadonlyMap<string, ReadonlySet<string>> {
  const endpoints = new Map<string, Set<string>>();
  const used = new Set(block?.allocations);
  for (const [index, attributes] of block?.attributes.entries() ?? []) {
    const text = used.has(index) ? endpointTextOf(attributes) : undefined;
    if (text === undefined || attributes.handleId === undefined) continue;
    endpoints.set(text, (endpoints.get(text) ?? new Set()).add(attributes.handleId));
  }
  return endpoints;
}

function detailsIn(
  details: ReadonlyMap<string, HolderDetails> | undefined,
  attributes: AllocationAttributes | undefined,
): HolderDetails | undefined {
  const attachment = attributes && attachmentOf(attributes);
  return attachment && details?.get(formatAttachment(attachment));
}

function sameDetails(a: HolderDetails | undefined, b: HolderDetails | undefined): boolean {
  return a?.podUid === b?.podUid && a?.netns?.bootId === b?.netns?.bootId && a?.netns?.inode === b?.netns?.inode;
}

function compareAttachments(a: Attachment, b: Attachment): number {
  return compareTexts(formatAttachment(a), formatAttachment(b));
}
