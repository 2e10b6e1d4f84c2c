import { describe } from 'vitest';

import { netlinkNodeFixture } from '../testing/kernels.js';
import { nodeKernelContract } from '../testing/contracts/node-kernel-contract.js';

describe('the real node kernel', () => {
  nodeKernelContract(netlinkNodeFixture);
});
