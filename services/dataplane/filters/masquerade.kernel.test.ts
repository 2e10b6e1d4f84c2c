import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import type { ClusterPool, ClusterView } from '../cluster/cluster.js';
import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { reconcilerOptions, prefix, RecordedEvents, until, kernelNft } from '../testing/nft.js';
import { Masquerader, type MasqueradeSettings } from './masquerade.js';

/**
 * Two pods of two nodes, and a server outside:
 *
 *     pod-a ── node (this namespace) ── outside ── node-b's pod, and the server's own addresses
 *
 * The receiver counts packets by source address with nft, so tcpdump is not needed.
 */
const POD = { 4: '10.65.0.7', 6: 'fd00:65::7' } as const;
const POD_B = { 4: '10.65.9.7', 6: 'fd00:65::9:7' } as const;
const SERVER = { 4: '192.0.2.9', 6: '2001:db8::9' } as const;
const NODE = { 4: '192.0.2.1', 6: '2001:db8::1' } as const;
const POOLS = { 4: '10.65.0.0/16', 6: 'fd00:65::/48' } as const;
const FAMILIES = [4, 6] as const;

const inside = (namespace: string, ...command: readonly string[]) => run('ip', 'netns', 'exec', namespace, ...command);

function setUp(): void {
  addPod('pod-a');
  addPod('outside');
  run('ip', 'link', 'add', 'podwa', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', 'pod-a');
  run('ip', 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', 'outside');
  for (const link of ['podwa', 'eth0']) run('ip', 'link', 'set', link, 'up');
  for (const namespace of ['pod-a', 'outside']) {
    inside(namespace, 'ip', 'link', 'set', 'eth0', 'up');
    inside(namespace, 'ip', 'link', 'set', 'lo', 'up');
  }
  run('sysctl', '-qw', 'net.ipv4.ip_forward=1', 'net.ipv6.conf.all.forwarding=1');
  for (const family of FAMILIES) {
    const bits = family === 4 ? '32' : '128';
    const flags = family === 6 ? ['nodad'] : [];
    run('ip', 'address', 'add', `${NODE[family]}/${family === 4 ? 24 : 64}`, 'dev', 'eth0', ...flags);
    run('ip', 'route', 'add', `${POD[family]}/${bits}`, 'dev', 'podwa');
    run('ip', 'route', 'add', `${POD_B[family]}/${bits}`, 'via', SERVER[family]);
    const own = ['address', 'add', `${POD[family]}/${bits}`, 'dev', 'eth0', ...flags];
    inside('pod-a', 'ip', ...own);
    const gateway = family === 4 ? '169.254.1.1' : 'fe80::1';
    inside('pod-a', 'ip', 'route', 'add', `${gateway}/${bits}`, 'dev', 'eth0');
    inside('pod-a', 'ip', `-${family}`, 'route', 'add', 'default', 'via', gateway, 'dev', 'eth0');
    for (const address of [`${SERVER[family]}/${family === 4 ? 24 : 64}`, `${POD_B[family]}/${bits}`]) {
      inside('outside', 'ip', 'address', 'add', address, 'dev', 'eth0', ...flags);
    }
    inside('outside', 'ip', 'route', 'add', POOLS[family], 'via', NODE[family]);
  }
  const mac = 'ee:ee:ee:ee:ee:ee';
  run('ip', 'link', 'set', 'podwa', 'address', mac);
  for (const gateway of ['169.254.1.1', 'fe80::1']) {
    inside('pod-a', 'ip', 'neigh', 'replace', gateway, 'dev', 'eth0', 'lladdr', mac, 'nud', 'permanent');
  }
}

/** Pings from the pod; returns the source addresses that the receiver saw. */
function sourcesSeenBy(destination: string): readonly string[] {
  const family = destination.includes(':') ? 6 : 4;
  const protocol = family === 4 ? 'ip' : 'ip6';
  const seen = `set seen { type ${family === 4 ? 'ipv4_addr' : 'ipv6_addr'}; flags dynamic; size 64; }`;
  const entry = `chain in { type filter hook input priority 0; ${protocol} daddr ${destination} icmp${family === 6 ? 'v6' : ''} type echo-request add @seen { ${protocol} saddr }; }`;
  inside('outside', 'nft', `table inet witness { ${seen}; ${entry}; }`);
  try {
    inside('pod-a', 'ping', '-n', '-q', '-c', '1', '-W', '5', destination);
    const listing = inside('outside', 'nft', 'list', 'set', 'inet', 'witness', 'seen');
    return [...(/elements = \{([^}]*)\}/.exec(listing)?.[1] ?? '').matchAll(/[0-9a-f.:]+/g)].map(([text]) => text);
  } finally {
    inside('outside', 'nft', 'delete', 'table', 'inet', 'witness');
  }
}

function view(natOutgoing: boolean, morePools: readonly string[] = []): ClusterView {
  const pools = [POOLS[4], POOLS[6], ...morePools].map((cidr): [string, ClusterPool] => [
    cidr,
    { name: cidr, cidr: prefix(cidr), encapsulation: 'none', natOutgoing, loadBalancerOnly: false },
  ]);
  return {
    self: 'a',
    isDatastoreLocked: false,
    cluster: { nodes: new Map(), pools: new Map(pools), blocks: new Map() },
  };
}

const ALL = { blocks: 'all', hasOtherChanges: true } as const;
const PLAIN: MasqueradeSettings = { exclude: 'pools', interfaces: [], ports: undefined };

async function masquerading(settings = PLAIN) {
  const events = new RecordedEvents();
  const options = { nft: kernelNft(), events, clock: systemClock, random: () => 0.5 };
  const masquerader = new Masquerader({ ...options, settings });
  masquerader.follow(view(true), ALL);
  await until(() => events.lines.filter((line) => line.includes('written')).length === 2);
  expect(masquerader.conditions()).toEqual([]);
  return { masquerader, events };
}

beforeEach(() => {
  requireThrowawayNamespace();
  setUp();
});

afterEach(() => {
  run('sysctl', '-qw', 'net.ipv4.ip_forward=0', 'net.ipv6.conf.all.forwarding=0');
  cleanUp();
});

describe.each(FAMILIES)('IPv%i: a pod', (family) => {
  test('sends to the outside from the node’s address, and to other pods from its own', async () => {
    expect(sourcesSeenBy(SERVER[family])).toEqual([POD[family]]);
    const { masquerader } = await masquerading();
    expect(sourcesSeenBy(SERVER[family])).toEqual([NODE[family]]);
    expect(sourcesSeenBy(POD_B[family])).toEqual([POD[family]]);
    await masquerader.stop();
    expect(sourcesSeenBy(SERVER[family])).toEqual([NODE[family]]);
  });

  test('sends from its own address once natOutgoing of its pool is off', async () => {
    const { masquerader } = await masquerading();
    masquerader.follow(view(false), ALL);
    await masquerader.stop();
    expect(sourcesSeenBy(SERVER[family])).toEqual([POD[family]]);
    expect(run('nft', 'list', 'ruleset')).toBe('');
  });

  test('is masqueraded only on the configured interfaces', async () => {
    const elsewhere = await masquerading({ ...PLAIN, interfaces: ['wlan*'] });
    expect(sourcesSeenBy(SERVER[family])).toEqual([POD[family]]);
    await elsewhere.masquerader.stop();
    const here = await masquerading({ ...PLAIN, interfaces: ['wlan*', 'eth*'], ports: { first: 2000, last: 2009 } });
    expect(sourcesSeenBy(SERVER[family])).toEqual([NODE[family]]);
    await here.masquerader.stop();
  });
});

test('foreign tables stay identical, byte for byte', async () => {
  run('nft', 'add', 'table', 'inet', 'theirs');
  run('nft', 'add', 'chain', 'inet', 'theirs', 'c', '{ type nat hook postrouting priority 100; }');
  run('nft', 'add', 'rule', 'inet', 'theirs', 'c', 'ip', 'daddr', '198.51.100.1', 'masquerade');
  const theirs = () => run('nft', '-a', 'list', 'table', 'inet', 'theirs');
  const before = theirs();
  const { masquerader } = await masquerading();
  expect(run('nft', 'list', 'tables').split('\n').filter(Boolean).toSorted()).toEqual([
    'table inet theirs',
    'table ip podwire',
    'table ip6 podwire',
  ]);
  expect(theirs()).toBe(before);
  masquerader.follow(view(false), ALL);
  await masquerader.stop();
  expect(run('nft', '-a', 'list', 'ruleset')).toBe(before);
});

test.each([
  ['a thousand pools, at once', PLAIN],
  ['every rule that can be asked for', { ...PLAIN, interfaces: ['eth0', 'en*'], ports: { first: 1024, last: 65_535 } }],
] as const)('%s: shown as written, restored after a deletion, kept by the next start', async (_, settings) => {
  const more = settings === PLAIN ? Array.from({ length: 1000 }, (__, at) => `10.${at >> 8}.${at & 255}.0/24`) : [];
  const { events, options } = reconcilerOptions(kernelNft());
  const masquerader = new Masquerader({ ...options, settings });
  masquerader.follow(
    view(
      true,
      more.filter((cidr) => !cidr.startsWith('10.65.')),
    ),
    ALL,
  );
  await until(() => events.lines.length === 2);
  const before = run('nft', 'list', 'ruleset');
  run('nft', 'delete', 'table', 'ip', 'podwire');
  await until(() => events.lines.includes('ip podwire written: drift'));
  expect(run('nft', '-s', 'list', 'table', 'ip', 'podwire')).not.toBe('');
  expect(run('nft', 'list', 'ruleset').length).toBe(before.length);
  await masquerader.stop();

  const next = reconcilerOptions(kernelNft());
  const afterRestart = new Masquerader({ ...next.options, settings });
  const handles = run('nft', '-a', 'list', 'ruleset');
  afterRestart.follow(
    view(
      true,
      more.filter((cidr) => !cidr.startsWith('10.65.')),
    ),
    ALL,
  );
  await afterRestart.stop();
  expect(next.events.takeLines()).toEqual([]);
  expect(run('nft', '-a', 'list', 'ruleset')).toBe(handles);
});
