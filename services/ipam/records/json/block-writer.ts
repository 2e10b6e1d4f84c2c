import type { Block } from '../../allocator/records.js';
import {
  formatHead,
  formatMiddle,
  formatNumber,
  formatTail,
  formOfWritten,
  type StoredBlock,
} from '../../store/record/block-text.js';
import { ByteWriter, sharedEnds, type WrittenList } from '../../store/record/byte-writer.js';
import type { JsonObject } from './json.js';

/**
 * The bytes of a block. It is written whole with every address that is given, and all but one of its addresses as they were: what is as it
 * was is copied from the bytes that were written before, where they are still known. To put them together anew would walk over hundreds of
 * small objects, which no cache of the processor holds when many nodes have a block each.
 */

/** Where a block's parts are in its bytes. */
interface BlockParts {
  readonly headEnd: number;
  readonly attributes: WrittenList;
  readonly numbers: WrittenList;
}

interface WrittenBlock extends BlockParts {
  readonly bytes: Buffer;
  readonly raw: JsonObject;
}

/** Bytes of the blocks written last that are kept: of some 400 of 64 addresses. What is known of where their parts are is as much at most. */
const MAX_KEPT_BYTES = 4 * 1024 * 1024;

class RecentBlocks {
  readonly #blocks = new Map<Block, WrittenBlock>();
  #bytes = 0;

  /** What follows a state of a block is written once, or anew where its transaction is lost. */
  take(block: Block): WrittenBlock | undefined {
    const written = this.#blocks.get(block);
    if (!written) return undefined;
    this.#blocks.delete(block);
    this.#bytes -= written.bytes.length;
    return written;
  }

  keep(block: Block, written: WrittenBlock): void {
    this.take(block);
    this.#blocks.set(block, written);
    this.#bytes += written.bytes.length;
    for (const oldest of this.#blocks.keys()) {
      if (this.#bytes <= MAX_KEPT_BYTES) return;
      this.take(oldest);
    }
  }
}

const recent = new RecentBlocks();
const writer = new ByteWriter();

/** The bytes of a block's text, as `formatBlock` gives it, from those that were written last if they are known. */
export function writeBlock(block: Block, stored: StoredBlock): Buffer {
  const known = stored.value && recent.take(stored.value);
  const isSame = known?.raw === stored.raw && stored.value?.prefix === block.prefix;
  const parts = assemble(block, stored, isSame ? known : undefined);
  const bytes = writer.end();
  recent.keep(block, { ...parts, bytes, raw: stored.raw });
  return bytes;
}

/** Puts the bytes together in {@link writer}. */
function assemble(block: Block, { value: before, raw }: StoredBlock, known: WrittenBlock | undefined): BlockParts {
  writer.begin(known?.bytes);
  if (known && hasSameHead(block, before)) writer.copy(0, known.headEnd);
  else writer.text(formatHead(block, raw));
  const headEnd = writer.count;
  writer.text(',"allocations":[');
  writer.integers(block.allocations);
  writer.text('],"unallocated":[');
  writer.integers(block.unallocated);
  writer.text('],"attributes":[');
  const earlier = before?.attributes ?? [];
  const shared = sharedEnds(earlier, block.attributes);
  const gone = earlier.slice(shared.head, earlier.length - shared.tail);
  const writing = { block, before, gone };
  const attributes = writer.list(block.attributes, {
    before: known?.attributes,
    shared,
    textOf: (entry) => formOfWritten(entry, writing),
  });
  writer.text(`]${formatMiddle(raw)}${block.sequenceNumber},"sequenceNumberForAllocation":{`);
  const numbers = writer.list(block.sequenceNumbers, {
    before: known?.numbers,
    shared: sharedEnds(before?.sequenceNumbers ?? [], block.sequenceNumbers),
    textOf: formatNumber,
  });
  writer.text(`}${formatTail(raw)}`);
  return { headEnd, attributes, numbers };
}

function hasSameHead({ owner, claimTimeMs }: Block, before: Block | undefined): boolean {
  return owner === before?.owner && claimTimeMs === before?.claimTimeMs;
}
