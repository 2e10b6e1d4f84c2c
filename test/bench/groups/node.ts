import { setTimeout as sleep } from 'node:timers/promises';

import { makePod, removePod } from '../../support/pods.js';
import { Stack } from '../../support/stack.js';
import { CALLS } from '../cni/calls.js';
import { memoryOf } from '../cni/memory.js';
import { ExecTimer } from '../exec-timer.js';
import type { Figure } from '../figure.js';

/** Earlier pods: a process that never worked is small. */
const PODS = 300;

/** Until a process is idle: V8 releases unused memory some 10 to 45 s after the last command. */
const QUIET_MS = 60_000;

/**
 * The memory that a node needs for Podwire, after some work: resident memory as tools show it, and beside it the share of it that
 * the process would free.
 */
export async function measureNode(report: (line: string) => void): Promise<Figure[]> {
  const stack = new Stack();
  const timer = new ExecTimer(stack.folder, stack.netnsPath);
  try {
    await stack.start();
    const site = { socket: stack.sockets.node, folder: stack.folder };
    for (let index = 0; index < PODS; index++) {
      const pod = makePod(`bench-${index}`);
      for (const command of ['ADD', 'DEL']) await timer.succeed(CALLS.own(command, pod, site));
      removePod(pod);
    }
    await sleep(QUIET_MS);
    const { rssMib, pssMib } = memoryOf(stack.pid('node'));
    report(`podwire-node: RSS ${rssMib.toFixed(1)} MiB, PSS ${pssMib.toFixed(1)} MiB`);
    return [{ name: 'node.rss_mib', value: rssMib, unit: 'MiB', better: 'lower', goal: 120 }];
  } finally {
    timer.close();
    await stack.destroy();
  }
}
