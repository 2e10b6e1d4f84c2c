import { makePod, removePod, type Pod } from '../../support/pods.js';
import type { ExecTimer } from '../exec-timer.js';
import { CALLS, SIDES, type Side, type Site } from './calls.js';

/** The number of pods that kubelet allows a node by default. */
const PODS = 110;
const ROUNDS = 5;

/** Pods per second, of each measured round. */
export interface Rates {
  readonly add: number[];
  readonly del: number[];
}

export interface Storm {
  /** The number of pods created at a time. */
  readonly timers: readonly ExecTimer[];
  readonly site: Site;
}

/** A node's pods all at once, through Podwire and through `ptp` + `host-local` alternating, after one unmeasured round. */
export async function measureStorms({ timers, site }: Storm): Promise<Record<Side, Rates>> {
  const rates: Record<Side, Rates> = { own: { add: [], del: [] }, ptp: { add: [], del: [] } };
  for (let round = 0; round <= ROUNDS; round++) {
    for (const side of round % 2 === 0 ? SIDES : SIDES.toReversed()) {
      const pods = Array.from({ length: PODS }, (_, index) => makePod(`storm-${round}-${side}-${index}`));
      for (const command of ['ADD', 'DEL'] as const) {
        const rate = await callAll({ pods, command, side, timers, site });
        if (round > 0) rates[side][command === 'ADD' ? 'add' : 'del'].push(rate);
      }
      for (const pod of pods) removePod(pod);
    }
  }
  return rates;
}

interface Calls extends Storm {
  readonly pods: readonly Pod[];
  readonly command: 'ADD' | 'DEL';
  readonly side: Side;
}

/** @returns pods per second */
async function callAll({ pods, command, side, timers, site }: Calls): Promise<number> {
  const waiting = [...pods];
  const startMs = performance.now();
  const callers = timers.map(async (timer) => {
    for (let pod = waiting.pop(); pod; pod = waiting.pop()) await timer.succeed(CALLS[side](command, pod, site));
  });
  await Promise.all(callers);
  return pods.length / ((performance.now() - startMs) / 1000);
}
