import type { Socket } from 'node:net';

import { formatAddress, parseAddress } from '../net/address.js';
import { formatPrefix } from '../net/prefix.js';

interface SourceLimits {
  /** Open connections of all sources. */
  readonly max: number;
  /** Open connections of one source. */
  readonly maxPerSource: number;
}

/** Open connections by their source. */
export class SourceCounts {
  readonly #limits: SourceLimits;
  readonly #counts = new Map<string, number>();
  #total = 0;

  constructor(limits: SourceLimits) {
    this.#limits = limits;
  }

  /** Counts a connection until it closes. @returns false for one beyond the limits, which is not counted */
  admit(socket: Socket): boolean {
    const source = sourceOf(socket.remoteAddress ?? '');
    const count = this.#counts.get(source) ?? 0;
    if (this.#total >= this.#limits.max || count >= this.#limits.maxPerSource) return false;
    this.#change(source, 1);
    socket.once('close', () => this.#change(source, -1));
    return true;
  }

  #change(source: string, by: 1 | -1): void {
    this.#total += by;
    const count = (this.#counts.get(source) ?? 0) + by;
    if (count > 0) this.#counts.set(source, count);
    else this.#counts.delete(source);
  }
}

/** An IPv4 address, or the /64 of an IPv6 address, of which one machine may have all. */
export function sourceOf(address: string): string {
  const parsed = parseAddress(address.replace(/^::ffff:(?=\d+\.)/i, '').replace(/%.*$/, ''));
  if (parsed?.family !== 6) return parsed ? formatAddress(parsed) : '';
  return formatPrefix({ family: 6, value: (parsed.value >> 64n) << 64n, length: 64 });
}
