import { describe, expect, it } from 'vitest';

import { makePod, open, run } from './ip.js';

/** The flows of a family that Debian's `conntrack` lists; one line each. */
function flows(router: string, family: 4 | 6): string[] {
  const listed = run('ip', 'netns', 'exec', router, 'conntrack', '-L', '-f', family === 4 ? 'ipv4' : 'ipv6');
  return listed.split('\n').filter((line) => line.includes('src='));
}

function inside(pod: string, command: string): void {
  run('ip', 'netns', 'exec', pod, ...command.split(' '));
}

const RULES = `table inet flows {
  chain translated { type nat hook prerouting priority -100; ip daddr 198.51.100.1 dnat ip to 192.0.2.2; }
  chain seen { type filter hook forward priority 0; ct state new counter accept; }
}`;

/** Two ends and a router between them that tracks what it forwards. */
function makeRouted() {
  const [left, router, right] = [makePod().name, makePod().name, makePod().name];
  for (const [pod, name, net] of [
    [left, 'left', '10.9.0'],
    [right, 'right', '192.0.2'],
  ] as const) {
    const v6 = net === '10.9.0' ? 'fd09' : 'fd02';
    run('ip', '-n', router, 'link', 'add', 'name', name, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', pod);
    for (const [where, device, host] of [
      [router, name, 1],
      [pod, 'eth0', 2],
    ] as const) {
      run('ip', '-n', where, 'address', 'add', `${net}.${host}/24`, 'dev', device);
      run('ip', '-n', where, 'address', 'add', `${v6}::${host}/64`, 'dev', device, 'nodad');
      run('ip', '-n', where, 'link', 'set', device, 'up');
    }
    run('ip', '-n', pod, 'route', 'add', 'default', 'via', `${net}.1`);
    run('ip', '-n', pod, 'route', 'add', 'default', 'via', `${v6}::1`);
  }
  inside(router, 'sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1');
  run('ip', 'netns', 'exec', router, 'nft', RULES);
  return { left, router, right, path: `/run/netns/${router}` };
}

describe('deleteConntrack', () => {
  it('deletes flows from, to and behind an address, of its family, and no others', async () => {
    const { left, router, right, path } = makeRouted();
    const node = await open(path);
    const ping = (from: string, to: string) => inside(from, `ping -c 1 -W 5 ${to}`);
    ping(left, '192.0.2.2');
    ping(right, '10.9.0.2');
    ping(left, '198.51.100.1');
    ping(left, '192.0.2.1');
    ping(left, 'fd02::2');
    ping(right, 'fd09::2');
    expect(flows(router, 4)).toHaveLength(4);
    expect(flows(router, 6).filter((line) => line.includes('icmpv6'))).not.toHaveLength(0);
    expect(await node.deleteConntrack({ address: '203.0.113.1' })).toBe(0);
    // As destination, as source, and behind a translated address.
    expect(await node.deleteConntrack({ address: '192.0.2.2' })).toBe(3);
    expect(flows(router, 4)).toEqual([expect.stringContaining('src=10.9.0.2 dst=192.0.2.1')]);
    const sixth = flows(router, 6).filter((line) => /(src|dst)=fd02::2 /.test(line));
    expect(await node.deleteConntrack({ address: 'fd02::2' })).toBe(sixth.length);
    expect(sixth.length).toBeGreaterThanOrEqual(2);
    expect(flows(router, 6).filter((line) => /(src|dst)=fd02::2 /.test(line))).toEqual([]);
    expect(await node.deleteConntrack({ address: '10.9.0.2' })).toBe(1);
    expect(flows(router, 4)).toEqual([]);
  });
});
