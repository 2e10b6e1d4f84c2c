import { familyBits } from '@podwire/shared/net/address';

import { cutHandle } from '../../allocator/handle-name.js';
import type { AllocationAttributes, Block, BlockOwner } from '../../allocator/records.js';
import { formatBlock, formatHead, formatMiddle, formOf, keepForm } from '../../store/record/block-text.js';
import type { Previous } from '../../store/record/previous.js';
import { readRewritten, type BlockForms } from './block-reader.js';
import {
  field,
  isAbsent,
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
  type Field,
} from './fields.js';
import { parseJson, type Json, type JsonObject } from './json.js';

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
  const attributes = readList(field(raw, 'attributes')).map(decodeAttributes);
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

function decodeAttributes(source: Field): AllocationAttributes {
  const { path } = source;
  const raw = readObject(source);
  const releasedAt = field(raw, 'releasedAt', path);
  const handleId = readOptionalText(field(raw, 'handle_id', path));
  const alternateOwner = readTextMap(field(raw, 'alternateOwnerAttrs', path));
  const attributes = {
    handleId: handleId === undefined ? undefined : cutHandle(handleId),
    owner: readTextMap(field(raw, 'secondary', path)),
    ...(Object.keys(alternateOwner).length > 0 && { alternateOwner }),
    releasedAtMs: isAbsent(releasedAt) ? undefined : readTime(releasedAt),
  };
  keepForm(attributes, raw);
  return attributes;
}

const ORDINAL = /^(0|[1-9]\d{0,3})$/;

function decodeSequenceNumbers(raw: JsonObject, size: number): (bigint | null)[] {
  const source = field(raw, 'sequenceNumberForAllocation');
  const object = readObject(source);
  const numbers: (bigint | null)[] = Array.from({ length: size }, () => null);
  for (const text of Object.keys(object)) {
    const entry = field(object, text, source.path);
    if (!ORDINAL.test(text) || Number(text) >= size)
      throw new Unreadable(`${entry.path} names no address of the block`);
    numbers[Number(text)] = readUint64(entry);
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

/**
 * Reads a text that differs from the one before in what allocations and releases change.
 * @returns undefined for all others, which go the way over their JSON
 */
export function readRewrittenBlock(text: string, previous: Previous<Block>): Block | undefined {
  try {
    const block = readRewritten(text, previous, FORMS);
    if (!block) return undefined;
    checkTakenApart(block);
    return formatBlock(block, previous) === text ? block : undefined;
  } catch {
    // What is wrong with it is told by who reads its JSON.
    return undefined;
  }
}

const FORMS: BlockForms = {
  head: formatHead,
  middle: formatMiddle,
  formOf,
  readAttributes: (text) => decodeAttributes({ path: '', value: parseJson(text) }),
};

/** @throws Unreadable where reading its JSON would */
function checkTakenApart(block: Block): void {
  const size = block.allocations.length;
  const source = (value: Json): Field => ({ path: '', value });
  for (const index of block.allocations) if (index !== null) readCount(source(index), block.attributes.length - 1);
  for (const ordinal of block.unallocated) readCount(source(ordinal), size - 1);
  if (size !== 2 ** (familyBits(block.prefix.family) - block.prefix.length)) throw new Unreadable('allocations');
  readUint64(source(block.sequenceNumber));
  for (const number of block.sequenceNumbers) if (number !== null) readUint64(source(number));
  checkPartition(block);
}
