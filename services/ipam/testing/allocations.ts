import { parseAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, ordinalOf } from '@podwire/shared/net/prefix';

import type { AllocationAttributes, Block } from '../allocator/records.js';
import { handleChanges } from '../blocks/holding.js';
import { blockOf } from '../blocks/lookup.js';
import { attributesAt, releaseAddresses, takeOrdinals } from '../records/block.js';
import type { MapView } from '../records/testing/map-view.js';
import type { RecordValue } from '../records/view.js';

/** What tests of releases share. */

export function address(text: string): Address {
  const parsed = parseAddress(text);
  if (!parsed) throw new Error(`${text} is no address`);
  return parsed;
}

/** Attributes as Calico's own plugin writes them. */
export function calico(
  handleId: string | undefined,
  owner: Readonly<Record<string, string>> = {},
): AllocationAttributes {
  return { handleId, owner, releasedAtMs: undefined };
}

interface Give {
  readonly ordinals: readonly number[];
  readonly attributes: AllocationAttributes;
}

/** The block with addresses given. */
export function given(block: Block, ...gives: readonly Give[]): Block {
  return gives.reduce((current, { ordinals, attributes }) => takeOrdinals(current, ordinals, attributes), block);
}

export function handleRecord(id: string, ...counts: readonly (readonly [string, number])[]): RecordValue {
  return { kind: 'handle', value: { id, blocks: new Map(counts) } };
}

/** Releases an address as another tool does: its block and its handle lose it, and endpoints are left as they are. */
export function releaseBehind(view: MapView, text: string): void {
  const block = blockOf(view, address(text));
  const ordinal = block ? ordinalOf(block.prefix, address(text)) : 0;
  const id = block && attributesAt(block, ordinal)?.handleId;
  if (!block || id === undefined) throw new Error(`nothing holds ${text}`);
  const value = releaseAddresses(block, [ordinal]);
  view.apply({
    changes: [{ type: 'put', record: { kind: 'block', value } }, ...handleChanges(view, id, [value])],
    outcome: undefined,
  });
}

/** The handles that blocks hold addresses for, counted in the obvious way. */
export function countedHandles(view: MapView): Record<string, Record<string, number>> {
  const counts: Record<string, Record<string, number>> = {};
  for (const { prefix, allocations, attributes } of view.blocks()) {
    for (const index of allocations) {
      const id = index === null ? undefined : attributes[index]?.handleId;
      if (id === undefined) continue;
      const blocks = (counts[id] ??= {});
      const cidr = formatPrefix(prefix);
      blocks[cidr] = (blocks[cidr] ?? 0) + 1;
    }
  }
  return counts;
}

export function storedHandles(view: MapView): Record<string, Record<string, number>> {
  return Object.fromEntries(view.all('handle').map(({ value }) => [value.id, Object.fromEntries(value.blocks)]));
}
