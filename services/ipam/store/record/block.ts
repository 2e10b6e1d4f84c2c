import { familyBits } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';

import type { AllocationAttributes, Block, BlockOwner, Ordinal } from '../../allocator/records.js';
import {
  field,
  isAbsent,
  keepTime,
  readCount,
  readList,
  readObject,
  readOptionalText,
  readPrefix,
  readTextMap,
  readTime,
  readUint64,
  unreadable,
  Unreadable,
} from './fields.js';
import type { Json, JsonObject } from './json.js';
import type { Previous } from './previous.js';

/** Calico's AllocationBlock (libcalico-go/lib/backend/model/block.go). */

/** The largest block that Calico allows has 4096 addresses. */
const MAX_BLOCK_BITS = 12;

export function decodeBlock(raw: JsonObject): Block {
  const prefix = readPrefix(field(raw, 'cidr'));
  const hostBits = familyBits(prefix.family) - prefix.length;
  if (hostBits > MAX_BLOCK_BITS) throw unreadable(field(raw, 'cidr'), 'a block of at most 4096 addresses');
  const size = 2 ** hostBits;
  const claimTime = field(raw, 'affinity_claim_time');
  const sequenceNumber = field(raw, 'sequenceNumber');
  const attributes = readList(field(raw, 'attributes')).map((source) =>
    decodeAttributes(readObject(source), source.path),
  );
  const block: Block = {
    prefix,
    owner: decodeOwner(raw),
    claimTimeMs: isAbsent(claimTime) ? undefined : readTime(claimTime),
    allocations: decodeAllocations(raw, size, attributes.length),
    unallocated: readList(field(raw, 'unallocated')).map((ordinal) => readCount(ordinal, size - 1)),
    attributes,
    sequenceNumber: isAbsent(sequenceNumber) ? 0n : readUint64(sequenceNumber),
    sequenceNumbers: decodeSequenceNumbers(raw, size),
  };
  checkPartition(block);
  return block;
}

function decodeOwner(raw: JsonObject): BlockOwner | undefined {
  const text = readOptionalText(field(raw, 'affinity'));
  if (text === undefined) {
    const name = readOptionalText(field(raw, 'hostAffinity'));
    return name ? { kind: 'host', name } : undefined;
  }
  const colon = text.indexOf(':');
  const kind = text.slice(0, colon);
  const name = text.slice(colon + 1);
  if ((kind !== 'host' && kind !== 'virtual') || name === '')
    throw unreadable(field(raw, 'affinity'), 'host:<node> or virtual:<owner>');
  return { kind, name };
}

function decodeAllocations(raw: JsonObject, size: number, attributeCount: number): (number | null)[] {
  const source = field(raw, 'allocations');
  const list = readList(source);
  if (list.length !== size)
    throw new Unreadable(`allocations has ${list.length} entries; the block has ${size} addresses`);
  return list.map((index) => (index.value === null ? null : readCount(index, attributeCount - 1)));
}

function decodeAttributes(raw: JsonObject, path: string): AllocationAttributes {
  const releasedAt = field(raw, 'releasedAt', path);
  return {
    handleId: readOptionalText(field(raw, 'handle_id', path)),
    owner: readTextMap(field(raw, 'secondary', path)),
    releasedAtMs: isAbsent(releasedAt) ? undefined : readTime(releasedAt),
  };
}

const ORDINAL = /^(0|[1-9]\d{0,3})$/;

function decodeSequenceNumbers(raw: JsonObject, size: number): Map<Ordinal, bigint> {
  const source = field(raw, 'sequenceNumberForAllocation');
  const object = readObject(source);
  const numbers = new Map<Ordinal, bigint>();
  for (const text of Object.keys(object)) {
    const entry = field(object, text, source.path);
    if (!ORDINAL.test(text) || Number(text) >= size)
      throw new Unreadable(`${entry.path} names no address of the block`);
    numbers.set(Number(text), readUint64(entry));
  }
  return numbers;
}

/** Every ordinal is either allocated or listed once as free: what `calicoctl ipam check` asks of a block. */
function checkPartition({ allocations, unallocated }: Block): void {
  const free = new Set(unallocated);
  if (free.size !== unallocated.length) throw new Unreadable('unallocated lists an address twice');
  allocations.forEach((index, ordinal) => {
    if (index !== null && free.has(ordinal)) throw new Unreadable(`address ${ordinal} is both allocated and free`);
    if (index === null && !free.has(ordinal)) throw new Unreadable(`address ${ordinal} is neither allocated nor free`);
  });
}

/** Fields that are left out when they do not hold: the claim's time, and the owner's name of old releases. */
const OPTIONAL = new Set(['affinity_claim_time', 'hostAffinity']);

export function encodeBlock(block: Block, previous: Previous<Block> | undefined): JsonObject {
  const raw = previous?.raw ?? {};
  const { owner, claimTimeMs } = block;
  return {
    deleted: false,
    ...Object.fromEntries(Object.entries(raw).filter(([name]) => !OPTIONAL.has(name))),
    cidr: formatPrefix(block.prefix),
    affinity: owner ? `${owner.kind}:${owner.name}` : null,
    ...(claimTimeMs === undefined ? {} : { affinity_claim_time: keepTime(claimTimeMs, raw.affinity_claim_time) }),
    allocations: block.allocations,
    unallocated: block.unallocated,
    attributes: encodeAttributes(block.attributes, previous),
    sequenceNumber: block.sequenceNumber,
    sequenceNumberForAllocation: Object.fromEntries(block.sequenceNumbers),
  };
}

function encodeAttributes(attributes: readonly AllocationAttributes[], previous: Previous<Block> | undefined): Json[] {
  const stored = new Map<AllocationAttributes, JsonObject>();
  if (previous) {
    const raws = readList(field(previous.raw, 'attributes'));
    previous.value.attributes.forEach((value, index) => {
      const raw = raws[index];
      if (raw) stored.set(value, readObject(raw));
    });
  }
  return attributes.map((value) => stored.get(value) ?? encodeEntry(value, findEqual(value, stored)));
}

/** The stored form of an entry that was made anew with the same content: its unknown fields stay with it. */
function findEqual(
  wanted: AllocationAttributes,
  stored: ReadonlyMap<AllocationAttributes, JsonObject>,
): JsonObject | undefined {
  for (const [value, raw] of stored) if (sameAttributes(value, wanted)) return raw;
  return undefined;
}

function sameAttributes(a: AllocationAttributes, b: AllocationAttributes): boolean {
  if (a.handleId !== b.handleId || a.releasedAtMs !== b.releasedAtMs) return false;
  const names = Object.keys(a.owner);
  return names.length === Object.keys(b.owner).length && names.every((name) => a.owner[name] === b.owner[name]);
}

function encodeEntry({ handleId, owner, releasedAtMs }: AllocationAttributes, raw: JsonObject | undefined): JsonObject {
  if (raw) return raw;
  return {
    ...(handleId === undefined ? {} : { handle_id: handleId }),
    ...(Object.keys(owner).length === 0 ? {} : { secondary: owner }),
    ...(releasedAtMs === undefined ? {} : { releasedAt: keepTime(releasedAtMs, undefined) }),
  };
}
