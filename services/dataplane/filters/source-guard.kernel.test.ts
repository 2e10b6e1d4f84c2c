import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { arrivalsFrom, inside, listRuleset } from '../testing/contracts/nft-contract.js';
import { reconcilerOptions, prefix, kernelNft } from '../testing/nft.js';
import { SourceGuard } from './source-guard.js';

const FAMILIES = [4, 6] as const;
const BITS = { 4: 32, 6: 128 } as const;
const NODE = { 4: '192.0.2.1', 6: '2001:db8::1' } as const;
const OTHER_POD = { 4: '10.65.0.8', 6: 'fd00:65::8' } as const;
const OWN = { 4: '10.65.0.7', 6: 'fd00:65::7' } as const;
/** Behind the pod; the node has no route to it. */
const BEHIND = { 4: '10.99.0.1', 6: 'fd00:99::1' } as const;
const RANGE = { 4: '10.99.0.0/24', 6: 'fd00:99::/64' } as const;

/** Many commands of `ip` as one process, in the node's namespace or a pod's. */
const batch = (lines: readonly string[], pod?: string) =>
  run('sh', '-c', `ip ${pod === undefined ? '' : `-n ${pod} `}-batch - <<'END'\n${lines.join('\n')}\nEND`);

/** A pod as the dataplane wires it, with its own address, foreign addresses and one behind it; the node has no rp_filter. */
function wire(pod: string, device: string, ending: string): void {
  addPod(pod);
  const own = { 4: OWN[4].replace(/7$/, ending), 6: OWN[6].replace(/7$/, ending) };
  const gateway = { 4: '169.254.1.1', 6: 'fe80::ecee:eeff:feee:eeee' };
  batch([
    `link add ${device} type veth peer name eth0 netns ${pod}`,
    `link set ${device} address ee:ee:ee:ee:ee:ee up`,
    // The address that the kernel derives from the MAC address. Without duplicate detection it is usable at once.
    `address replace ${gateway[6]}/64 dev ${device} nodad`,
    ...FAMILIES.map((family) => `route add ${own[family]}/${BITS[family]} dev ${device}`),
  ]);
  run('sysctl', '-qw', `net.ipv4.conf.${device}.rp_filter=0`, `net.ipv4.conf.${device}.proxy_arp=1`);
  const addresses = (family: 4 | 6) =>
    [own[family], OWN[family], OTHER_POD[family], BEHIND[family]].map(
      (address) => `address replace ${address}/${BITS[family]} dev eth0${family === 6 ? ' nodad' : ''}`,
    );
  const lines = [
    'link set eth0 up',
    ...FAMILIES.flatMap(addresses),
    `route add ${gateway[4]}/32 dev eth0`,
    ...FAMILIES.flatMap((family) => [
      `route add default via ${gateway[family]} dev eth0 src ${own[family]}`,
      `neigh replace ${gateway[family]} dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent`,
    ]),
  ];
  batch(lines, pod);
}

const arrivals = (pod: string, address: string) => arrivalsFrom(pod, address, NODE[address.includes(':') ? 6 : 4]);

let guard: SourceGuard;

beforeEach(() => {
  requireThrowawayNamespace();
  run('sysctl', '-qw', 'net.ipv4.conf.all.rp_filter=0', 'net.ipv4.conf.default.rp_filter=0');
  for (const family of FAMILIES) run('ip', 'address', 'add', `${NODE[family]}/${BITS[family]}`, 'dev', 'lo');
  wire('pod-a', 'podwa', '7');
  wire('pod-b', 'podwb', '8');
  guard = new SourceGuard(reconcilerOptions(kernelNft()).options);
});

afterEach(async () => {
  await guard.stop();
  for (const family of FAMILIES) {
    run('ip', 'address', 'delete', `${NODE[family]}/${BITS[family]}`, 'dev', 'lo');
  }
  cleanUp();
});

describe.each(FAMILIES)('IPv%i: a pod', (family) => {
  test('sends from any address without the guard, and only from its own with it', async () => {
    const seen = () => [OWN, OTHER_POD, BEHIND].map((addresses) => arrivals('pod-a', addresses[family]));
    expect(seen()).toEqual([1, 1, 1]);
    await guard.start(new Map());
    expect(seen()).toEqual([1, 0, 0]);
  });

  test('sends from an allowed range while it is allowed, and no other pod does', async () => {
    await guard.start(new Map());
    await guard.install({ hostInterfaceName: 'podwa', addresses: [], sourcePrefixes: [prefix(RANGE[family])] });
    const seen = () => ['pod-a', 'pod-b'].map((pod) => arrivals(pod, BEHIND[family]));
    expect(seen()).toEqual([1, 0]);
    expect(arrivals('pod-a', OTHER_POD[family])).toBe(0);
    await guard.install({ hostInterfaceName: 'podwb', addresses: [], sourcePrefixes: [prefix(RANGE[family])] });
    await guard.install({ hostInterfaceName: 'podwa', addresses: [], sourcePrefixes: [] });
    expect(seen()).toEqual([0, 1]);
    await guard.forget('podwb');
    expect(seen()).toEqual([0, 0]);
  });

  test('with an interface of another name is guarded once the interface is listed', async () => {
    wire('pod-c', 'cali1', '9');
    await guard.start(new Map());
    expect(arrivals('pod-c', OTHER_POD[family])).toBe(1);
    await guard.install({ hostInterfaceName: 'cali1', addresses: [], sourcePrefixes: [] });
    expect(arrivals('pod-c', OTHER_POD[family])).toBe(0);
    expect(arrivals('pod-c', OWN[family].replace(/7$/, '9'))).toBe(1);
    await guard.install({ hostInterfaceName: 'cali1', addresses: [], sourcePrefixes: [prefix(RANGE[family])] });
    expect(arrivals('pod-c', BEHIND[family])).toBe(1);
    await guard.forget('cali1');
    expect(arrivals('pod-c', OTHER_POD[family])).toBe(1);
  });
});

test('neighbour discovery passes: pod and node find each other with empty tables', async () => {
  await guard.start(new Map());
  const gateway = 'fe80::ecee:eeff:feee:eeee';
  inside('pod-a', 'ip', 'neigh', 'delete', gateway, 'dev', 'eth0');
  run('ip', '-6', 'neigh', 'flush', 'dev', 'podwa');
  inside('pod-a', 'ping', '-n', '-q', '-c', '1', '-w', '20', '-I', OWN[6], NODE[6]);
  run('ip', '-6', 'neigh', 'flush', 'dev', 'podwa');
  run('ping', '-n', '-q', '-c', '1', '-w', '20', OWN[6]);
});

test('the table is listed as written, so the next start does not write it', async () => {
  const allowed = new Map([
    ['podwa', [prefix(RANGE[4]), prefix(RANGE[6]), prefix('10.98.0.1/32')]],
    ['cali1', []],
  ]);
  await guard.start(allowed);
  const before = listRuleset();
  const next = reconcilerOptions(kernelNft());
  const another = new SourceGuard(next.options);
  await another.start(allowed);
  await another.stop();
  expect(listRuleset()).toBe(before);
  expect(next.events.takeLines()).toEqual([]);
});
