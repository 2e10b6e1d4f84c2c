import { afterEach, beforeEach } from 'vitest';

import { cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { linkSourceContract, type LinkChanger } from '../testing/contracts/node-kernel-contract.js';
import { NetlinkLinks } from './links.js';
import { NodeMonitor } from './node-monitor.js';

beforeEach(requireThrowawayNamespace);
afterEach(cleanUp);

const changer: LinkChanger = {
  put: ({ name, mtuBytes, up }) => {
    const isThere = run('ip', '-br', 'link').split(/\s/).includes(name);
    if (!isThere) run('ip', 'link', 'add', name, 'type', 'bridge');
    run('ip', 'link', 'set', name, 'mtu', String(mtuBytes), up ? 'up' : 'down');
  },
  remove: (name) => void run('ip', 'link', 'delete', name),
};

linkSourceContract(async () => ({
  source: await NetlinkLinks.open(new NodeMonitor()),
  changer,
  sysctl: { key: ['net', 'ipv6', 'conf', 'lo', 'accept_ra'], value: '2' },
}));
