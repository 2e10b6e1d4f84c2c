/** A limit of a pod's packets in one direction. */
export interface RateLimit {
  readonly rateBitsPerSecond: number;
  /** Bits that may pass at once after a pause; undefined: {@link DEFAULT_BURST_MS} of the rate. */
  readonly burstBits: number | undefined;
}

/** Limits of a pod's packets, by direction as the pod sees it. Absent: not limited. */
export interface Bandwidth {
  readonly ingress?: RateLimit;
  readonly egress?: RateLimit;
}

export const DIRECTIONS = ['ingress', 'egress'] as const;

export type Direction = (typeof DIRECTIONS)[number];

/** Calico's and Kubernetes' ranges. The largest burst is the largest bucket of the kernel, 2^32 - 1 bytes. */
export const RATE_BITS = { min: 1000, max: 10 ** 15 } as const;
export const BURST_BITS = { min: 1000, max: 34_359_738_360 } as const;

/** Burst of a limit without one: 1 % of the traffic of five seconds. */
export const DEFAULT_BURST_MS = 50;

/** Reports the fields of a limit that are out of range. */
export function checkRateLimit(
  { rateBitsPerSecond, burstBits = BURST_BITS.min }: RateLimit,
  report: (field: keyof RateLimit, reason: string) => void,
): void {
  const rateFault = rangeFault(rateBitsPerSecond, RATE_BITS, 'bit/s');
  if (rateFault !== undefined) report('rateBitsPerSecond', rateFault);
  const burstFault = rangeFault(burstBits, BURST_BITS, 'bit');
  if (burstFault !== undefined) report('burstBits', burstFault);
}

function rangeFault(value: number, { min, max }: typeof RATE_BITS | typeof BURST_BITS, unit: string) {
  const isInRange = Number.isInteger(value) && value >= min && value <= max;
  return isInRange ? undefined : `is ${value} ${unit}; it must be a whole number from ${min} to ${max} ${unit}`;
}

/** The limits of those given; undefined when there is none. */
export function bandwidthOf(ingress: RateLimit | undefined, egress: RateLimit | undefined): Bandwidth | undefined {
  return ingress || egress ? { ...(ingress && { ingress }), ...(egress && { egress }) } : undefined;
}

/** `10M`, `10M burst 1M`: bits per second and bits, in units of Kubernetes. */
export function formatRateLimit({ rateBitsPerSecond, burstBits }: RateLimit): string {
  const burst = burstBits === undefined ? '' : ` burst ${formatBits(burstBits)}`;
  return `${formatBits(rateBitsPerSecond)}${burst}`;
}

const UNITS = ['', 'k', 'M', 'G', 'T', 'P'] as const;

function formatBits(bits: number): string {
  const power = UNITS.findLastIndex((_, exponent) => bits >= 1000 ** exponent && bits % 1000 ** exponent === 0);
  return power < 0 ? String(bits) : `${bits / 1000 ** power}${UNITS[power]}`;
}
