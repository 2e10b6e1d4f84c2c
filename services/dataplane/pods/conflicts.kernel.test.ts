import { afterEach } from 'vitest';

import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { addPod, cleanUp, requireThrowawayNamespace, run, snapshot } from '../testing/kernels.js';
import { describeSharedAddresses } from '../testing/record-store-contract.js';
import type { Kernel } from './kernel.js';

/** The tests of the fake kernel, on the real one. */

let kernel: Kernel | undefined;

afterEach(async () => {
  await kernel?.close();
  cleanUp();
});

describeSharedAddresses(async () => {
  requireThrowawayNamespace();
  const opened = await NetlinkKernel.open();
  kernel = opened;
  return {
    kernel: opened,
    addPod,
    print: () => JSON.stringify(snapshot('first', 'second')),
    deviceOf: (address) => / dev (\S+)/.exec(run('ip', 'route', 'get', address))?.[1] ?? '',
    removeLink: (name) => void run('ip', 'link', 'delete', name),
  };
});
