/**
 * The phases of a CNI command, in the order in which a picture stacks them. The time of a command is the sum of its phases.
 * Values of the label `phase`.
 */
export const PHASES = [
  /** Time from the start of the shim until its request reached the plugin. */
  'shim',
  /** Waiting for earlier commands of the attachment. */
  'queue',
  /** The plugin itself. */
  'plugin',
  /** A delegated IPAM plugin. */
  'delegate',
  /** Time between the client and the server of a call: connection, retries, transport, busy event loops. */
  'rpc',
  /** podwire-ipam itself. */
  'ipam',
  /** Waiting in podwire-ipam: for the caller's turn, or for the transaction before. */
  'ipam_queue',
  /** Waiting for the datastore. */
  'datastore',
  /** the node's dataplane itself. */
  'dataplane',
  /** Waiting for a lock of the dataplane. */
  'lock',
  /** Requests to the kernel. */
  'kernel',
] as const;

export type Phase = (typeof PHASES)[number];

/** A part of a command's time. Intervals are listed in the order in which they began, each before those inside it. */
export interface Interval {
  /** Name for people: `podwire-ipam Allocate`, `podwire.store.commit`. */
  readonly name: string;
  readonly phase: Phase;
  /** Since the start of the command, in milliseconds. */
  readonly startMs: number;
  readonly durationMs: number;
  /** 0 for an interval of the command itself, 1 for one inside of that, and so on. */
  readonly depth: number;
}

/** A shorter time without an interval is no step. */
const REST_MIN_MS = 1;

/**
 * The intervals, and a step of the plugin for each time of the command that none covers, such as for code that is executed for
 * the first time.
 */
export function withRest(intervals: readonly Interval[], totalMs: number): Interval[] {
  const steps: Interval[] = [];
  let coveredMs = 0;
  const addRest = (untilMs: number): void => {
    const rest = {
      name: 'podwire-node',
      phase: 'plugin',
      startMs: coveredMs,
      durationMs: untilMs - coveredMs,
      depth: 0,
    } as const;
    if (rest.durationMs >= REST_MIN_MS) steps.push(rest);
  };
  for (const interval of intervals) {
    if (interval.depth === 0) addRest(interval.startMs);
    steps.push(interval);
    coveredMs = Math.max(coveredMs, interval.startMs + interval.durationMs);
  }
  addRest(totalMs);
  return steps;
}

/**
 * Divides the time of a command among its phases. Each moment belongs to the deepest interval that covers it, the latest of
 * several; a moment without an interval belongs to the plugin. So the phases add up to the whole time, also when calls are
 * concurrent.
 * @returns milliseconds by phase; a phase that has no interval is absent, except `plugin`
 */
export function timeByPhase(intervals: readonly Interval[], totalMs: number): Map<Phase, number> {
  const within = (ms: number): number => Math.min(Math.max(ms, 0), totalMs);
  const clipped = intervals.map((interval, order) => ({
    ...interval,
    order,
    fromMs: within(interval.startMs),
    untilMs: within(interval.startMs + interval.durationMs),
  }));
  const borders = [0, totalMs, ...clipped.flatMap(({ fromMs, untilMs }) => [fromMs, untilMs])].sort((a, b) => a - b);
  const times = new Map<Phase, number>([['plugin', 0]]);
  for (const { phase } of intervals) times.set(phase, 0);
  let fromMs = 0;
  for (const untilMs of borders) {
    if (untilMs <= fromMs) continue;
    const covering = clipped.filter((interval) => interval.fromMs <= fromMs && interval.untilMs >= untilMs);
    const [owner] = covering.sort((a, b) => b.depth - a.depth || b.fromMs - a.fromMs || b.order - a.order);
    const phase = owner?.phase ?? 'plugin';
    times.set(phase, (times.get(phase) ?? 0) + untilMs - fromMs);
    fromMs = untilMs;
  }
  return times;
}
