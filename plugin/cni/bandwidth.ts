import {
  bandwidthOf,
  BURST_BITS,
  checkRateLimit,
  DIRECTIONS,
  type Bandwidth,
  type Direction,
  type RateLimit,
} from '@podwire/shared/attachment/bandwidth';

import type { ReportViolation, Sourced } from './annotations.js';
import { parseQuantity } from './quantity.js';

/** Prefix of Calico's annotations about the quality of service. */
const PREFIX = 'qos.projectcalico.org/';

/** Annotations of both directions that Podwire implements. */
const SUPPORTED = DIRECTIONS.flatMap((direction) => [`${direction}Bandwidth`, `${direction}Burst`]);

/**
 * Bursts that containerd, CRI-O and the kubelet's former dockershim pass for a limit without one. They would let the first 0.3 to
 * 4 GB pass unlimited.
 */
const UNSET_BURSTS: readonly number[] = [0, 2 ** 32 - 1, BURST_BITS.max, 2 ** 31 - 1];

/** A value of `runtimeConfig`, and its name there. */
export type Capability = Sourced<unknown>;

/**
 * Reads the limits of a pod: of the runtime, and of Calico's annotations, which override them.
 * @param report - receives every fault, with its source
 */
export function readBandwidth(
  capability: Capability | undefined,
  annotations: Readonly<Record<string, string>>,
  report: ReportViolation,
): Bandwidth | undefined {
  reportUnsupported(annotations, report);
  const values = capability && readCapability(capability, report);
  const [ingress, egress] = DIRECTIONS.map((direction) => readLimit(direction, { values, annotations, report }));
  return bandwidthOf(ingress, egress);
}

function reportUnsupported(annotations: Readonly<Record<string, string>>, report: ReportViolation): void {
  for (const name of Object.keys(annotations)) {
    if (!name.startsWith(PREFIX) || SUPPORTED.includes(name.slice(PREFIX.length))) continue;
    const reason = `is not supported by Podwire; remove it, or limit the pod with ${SUPPORTED.join(', ')}`;
    report({ field: `annotation ${name}`, reason });
  }
}

type CapabilityValues = ReadonlyMap<string, Sourced<number>>;

/** Reads the numbers of `runtimeConfig.bandwidth`, in any case of the keys, as containerd capitalizes them. */
function readCapability({ source, value }: Capability, report: ReportViolation): CapabilityValues {
  const values = new Map<string, Sourced<number>>();
  if (value === null) return values;
  if (typeof value !== 'object' || Array.isArray(value)) report({ field: source, reason: 'must be an object' });
  else
    for (const [key, each] of Object.entries(value)) {
      if (!CAPABILITY_KEYS.includes(key.toLowerCase()) || each === null) continue;
      if (typeof each === 'number') values.set(key.toLowerCase(), { source: `${source}.${key}`, value: each });
      else report({ field: `${source}.${key}`, reason: 'must be a number' });
    }
  return values;
}

const CAPABILITY_KEYS: readonly string[] = DIRECTIONS.flatMap((direction) => [`${direction}rate`, `${direction}burst`]);

interface LimitSources {
  readonly values: CapabilityValues | undefined;
  readonly annotations: Readonly<Record<string, string>>;
  readonly report: ReportViolation;
}

/** A rate of Calico's annotation replaces the runtime's limit; its burst alone replaces the runtime's burst. */
function readLimit(direction: Direction, { values, annotations, report }: LimitSources): RateLimit | undefined {
  const read = (name: string) => readAnnotation(`${PREFIX}${direction}${name}`, annotations, report);
  const annotatedRate = read('Bandwidth');
  const annotatedBurst = read('Burst');
  // 0 is no limit, as in the program `bandwidth`.
  const runtimeRate = present(values?.get(`${direction}rate`), [0]);
  const runtimeBurst = present(values?.get(`${direction}burst`), UNSET_BURSTS);
  const rate = annotatedRate ?? runtimeRate;
  const burst = annotatedBurst ?? (annotatedRate ? undefined : runtimeBurst);
  if (!rate) {
    const reason = `needs a rate; set annotation ${PREFIX}${direction}Bandwidth or kubernetes.io/${direction}-bandwidth`;
    if (burst) report({ field: burst.source, reason });
    return undefined;
  }
  const limit = { rateBitsPerSecond: rate.value, burstBits: burst?.value };
  const sources = { rateBitsPerSecond: rate.source, burstBits: burst?.source ?? rate.source };
  checkRateLimit(limit, (field, reason) => report({ field: sources[field], reason }));
  return limit;
}

function present(given: Sourced<number> | undefined, absent: readonly number[]): Sourced<number> | undefined {
  return given === undefined || absent.includes(given.value) ? undefined : given;
}

function readAnnotation(
  name: string,
  annotations: Readonly<Record<string, string>>,
  report: ReportViolation,
): Sourced<number> | undefined {
  const text = annotations[name];
  if (text === undefined) return undefined;
  const source = `annotation ${name}`;
  const value = parseQuantity(text);
  if (value !== undefined) return { source, value: Number(value) };
  report({ field: source, reason: `is ${JSON.stringify(text)}, which is not a quantity; use a number such as 10M` });
  return undefined;
}
