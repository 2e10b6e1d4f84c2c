import { makePod, removePod } from '../../support/pods.js';
import type { ExecTimer } from '../exec-timer.js';
import { CALLS, type Site } from './calls.js';

/** A first Allocate takes 8 ms, the 500th 4.3, the 2,000th 3.3. A node reaches that number within days. */
const PODS = 2000;

/** Podwire's pods only, through the shim, until the just-in-time compilers are warm. */
export async function warmUp(timer: ExecTimer, site: Site): Promise<void> {
  for (let count = 0; count < PODS; count++) {
    const pod = makePod(`bench-warm-up-${count}`);
    for (const command of ['ADD', 'DEL'] as const) await timer.succeed(CALLS.own(command, pod, site));
    removePod(pod);
  }
}
