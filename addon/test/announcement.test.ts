import { spawnSync } from 'node:child_process';

import { describe, expect, it } from 'vitest';

import { failureOf, ip, makePod, open, run } from './ip.js';

const STALE_MAC = '02:00:00:00:00:99';

/** A node, and a neighbour that has another MAC address for the node's addresses. */
async function makeNeighbours() {
  const [node, neighbour] = [makePod(), makePod()];
  run('ip', '-n', node.name, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', neighbour.name);
  for (const [{ name }, host] of [
    [node, 1],
    [neighbour, 2],
  ] as const) {
    run('ip', '-n', name, 'address', 'add', `192.0.2.${host}/24`, 'dev', 'eth0');
    run('ip', '-n', name, 'address', 'add', `2001:db8::${host}/64`, 'dev', 'eth0', 'nodad');
    run('ip', '-n', name, 'link', 'set', 'eth0', 'up');
  }
  // A link that was just set up accepts no IPv6 until the kernel has checked it again.
  const pings = () => spawnSync('ip', ['netns', 'exec', node.name, 'ping', '-c', '1', '-W', '1', '2001:db8::2']).status;
  await expect.poll(pings, { timeout: 20_000 }).toBe(0);
  const [link] = ip('-n', node.name, 'link', 'show', 'eth0');
  return { node, neighbour, index: Number(link!.ifindex), mac: String(link!.address) };
}

/** The neighbour's entry of an address. */
function known(neighbour: string, address: string): Record<string, unknown> | undefined {
  return ip('-n', neighbour, 'neighbour', 'show', address)[0];
}

function believe(neighbour: string, address: string): void {
  run('ip', '-n', neighbour, 'neighbour', 'replace', address, 'lladdr', STALE_MAC, 'dev', 'eth0', 'nud', 'reachable');
}

describe('announceAddress', () => {
  it.each(['192.0.2.1', '2001:db8::1'])('announces the MAC address of %s to neighbours', async (address) => {
    const { node, neighbour, index, mac } = await makeNeighbours();
    const within = await open(node.path);
    believe(neighbour.name, address);
    await within.announceAddress({ index, address });
    await expect.poll(() => known(neighbour.name, address)).toMatchObject({ lladdr: mac });
    expect(known(neighbour.name, address)).not.toHaveProperty('router');

    // Twice within the second in which a neighbour accepts no other update (locktime).
    believe(neighbour.name, address);
    await within.announceAddress({ index, address });
    await expect.poll(() => known(neighbour.name, address)).toMatchObject({ lladdr: mac });
  });

  it('marks IPv6 announcements of a router, and adds no new entry to neighbours', async () => {
    const { node, neighbour, index, mac } = await makeNeighbours();
    const within = await open(node.path);
    run('ip', '-n', node.name, 'address', 'add', '2001:db8::3/64', 'dev', 'eth0', 'nodad');
    believe(neighbour.name, '2001:db8::1');
    await within.announceAddress({ index, address: '2001:db8::3', router: true });
    await within.announceAddress({ index, address: '2001:db8::1', router: true });
    await expect.poll(() => known(neighbour.name, '2001:db8::1')).toMatchObject({ lladdr: mac, router: null });
    expect(known(neighbour.name, '2001:db8::3')).toBeUndefined();
  });

  it('reports an announcement that cannot be sent', async () => {
    const { node, index } = await makeNeighbours();
    const within = await open(node.path);
    const announce = (link: number, address: string) => failureOf(within.announceAddress({ index: link, address }));
    expect(await announce(index, '2001:db8::7')).toMatchObject({ code: 'EADDRNOTAVAIL' });
    expect(await announce(1, '192.0.2.1')).toMatchObject({ code: 'EOPNOTSUPP', operation: 'address.announce' });
    run('ip', '-n', node.name, 'link', 'set', 'eth0', 'down');
    expect(await announce(index, '192.0.2.1')).toMatchObject({
      code: 'ENETDOWN',
      object: `192.0.2.1 dev link ${index}`,
    });
  });
});
