import { describe } from 'vitest';

import { nodeKernelContract } from '../node-kernel.contract.js';
import { netlinkNodeFixture } from './node-netlink.fixture.js';

describe('the real node kernel', () => {
  nodeKernelContract(netlinkNodeFixture);
});
