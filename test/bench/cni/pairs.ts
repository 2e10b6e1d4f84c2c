import { makePod, removePod } from '../../support/pods.js';
import type { ExecTimer } from '../exec-timer.js';
import { CALLS, SIDES, type Side, type Site } from './calls.js';
import { warmUp } from './warm-up.js';

/** Pods of both sides before the measured ones. */
const WARM_UP = 20;

/** Milliseconds from exec to exit, of each measured pod. */
export interface PodTimes {
  readonly add: number[];
  readonly del: number[];
}

export interface Pairs {
  readonly timer: ExecTimer;
  readonly site: Site;
  /** The number of measured pods of each side. */
  readonly count: number;
  /** Done once for each pair, between ADD and DEL, so that it meets the same noise. */
  readonly between?: () => void;
}

/** One pod at a time through Podwire and through `ptp` + `host-local`, alternating; every second time in the other order. */
export async function measurePairs({ timer, site, count, between }: Pairs): Promise<Record<Side, PodTimes>> {
  await warmUp(timer, site);
  const times: Record<Side, PodTimes> = { own: { add: [], del: [] }, ptp: { add: [], del: [] } };
  for (let round = 0; round < WARM_UP + count; round++) {
    const isMeasured = round >= WARM_UP;
    const order = round % 2 === 0 ? SIDES : SIDES.toReversed();
    const pods = order.map((side) => ({ side, pod: makePod(`bench-${round}-${side}`) }));
    for (const command of ['ADD', 'DEL'] as const) {
      for (const { side, pod } of pods) {
        const { elapsedMs } = await timer.succeed(CALLS[side](command, pod, site));
        if (isMeasured) times[side][command === 'ADD' ? 'add' : 'del'].push(elapsedMs);
      }
      if (isMeasured && command === 'ADD') between?.();
    }
    for (const { pod } of pods) removePod(pod);
  }
  return times;
}
