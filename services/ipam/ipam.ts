import { Addresses } from './operations/addresses.js';
import { Blocks } from './operations/blocks.js';
import type { IpamOptions } from './operations/options.js';
import { Pools } from './operations/pools.js';

/**
 * What IPAM does, by subject. Each operation is a decision of `allocator/` handed to the store's update loop, and told to `events`
 * once it is durable. Every one fails with CONFLICT, STORE_UNAVAILABLE, DEADLINE_EXCEEDED or CANCELLED besides the failures
 * it names.
 */
export class Ipam {
  readonly addresses: Addresses;
  readonly pools: Pools;
  readonly blocks: Blocks;

  constructor(options: IpamOptions) {
    this.addresses = new Addresses(options);
    this.pools = new Pools(options);
    this.blocks = new Blocks(options);
  }
}
