import { formatPrefix } from '@podwire/shared/net/prefix';

import { blockSize } from '../records/block.js';
import type { Block, Ordinal } from './records.js';

/**
 * All that is wrong with a block, by the rules that `calicoctl ipam check` holds it to (Calico's calicoctl/commands/ipam/check.go)
 * and by those of its sequence numbers. Empty when nothing is.
 * @param nowMs - no address can have been released later, in epoch milliseconds
 */
export function validateBlock(block: Block, nowMs: number): string[] {
  const name = `block ${formatPrefix(block.prefix)}`;
  return [...allocationFaults(block), ...attributeFaults(block, nowMs), ...sequenceFaults(block)].map(
    (fault) => `${name}: ${fault}`,
  );
}

function allocationFaults({ prefix, allocations, unallocated }: Block): string[] {
  const size = blockSize(prefix);
  const faults: string[] = [];
  if (allocations.length !== size) faults.push(`${allocations.length} allocations for ${size} addresses`);
  const seen = new Set<Ordinal>();
  for (const ordinal of unallocated) {
    if (!Number.isInteger(ordinal) || ordinal < 0 || ordinal >= size)
      faults.push(`free ordinal ${ordinal} is out of range`);
    if (seen.has(ordinal)) faults.push(`ordinal ${ordinal} is free twice`);
    if ((allocations[ordinal] ?? null) !== null) faults.push(`ordinal ${ordinal} is both free and allocated`);
    seen.add(ordinal);
  }
  const allocated = allocations.filter((index) => index !== null).length;
  if (allocated + unallocated.length !== size)
    faults.push(`${allocated} allocated and ${unallocated.length} free do not make ${size}`);
  return faults;
}

function attributeFaults({ allocations, attributes }: Block, nowMs: number): string[] {
  const used = new Set(allocations);
  const dangling = allocations.flatMap((index, ordinal) =>
    index === null || attributes[index] ? [] : [`ordinal ${ordinal} has attributes ${index}, which do not exist`],
  );
  const faults = attributes.flatMap(({ releasedAtMs }, index) => [
    ...(used.has(index) ? [] : [`attributes ${index} belong to no address`]),
    ...(releasedAtMs !== undefined && releasedAtMs > nowMs ? [`attributes ${index} were released in the future`] : []),
  ]);
  return [...dangling, ...faults];
}

function sequenceFaults({ allocations, sequenceNumber, sequenceNumbers }: Block): string[] {
  return sequenceNumbers.flatMap((number, ordinal) => {
    if (number === null) return [];
    const isFree = (allocations[ordinal] ?? null) === null;
    return [
      ...(isFree ? [`ordinal ${ordinal} is free but has a sequence number`] : []),
      ...(number < sequenceNumber ? [] : [`ordinal ${ordinal} has a sequence number that the block has not reached`]),
    ];
  });
}
