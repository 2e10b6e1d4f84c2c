import type { Transaction } from '@podwire/ipam/engine/store';

/** Bytes that an allocation writes: a block of 64 addresses that is half full, a handle and an endpoint. */
const BLOCK_BYTES = 9_000;
const HANDLE_BYTES = 60;
const ENDPOINT_BYTES = 900;

/** Puts with as many keys and bytes as an allocation's. @param number - unique in the block */
export function barePuts(block: string, number: number): Transaction['puts'] {
  const value = (bytes: number) => Buffer.alloc(bytes, number % 256);
  return [
    { key: `/bench/block/${block}`, value: value(BLOCK_BYTES) },
    { key: `/bench/handle/${block}-${number}`, value: value(HANDLE_BYTES) },
    { key: `/bench/endpoint/${block}-${number}`, value: value(ENDPOINT_BYTES) },
  ];
}

/** A transaction that compares nothing, and writes as much as an allocation. */
export function bareTransaction(number: number): Transaction {
  return { comparisons: [], puts: barePuts('bare', number), deletes: [] };
}
