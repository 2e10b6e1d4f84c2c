import { listBlocks, type BlockQuery, type ListedBlock, type Page } from '../allocator/listing.js';
import { read, type IpamOptions } from '../engine/updates/operation.js';

/** Shows how pools are cut into blocks. */
export class Blocks {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  list(query: BlockQuery, signal: AbortSignal): Promise<Page<ListedBlock>> {
    return read(this.#options, (view) => listBlocks(view, query), signal);
  }
}
