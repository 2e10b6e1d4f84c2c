import { describe } from 'vitest';

import { nodeKernelContract } from '../testing/node-kernel-contract.js';
import { netlinkNodeFixture } from './netlink/node-netlink.fixture.js';

describe('the real node kernel', () => {
  nodeKernelContract(netlinkNodeFixture);
});
