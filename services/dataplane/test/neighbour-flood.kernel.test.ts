import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';

import { HOST_MAC } from '@podwire/shared/attachment/names';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NeighbourGuard } from '../filters/neighbour-guard.js';
import { SourceGuard } from '../filters/source-guard.js';
import { NodeMonitor } from '../kernel/node-monitor.js';
import { NetlinkNodeNetwork } from '../kernel/node-network.js';
import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { connectedSubnets } from '../node/address-method.js';
import { Events } from '../pods/events.js';
import { PodWiring } from '../pods/pods.js';
import { send, solicitation } from '../testing/frames.js';
import { addPod, cleanUp, setNodeForwarding, canPing, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { reconcilerOptions, until, kernelNft } from '../testing/nft.js';
import { address, BY_FAMILY, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import { GATEWAY } from '../wiring/network.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';

/** A pod that fills the kernel's neighbour table, which all namespaces share, and other pods that need it. */

/** Three times the table's size (gc_thresh3), sent in less time than an entry is kept. */
const FLOOD_COUNT = 3072;

const BOTH = BY_FAMILY['both families'];
const never = () => new AbortController().signal;

let kernel: NetlinkKernel;
let guard: SourceGuard;
let dataplane: PodWiring;

async function attach(name: string, end: number): Promise<PodNetwork> {
  addPod(name);
  const network = podNetwork(name, { ...BOTH, addresses: [address(`10.65.0.${end}`), address(`fd65::${end}`)] });
  await dataplane.attach(network, never());
  return network;
}

/** Each with another link-local source and MAC address. */
function flood(): void {
  const packets = Array.from({ length: FLOOD_COUNT }, (_, at) => {
    const digits = (0x1_0000 + at).toString(16).slice(1);
    const mac = `02:ff:00:00:${digits.slice(0, 2)}:${digits.slice(2)}`;
    return solicitation({ source: `fe80::ff:${digits}`, target: GATEWAY[6], mac });
  });
  send('a', packets);
}

const entriesOf = (device: string) =>
  run('ip', '-6', 'neigh', 'show', 'dev', device)
    .split('\n')
    .filter((line) => line.startsWith('fe80::ff:')).length;

beforeEach(async () => {
  requireThrowawayNamespace();
  setNodeForwarding();
  run('ip', 'address', 'replace', '198.18.0.1/32', 'dev', 'lo');
  kernel = await NetlinkKernel.open();
  guard = new SourceGuard(reconcilerOptions(kernelNft()).options);
  await guard.start(new Map());
  dataplane = new PodWiring({
    kernel,
    registry: testRegistry(),
    events: new Events(recordingLog().log),
    filters: [guard],
  });
});

afterEach(async () => {
  await guard.stop();
  await kernel.close();
  setNodeForwarding('off');
  cleanUp();
});

describe('while a pod floods its node with neighbour solicitations', () => {
  test('other pods keep their IPv6 and IPv4, and a new pod can be added', async () => {
    const [attacker] = [await attach('a', 7), await attach('b', 8), await attach('c', 9)];
    flood();
    const entries = entriesOf(attacker.hostInterfaceName);
    expect(['fd65::8', '10.65.0.8'].filter((to) => !canPing(to))).toEqual([]);
    await attach('d', 10);
    const pairs = ['8', '9', '10'].flatMap((end) => [`fd65::${end}`, `10.65.0.${end}`]);
    const from = (to: string) => (to.endsWith('8') ? 'c' : 'b');
    expect(pairs.filter((to) => !canPing(to, from(to)))).toEqual([]);
    expect(entries).toBeLessThan(16);
  });

  test('its own discovery works again once it names no more sources than allowed', async () => {
    const { hostInterfaceName } = await attach('a', 7);
    flood();
    run('ip', '-n', 'a', '-6', 'neigh', 'flush', 'dev', 'eth0', 'nud', 'permanent');
    run('ip', '-6', 'neigh', 'flush', 'dev', hostInterfaceName, 'nud', 'permanent');
    await until(() => canPing('fd65::7'));
  });
});

describe.each([
  [4, '192.0.0.1/20', '192.0.0.', '192.0.{}.{}'],
  [6, '2001:db8:77::1/64', '2001:db8:77::', '2001:db8:77::ffff:{:x}:{:x}'],
] as const)(
  'IPv%i: while a pod without privileges sends to unused addresses of the node’s own subnet',
  (family, own, base, unused) => {
    const HOSTS = Array.from({ length: 24 }, (_, at) => `${base}${at + 100}`);
    const FIRST_HOST = `${base}99`;
    const unresolved = () =>
      run('ip', `-${family}`, 'neigh', 'show', 'dev', 'lan0')
        .split('\n')
        .filter((line) => /INCOMPLETE|FAILED/.test(line)).length;
    let flooder: ChildProcess | undefined;
    let network: NetlinkNodeNetwork;
    let neighbourGuard: NeighbourGuard;

    beforeEach(async () => {
      addPod('lan');
      run('ip', 'link', 'add', 'lan0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', 'lan');
      const nodad = family === 6 ? ['nodad'] : [];
      for (const command of [
        ['ip', 'link', 'set', 'lan0', 'up'],
        ['ip', '-n', 'lan', 'link', 'set', 'eth0', 'up'],
        ['ip', 'address', 'add', own, 'dev', 'lan0', ...nodad],
        ...[FIRST_HOST, ...HOSTS].map((host) => [
          'ip',
          '-n',
          'lan',
          'address',
          'add',
          `${host}/${own.split('/')[1]}`,
          'dev',
          'eth0',
          ...nodad,
        ]),
        [
          'ip',
          '-n',
          'lan',
          'route',
          'add',
          'default',
          'via',
          own.replace(/\/.*/, ''),
          ...(family === 6 ? ['dev', 'eth0'] : []),
        ],
      ]) {
        const [program = '', ...words] = command;
        run(program, ...words);
      }
      network = await NetlinkNodeNetwork.open(new NodeMonitor());
      neighbourGuard = new NeighbourGuard({
        ...reconcilerOptions(kernelNft()).options,
        podInterfaces: () => guard.interfaces,
      });
      for (const [name, end] of [
        ['a', 7],
        ['b', 8],
        ['c', 9],
      ] as const)
        await attach(name, end);
      // The kernel discards packets until it has noticed that the link is up, which takes up to a second.
      await until(() => canPing(FIRST_HOST, 'b'));
    });

    afterEach(async () => {
      flooder?.kill('SIGKILL');
      await neighbourGuard.stop();
      await network.close();
      run('nft', 'flush', 'ruleset');
    });

    /** Sends to other addresses for as long as the test runs, without a privilege. */
    async function flood(): Promise<void> {
      const program = `
import os, socket, time
os.setuid(65534)
out = socket.socket(socket.AF_INET${family === 6 ? '6' : ''}, socket.SOCK_DGRAM)
at = 0
while True:
    at += 1
    try: out.sendto(b'x', ('${unused}'.format(${family === 4 ? '1 + at // 256 % 15, at % 256' : 'at // 65536, at % 65536'}), 9))
    except OSError: pass
    # Slowly enough for the node's CPU: only the neighbour table may cost packets.
    if at % 16 == 0: time.sleep(0.001)
    if at == 4000: print('full', flush=True)`;
      flooder = spawn('ip', ['netns', 'exec', 'a', 'python3', '-c', program], { stdio: ['ignore', 'pipe', 'inherit'] });
      if (flooder.stdout) await once(flooder.stdout, 'data');
    }

    test('a restart keeps the table', async () => {
      const connected = connectedSubnets(await network.read());
      neighbourGuard.setConnected(connected);
      await until(() => run('nft', 'list', 'tables').includes('podwire_neighbours'));
      await neighbourGuard.stop();
      const { events, options } = reconcilerOptions(kernelNft());
      const next = new NeighbourGuard({ ...options, podInterfaces: () => guard.interfaces });
      next.setConnected(connected);
      await next.stop();
      expect(events.takeLines()).toEqual([]);
    });

    test('other pods reach hosts of that subnet for the first time', async () => {
      neighbourGuard.setConnected(connectedSubnets(await network.read()));
      await until(() => run('nft', 'list', 'tables').includes('podwire_neighbours'));
      await flood();
      const lost = HOSTS.map((host, at) => canPing(host, at % 2 === 0 ? 'b' : 'c')).filter((reached) => !reached);
      expect([lost.length, neighbourGuard.conditions()]).toEqual([0, []]);
      expect(unresolved()).toBeLessThan(128);
    });
  },
);

describe('the node’s neighbour entries of a pod', () => {
  const permanentOf = (device: string) =>
    ['-4', '-6'].flatMap((family) =>
      run('ip', family, 'neigh', 'show', 'dev', device, 'nud', 'permanent')
        .split('\n')
        .map((line) => line.trim())
        .filter((line) => line !== ''),
    );

  test('are permanent, checked, repaired, and follow its addresses', async () => {
    const network = await attach('a', 7);
    const { hostInterfaceName: device, mac } = network;
    const entries = ['10.65.0.7', 'fd65::7'].map((own) => `${own} lladdr ${mac} PERMANENT`);
    expect(permanentOf(device)).toEqual(entries);
    run('ip', 'neigh', 'delete', 'fd65::7', 'dev', device);
    run('ip', 'neigh', 'replace', '10.65.0.7', 'dev', device, 'lladdr', HOST_MAC, 'nud', 'permanent');
    expect(await dataplane.check(network, never())).toEqual([
      {
        object: `host neighbour 10.65.0.7 dev ${device} lladdr ${mac} nud permanent`,
        wanted: 'present',
        actual: `lladdr ${HOST_MAC}`,
      },
      {
        object: `host neighbour fd65::7 dev ${device} lladdr ${mac} nud permanent`,
        wanted: 'present',
        actual: 'missing',
      },
    ]);
    await dataplane.repair(network, never());
    expect(permanentOf(device)).toEqual(entries);
    await dataplane.attach({ ...network, addresses: [address('10.65.0.17'), address('fd65::17')] }, never());
    expect(permanentOf(device)).toEqual(entries.map((entry) => entry.replace('7 ', '17 ')));
    await dataplane.attach({ ...network, ...BY_FAMILY.IPv4, addresses: [address('10.65.0.17')] }, never());
    expect(permanentOf(device)).toEqual([`10.65.0.17 lladdr ${mac} PERMANENT`]);
  });

  test('follow the MAC address that the pod set, at the next check', async () => {
    const { attachment, hostInterfaceName } = await attach('a', 7);
    const mac = '02:00:00:00:00:99';
    run('ip', '-n', 'a', 'link', 'set', 'eth0', 'address', mac);
    expect(await dataplane.repairRecorded(attachment, never())).toMatchObject({ outcome: 'matches' });
    expect(permanentOf(hostInterfaceName).map((entry) => entry.split(' ')[2])).toEqual([mac, mac]);
    expect([canPing('fd65::7'), canPing('10.65.0.7')]).toEqual([true, true]);
  });
});
