import { spawn } from 'node:child_process';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { reconcilerOptions, until, kernelNft } from '../testing/nft.js';
import { node, view } from '../testing/routes.js';
import { PORT_TABLE, PortGuard } from './port-guard.js';

/** A pod, its node, another node, and a host that is no node: the last three have no listener, so a reached port refuses. */

const FAMILIES = [4, 6] as const;
const BITS = { 4: 32, 6: 128 } as const;
const NODE = { 4: '192.0.2.1', 6: '2001:db8::1' } as const;
const OTHER = { 4: '192.0.2.2', 6: '2001:db8::2' } as const;
const HOST = { 4: '192.0.2.9', 6: '2001:db8::9' } as const;
/** Other addresses of the other node: of its tunnel, and of its interfaces. */
const TUNNEL = { 4: '10.65.0.2', 6: 'fd00:65::2' } as const;
const SECONDARY = { 4: '198.51.100.2', 6: '2001:db8:1::2' } as const;
const POD = { 4: '10.65.0.7', 6: 'fd00:65::7' } as const;
const ALL = { blocks: 'all', hasOtherChanges: true } as const;
const PORTS = [9094, 9091];

/** The nodes as this node knows them. */
const cluster = (names: readonly string[]) =>
  view('a', {
    nodes: names.map((name) => {
      const own = name === 'a' ? NODE : OTHER;
      return node(name, {
        ipv4: `${own[4]}/24`,
        ipv6: `${own[6]}/64`,
        ...(name === 'b' && {
          vxlan4: TUNNEL[4],
          vxlan6: TUNNEL[6],
          interfaceAddresses: [OTHER[4], OTHER[6], SECONDARY[4], SECONDARY[6]],
        }),
      });
    }),
  });

let guard: PortGuard | undefined;

function guarded(ports: readonly number[], names: readonly string[]): PortGuard {
  const own = new PortGuard({ ...reconcilerOptions(kernelNft()).options, ports });
  own.follow(cluster(names), ALL);
  guard = own;
  return own;
}

const tableText = (): string => {
  const tables = run('nft', 'list', 'tables');
  return tables.includes(PORT_TABLE.name) ? run('nft', 'list', 'table', PORT_TABLE.family, PORT_TABLE.name) : '';
};
const droppedCount = (): number =>
  [...tableText().matchAll(/counter packets (\d+)/g)].reduce((sum, [, count]) => sum + Number(count), 0);

/** Whether a pod's connection reaches a port, which refuses it; otherwise the guard has counted its packet. */
async function reaches(address: string, port: number): Promise<boolean> {
  const before = droppedCount();
  const connecting = spawn('ip', ['netns', 'exec', 'pod-a', 'bash', '-c', `exec 3<>/dev/tcp/${address}/${port}`]);
  let isRefused = false;
  connecting.stderr.on('data', (text) => (isRefused ||= String(text).includes('refused')));
  const ended = new Promise((resolve) => connecting.once('close', resolve));
  await until(() => isRefused || droppedCount() > before);
  connecting.kill('SIGKILL');
  await ended;
  return isRefused;
}

beforeEach(() => {
  requireThrowawayNamespace();
  run('sysctl', '-qw', 'net.ipv4.ip_forward=1', 'net.ipv6.conf.all.forwarding=1');
  for (const [name, device, addresses] of [
    ['pod-a', 'podwa', POD],
    ['far', 'uplink', OTHER],
  ] as const) {
    addPod(name);
    run('ip', 'link', 'add', device, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', name);
    run('ip', 'link', 'set', device, 'up');
    run('ip', '-n', name, 'link', 'set', 'eth0', 'up');
    for (const family of FAMILIES) {
      const nodad = family === 6 ? ['nodad'] : [];
      run('ip', '-n', name, 'address', 'add', `${addresses[family]}/${BITS[family]}`, 'dev', 'eth0', ...nodad);
      run('ip', 'route', 'add', `${addresses[family]}/${BITS[family]}`, 'dev', device);
    }
  }
  for (const family of FAMILIES) {
    const nodad = family === 6 ? ['nodad'] : [];
    // A neighbour solicitation is answered for addresses of its own interface only.
    for (const device of ['podwa', 'uplink'])
      run('ip', 'address', 'add', `${NODE[family]}/${BITS[family]}`, 'dev', device, ...nodad);
    for (const { [family]: far } of [HOST, TUNNEL, SECONDARY]) {
      run('ip', '-n', 'far', 'address', 'add', `${far}/${BITS[family]}`, 'dev', 'eth0', ...nodad);
      run('ip', 'route', 'add', `${far}/${BITS[family]}`, 'dev', 'uplink');
    }
    for (const name of ['pod-a', 'far']) {
      run('ip', '-n', name, 'route', 'add', `${NODE[family]}/${BITS[family]}`, 'dev', 'eth0');
      run('ip', '-n', name, 'route', 'add', 'default', 'via', NODE[family], 'dev', 'eth0', 'onlink');
    }
  }
});

afterEach(async () => {
  await guard?.stop();
  guard = undefined;
  cleanUp();
});

test.each(FAMILIES)('IPv%i: a pod reaches no blocked port of a node, and every other one', async (family) => {
  const seen = async () => {
    const all: boolean[] = [];
    for (const to of [NODE, OTHER, HOST]) for (const port of [9091, 9094]) all.push(await reaches(to[family], port));
    return all;
  };
  expect(await seen()).toEqual([true, true, true, true, true, true]);
  const own = guarded(PORTS, ['a']);
  await until(() => tableText() !== '');
  expect(await seen()).toEqual([false, false, true, true, true, true]);
  own.follow(cluster(['a', 'b']), ALL);
  await until(() => tableText().includes(OTHER[family]));
  expect(await seen()).toEqual([false, false, false, false, true, true]);
  expect([await reaches(TUNNEL[family], 9091), await reaches(SECONDARY[family], 9091)]).toEqual([false, false]);
  for (const { [family]: open } of [NODE, OTHER, SECONDARY]) expect(await reaches(open, 9092)).toBe(true);
});

test('the table is listed as written, and there is none without ports', async () => {
  guarded([9091], ['a', 'b']);
  await until(() => tableText() !== '');
  const next = reconcilerOptions(kernelNft());
  const another = new PortGuard({ ...next.options, ports: [9091] });
  another.follow(cluster(['a', 'b']), ALL);
  await another.stop();
  expect(next.events.takeLines()).toEqual([]);
  await guard?.stop();
  guarded([], ['a', 'b']);
  await until(() => tableText() === '');
});
