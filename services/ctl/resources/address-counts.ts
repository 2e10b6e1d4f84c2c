import type { Column } from '../output/report.js';
import { count, percent } from '../output/words.js';

/** Addresses as the contract counts them; numbers of a pool are texts, as IPv6 counts exceed 64 bits. */
interface AddressCounts {
  readonly capacity: bigint | number | string;
  /** Addresses in use or cooling down. */
  readonly allocated: bigint | number;
  readonly cooling: bigint | number;
  readonly reserved: bigint | number | string;
  readonly available: bigint | number | string;
  /** Available addresses that are leased to nodes. */
  readonly leased: bigint | number;
}

/** Headings of the cells of {@link countCells}. In use, cooling, reserved and available ones add up to all addresses. */
const COUNT_HEADS = ['IN USE', 'USED', 'COOLING', 'RESERVED', 'AVAILABLE', 'LEASED'] as const;
export const COUNT_COLUMNS: readonly Column[] = COUNT_HEADS.map((right) => ({ right }));

export function countCells({ capacity, allocated, cooling, reserved, available, leased }: AddressCounts): string[] {
  const inUse = inUseOf({ allocated, cooling });
  return [count(inUse), percent(inUse, capacity), count(cooling), count(reserved), count(available), count(leased)];
}

/** Columns of a resource with the counts of an object. */
export function countColumns<Item>(countsOf: (item: Item) => AddressCounts) {
  return COUNT_HEADS.map((head, place) => ({
    head,
    isNumber: true,
    cell: (item: Item) => countCells(countsOf(item))[place] ?? '',
  }));
}

/** Addresses that have a holder. */
export function inUseOf({ allocated, cooling }: Pick<AddressCounts, 'allocated' | 'cooling'>): bigint {
  return BigInt(allocated) - BigInt(cooling);
}
