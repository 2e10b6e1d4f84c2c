import { DEFAULT_BURST_MS, type RateLimit } from '@podwire/shared/attachment/bandwidth';

import type { TokenBucket } from './step.js';

/** Major number of Podwire's root qdiscs, which marks them as its own: "PW" in ASCII, `5057:` for tc. */
export const QDISC_HANDLE = 0x50_57;

/** A token bucket as the kernel reports it. */
export interface ObservedBucket extends Pick<TokenBucket, 'rateBytesPerSecond' | 'limitBytes'> {
  /** Time to fill the bucket, in units of 64 ns, modulo 2^32. */
  readonly bucketTicks: number;
}

/** The root qdisc of a link, if it is not the kernel's default. */
export interface RootQdisc {
  /** `tbf`, `htb`, … */
  readonly kind: string;
  /** Undefined: the qdisc is another program's. */
  readonly bucket: ObservedBucket | undefined;
}

const BITS_PER_BYTE = 8;
const MS_PER_SECOND = 1000;
const UINT32_MAX = 2 ** 32 - 1;
/** The kernel counts the Ethernet header of a packet too. */
const ETHERNET_HEADER_BYTES = 14;
/** Longest wait of a packet behind an empty bucket, besides the time of the burst. */
const LATENCY_MS = 25;

/** The bucket for a limit. It holds a packet of the MTU at least: the kernel drops packets larger than the bucket. */
export function tokenBucket({ rateBitsPerSecond, burstBits }: RateLimit, mtuBytes: number): TokenBucket {
  const rateBytesPerSecond = Math.floor(rateBitsPerSecond / BITS_PER_BYTE);
  const bytesIn = (ms: number) => Math.floor((rateBytesPerSecond * ms) / MS_PER_SECOND);
  const askedBytes = burstBits === undefined ? bytesIn(DEFAULT_BURST_MS) : Math.floor(burstBits / BITS_PER_BYTE);
  const burstBytes = Math.min(Math.max(askedBytes, mtuBytes + ETHERNET_HEADER_BYTES), UINT32_MAX);
  const limitBytes = Math.min(burstBytes + bytesIn(LATENCY_MS), UINT32_MAX);
  return { rateBytesPerSecond, burstBytes, limitBytes };
}

const TICKS_PER_SECOND = 1e9 / 64;
const TICKS_MODULUS = 2 ** 32;
/** Relative error of the kernel's own multiplication. */
const TICKS_PRECISION = 2 ** -30;

/** The time that fills a bucket, as the kernel reports it. */
export function bucketTicks(bucket: Pick<TokenBucket, 'rateBytesPerSecond' | 'burstBytes'>): number {
  return Math.floor(fillTicks(bucket)) % TICKS_MODULUS;
}

function fillTicks({ rateBytesPerSecond, burstBytes }: Pick<TokenBucket, 'rateBytesPerSecond' | 'burstBytes'>): number {
  return (burstBytes / rateBytesPerSecond) * TICKS_PER_SECOND;
}

/** Whether the kernel has the bucket, apart from its rounding. */
export function isSameBucket(wanted: TokenBucket, found: ObservedBucket): boolean {
  const distance = Math.abs(bucketTicks(wanted) - found.bucketTicks);
  const tolerance = 2 + fillTicks(wanted) * TICKS_PRECISION;
  return (
    wanted.rateBytesPerSecond === found.rateBytesPerSecond &&
    wanted.limitBytes === found.limitBytes &&
    Math.min(distance, TICKS_MODULUS - distance) <= tolerance
  );
}

/** The bucket with its burst, which the kernel rounded. */
export function withBurst({ rateBytesPerSecond, limitBytes, bucketTicks: ticks }: ObservedBucket): TokenBucket {
  const burstBytes = Math.min(Math.max(Math.round((ticks / TICKS_PER_SECOND) * rateBytesPerSecond), 1), UINT32_MAX);
  return { rateBytesPerSecond, burstBytes, limitBytes };
}
