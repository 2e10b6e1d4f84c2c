import { run } from '../netlink/namespaces.fixture.js';

/** Runs a program in a pod. */
export const inside = (namespace: string, ...command: readonly string[]) =>
  run('ip', 'netns', 'exec', namespace, ...command);

/** A packet is on its way for some milliseconds, as each look takes. */
const MAX_LOOKS_COUNT = 2000;

/**
 * How many pings reach an address of the node that a pod sends once with an address that it has. Whatever is sent is counted
 * before the guard sees it, and what gets by in the same breath: nobody has to wait for an answer that does not come.
 */
export function arrivalsFrom(pod: string, address: string, node: string): number {
  const family = address.includes(':') ? 6 : 4;
  const counted = family === 4 ? `ip saddr ${address} icmp` : `ip6 saddr ${address} icmpv6`;
  const chain = (name: string, hook: string) =>
    `chain ${name} { type filter hook ${hook}; ${counted} type echo-request counter; };`;
  run(
    'nft',
    `table inet witness { ${chain('sent', 'prerouting priority -400')} ${chain('arrived', 'input priority 0')} }`,
  );
  const count = (name: string) =>
    Number(/counter packets (\d+)/.exec(run('nft', 'list', 'chain', 'inet', 'witness', name))?.[1]);
  try {
    inside(pod, 'sh', '-c', `ping -n -q -c 1 -W 0.01 -I ${address} ${node} || true`);
    for (let looks = 0; count('sent') === 0; looks++)
      if (looks === MAX_LOOKS_COUNT) throw new Error(`${pod} sends nothing from ${address}`);
    return count('arrived');
  } finally {
    run('nft', 'delete', 'table', 'inet', 'witness');
  }
}
