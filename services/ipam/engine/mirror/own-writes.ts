import type { DecodedRecord } from '../../records/json/registry.js';

/** A record that this process writes, with its decoded form. */
export interface OwnWrite {
  readonly key: string;
  /** The decoded value. Undefined when the record is deleted. */
  readonly decoded: DecodedRecord | undefined;
  /** The stored bytes. Undefined when the record is deleted. */
  readonly value: Uint8Array | undefined;
}

/** Maximum remembered commits while the watch is stalled. */
const MAX_COMMITS_COUNT = 256;

/**
 * Writes of this process, until the watch has reported them. This saves decoding them again; decoding a block is most of
 * the cost of a commit. The watch may report a commit before its answer arrives, and after the next commit of the same
 * records.
 */
export class OwnWrites {
  /** Writes of transactions in flight, by key. */
  readonly #sent = new Map<string, OwnWrite>();
  /** Records by revision, then by key. */
  readonly #committed = new Map<number, ReadonlyMap<string, DecodedRecord>>();

  /** A transaction is about to be sent. */
  markSent(writes: readonly OwnWrite[]): void {
    for (const write of writes) this.#sent.set(write.key, write);
  }

  /** The outcome is known, or stays unknown. */
  markAnswered(writes: readonly OwnWrite[]): void {
    for (const write of writes) if (this.#sent.get(write.key) === write) this.#sent.delete(write.key);
  }

  addCommit(revision: number, writes: readonly OwnWrite[]): void {
    const records = new Map<string, DecodedRecord>();
    for (const { key, decoded } of writes) if (decoded) records.set(key, decoded);
    this.#committed.set(revision, records);
    for (const oldest of this.#committed.keys()) {
      if (this.#committed.size <= MAX_COMMITS_COUNT) return;
      this.#committed.delete(oldest);
    }
  }

  /** The decoded form of a stored value that equals the sent bytes, written by any process. */
  decoded(key: string, value: Uint8Array): DecodedRecord | undefined {
    const write = this.#sent.get(key);
    return write?.value && Buffer.compare(write.value, value) === 0 ? write.decoded : undefined;
  }

  /** The record written at a revision; undefined if it is not remembered. */
  findCommitted(revision: number, key: string): DecodedRecord | undefined {
    return this.#committed.get(revision)?.get(key);
  }

  /** The watch has reported everything up to a revision. */
  dropUpTo(revision: number): void {
    // Answers may overtake each other, so the order is not guaranteed.
    for (const known of this.#committed.keys()) if (known <= revision) this.#committed.delete(known);
  }
}
