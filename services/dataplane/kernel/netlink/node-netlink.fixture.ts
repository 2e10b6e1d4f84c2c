import type { NodeKernelFixture } from '../node-kernel.fixture.js';
import { NodeNetlinkKernel } from '../node-kernel.js';
import { NodeMonitor } from '../node-monitor.js';
import { requireThrowawayNamespace, run } from './namespaces.fixture.js';

/** A command as people write it, on the node that this process is. */
export function byHand(command: string): void {
  const [program = '', ...words] = command.split(' ');
  run(program, ...words);
}

/** Every interface but the loopback goes, and every route, as nothing is to be left of a test. */
export function clearNode(): void {
  for (const line of run('ip', '-br', 'link').split('\n')) {
    const [link = ''] = line.split(/[@\s]/);
    if (link === '' || link === 'lo') continue;
    try {
      run('ip', 'link', 'delete', link);
    } catch {
      // It went with its parent.
    }
  }
  for (const family of ['-4', '-6']) run('ip', family, 'route', 'flush', 'table', 'main', 'proto', '87');
  for (const family of ['-4', '-6']) run('ip', family, 'route', 'flush', 'table', 'main', 'proto', '4');
}

/** The node that this process is, as `test/support/isolated.mjs` makes it. */
export async function netlinkNodeFixture(): Promise<NodeKernelFixture> {
  requireThrowawayNamespace();
  clearNode();
  const kernel = await NodeNetlinkKernel.open(new NodeMonitor());
  return {
    kernel,
    byHand,
    addParent: (name, ...addresses) => {
      byHand(`ip link add ${name} type bridge`);
      byHand(`ip link set ${name} up`);
      // Without duplicate address detection: nothing can be bound to an address before that is over.
      for (const address of addresses)
        byHand(`ip address add ${address} dev ${name}${address.includes(':') ? ' nodad' : ''}`);
    },
    destroy: async () => {
      await kernel.close();
      clearNode();
    },
  };
}
