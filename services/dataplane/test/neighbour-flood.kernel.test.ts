import { HOST_MAC } from '@podwire/shared/attachment/names';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { SourceGuard } from '../filters/source-guard.js';
import { ProgramNft } from '../kernel/nft-program.js';
import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { Events } from '../pods/events.js';
import { Dataplane } from '../pods/pods.js';
import { send, solicitation } from '../testing/frames.js';
import { addPod, cleanUp, setNodeForwarding, canPing, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { reconcilerOptions, until } from '../testing/nft.js';
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
let dataplane: Dataplane;

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
  guard = new SourceGuard(reconcilerOptions(new ProgramNft()).options);
  await guard.start(new Map());
  dataplane = new Dataplane({ kernel, registry: testRegistry(), events: new Events(recordingLog().log), guard });
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
