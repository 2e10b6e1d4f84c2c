import { describe, expect, it } from 'vitest';

import type { ConntrackFilter, TrackedConnection } from '../lib/index.js';
import { failureOf, makePod, open, run } from './ip.js';

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
  it('deletes flows from, to and behind an address, of its family, and no other flows', async () => {
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

describe('connections', () => {
  const show = ({ protocol, source, destination, destinationPort }: TrackedConnection) =>
    `${protocol} ${source.toString('hex')} ${destination.toString('hex')} ${destinationPort}`;
  const [LEFT, RIGHT] = ['0a090002', 'c0000202'];
  const [LEFT6, RIGHT6] = ['fd09', 'fd02'].map((net) => `${net}${'2'.padStart(28, '0')}`);

  it('lists the ends as rules see them, once for each entry, and deletes the chosen ones alone', async () => {
    const { left, right, path, router } = makeRouted();
    const node = await open(path);
    const send = (from: string, to: string, port: number) => inside(from, `bash -c echo>/dev/udp/${to}/${port}`);
    send(left, '198.51.100.1', 53);
    send(left, '192.0.2.2', 54);
    send(right, '10.9.0.2', 55);
    send(left, '192.0.2.1', 56);
    send(left, 'fd02::2', 57);
    inside(left, 'ping -c 1 -W 5 192.0.2.2');
    const list = async (...addresses: string[]) => [...(await node.connections(addresses))];
    const shown = async (...addresses: string[]) => (await list(...addresses)).map(show).toSorted();
    const [translated, direct, back] = [`17 ${LEFT} ${RIGHT} 53`, `17 ${LEFT} ${RIGHT} 54`, `17 ${RIGHT} ${LEFT} 55`];
    const between = [`1 ${LEFT} ${RIGHT} 0`, translated, direct, back].toSorted();
    const toRouter = `17 ${LEFT} c0000201 56`;
    const unused = ['203.0.113.1', '203.0.113.2', '203.0.113.3'];
    expect(await shown('192.0.2.2')).toEqual(between);
    expect(await shown('192.0.2.2', '192.0.2.2')).toEqual(between);
    expect(await shown('10.9.0.2', '192.0.2.2')).toEqual([...between, toRouter].toSorted());
    // More addresses than the kernel compares.
    expect(await shown('10.9.0.2', '192.0.2.2', ...unused)).toEqual([...between, toRouter].toSorted());
    expect(await shown('198.51.100.1', ...unused)).toEqual([]);
    expect((await shown('fd02::2')).filter((line) => line.startsWith('17'))).toEqual([`17 ${LEFT6} ${RIGHT6} 57`]);
    const chosen = (await list('10.9.0.2', 'fd02::2')).filter((each) => [53, 57].includes(each.destinationPort));
    expect(await node.deleteConnections(chosen)).toBe(2);
    expect(await node.deleteConnections(chosen)).toBe(0);
    expect(await shown('10.9.0.2')).toEqual([`1 ${LEFT} ${RIGHT} 0`, direct, back, toRouter].toSorted());
    expect(flows(router, 6).filter((line) => line.includes('udp'))).toEqual([]);
  });

  it('leaves out a connection that another one has announced', async () => {
    const { left, right, path, router } = makeRouted();
    const node = await open(path);
    run('ip', 'netns', 'exec', router, 'nft', TFTP_RULES);
    const send = (from: string, port: number, to: string, data: string) =>
      run('ip', 'netns', 'exec', from, 'python3', '-c', SEND, String(port), ...to.split(' '), data);
    send(left, 2000, '192.0.2.2 69', '00016600');
    send(right, 3000, '10.9.0.2 2000', '00030001');
    expect(flows(router, 4)).toHaveLength(2);
    expect([...(await node.connections(['10.9.0.2']))].map((each) => each.destinationPort)).toEqual([69]);
  });
});

const TFTP_RULES = `table inet announced {
  ct helper files { type "tftp" protocol udp; l3proto inet; }
  chain forwarded { type filter hook forward priority 0; udp dport 69 ct helper set "files"; }
}`;

const SEND = `
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', int(sys.argv[1])))
s.sendto(bytes.fromhex(sys.argv[4]), (sys.argv[2], int(sys.argv[3])))
`;

/** The UDP flows of a namespace to its own loopback addresses, made by datagrams to these ports. */
async function makeUdp(ports: readonly number[]) {
  const { name, path } = makePod();
  run('ip', '-n', name, 'link', 'set', 'lo', 'up');
  run('ip', 'netns', 'exec', name, 'nft', UDP_RULES);
  for (const port of ports)
    for (const host of ['127.0.0.1', '127.0.0.2', '::1']) inside(name, `bash -c echo>/dev/udp/${host}/${port}`);
  return { pod: name, node: await open(path) };
}

const UDP_RULES = `table inet flows {
  chain translated { type nat hook output priority -100; ip daddr 127.0.0.2 udp dport 53 dnat ip to 127.0.0.3:5353; }
  chain seen { type filter hook input priority 0; ct state new counter accept; }
}`;

describe('deleteConntrack by port', () => {
  it('deletes by protocol and original destination port, in both families', async () => {
    const { pod, node } = await makeUdp([53, 54]);
    const udp53 = { protocol: 'udp', destinationPorts: [53] };
    const all = () => [...flows(pod, 4), ...flows(pod, 6)];
    expect(all()).toHaveLength(6);
    // The translated port is not the original one.
    expect(await node.deleteConntrack({ protocol: 'udp', destinationPorts: [5353] })).toBe(0);
    expect(await node.deleteConntrack({ protocol: 'tcp', destinationPorts: [53] })).toBe(0);
    expect(await node.deleteConntrack(udp53)).toBe(3);
    expect(await node.deleteConntrack(udp53)).toBe(0);
    expect(all().filter((line) => line.includes('dport=54'))).toHaveLength(3);
    expect(all().filter((line) => line.includes('dport=53 '))).toEqual([]);
    expect(await node.deleteConntrack({ protocol: 'udp', destinationPorts: [55, 52, 54] })).toBe(3);
  });

  it.each<[string, ConntrackFilter, string]>([
    ['port 0', { protocol: 'udp', destinationPorts: [53, 0] }, 'filter.destinationPorts[1]'],
    ['no ports', { protocol: 'udp', destinationPorts: [] }, 'filter.destinationPorts'],
    ['an unknown protocol', { protocol: 'gre', destinationPorts: [53] }, 'filter.protocol'],
    ['no address', { address: '10.0.0.0/8' }, 'filter.address'],
  ])('refuses %s', async (_, filter, path) => {
    const node = await open(makePod().path);
    expect(await failureOf(node.deleteConntrack(filter))).toMatchObject({ name: 'ArgumentError', path });
  });
});
