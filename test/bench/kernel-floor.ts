import { join } from 'node:path';

import { run } from '../support/programs.js';
import { ROOT } from '../support/root.js';
import type { Stack } from '../support/stack.js';

/** Pods that the program creates one after another; their median counts. */
const BATCH = 3;

/** Milliseconds of the kernel's part of one pod in a minimal native program, on the node of a stack. */
export function kernelFloor(stack: Stack): () => number {
  run('make', '-s', '-C', join(ROOT, 'addon', 'test', 'native'), 'floor');
  const program = join(ROOT, 'addon', 'build', 'test', 'floor');
  return () => {
    const output = run('nsenter', `--net=${stack.netnsPath}`, program, String(BATCH));
    return Number(/"attachNs": \{"p50": (\d+)/.exec(output)?.[1]) / 1e6;
  };
}
