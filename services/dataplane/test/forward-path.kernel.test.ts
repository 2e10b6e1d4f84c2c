import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import type { ClusterView } from '../cluster/cluster.js';
import { acceptRuleDeletions, FORWARD_CHECK_INTERVAL_MS, ForwardPath } from '../filters/forward-path.js';
import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { Events } from '../pods/events.js';
import { PodWiring } from '../pods/pods.js';
import { addPod, canPing, cleanUp, requireThrowawayNamespace, run, setNodeForwarding } from '../testing/kernels.js';
import { reconcilerOptions, until, kernelNft } from '../testing/nft.js';
import { address, BY_FAMILY, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import { node, pool, view } from '../testing/routes.js';

/** Firewalls of other programs on the way of forwarded packets, as their own programs set them up. */

const sh = (script: string) => run('sh', '-ec', script);

/** The rules that Docker 28 makes at its start. */
const DOCKER = (iptables: string) => `
${iptables} -P FORWARD DROP
for chain in DOCKER DOCKER-FORWARD DOCKER-CT DOCKER-BRIDGE DOCKER-USER; do ${iptables} -N $chain; done
${iptables} -A FORWARD -j DOCKER-USER
${iptables} -A FORWARD -j DOCKER-FORWARD
${iptables} -A DOCKER-FORWARD -j DOCKER-CT
${iptables} -A DOCKER-FORWARD -j DOCKER-BRIDGE
${iptables} -A DOCKER-FORWARD -i docker0 -j ACCEPT
${iptables} -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
${iptables} -A DOCKER-BRIDGE -o docker0 -j DOCKER
${iptables} -A DOCKER ! -i docker0 -o docker0 -j DROP`;

/** The rules of ufw with its default, "deny (routed)". */
const UFW = (iptables: string, prefixOfChains: string) => `
${iptables} -P FORWARD DROP
for chain in before-logging-forward before-forward after-forward reject-forward user-forward; do
  ${iptables} -N ${prefixOfChains}-$chain; ${iptables} -A FORWARD -j ${prefixOfChains}-$chain; done
${iptables} -A ${prefixOfChains}-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
${iptables} -A ${prefixOfChains}-before-forward -j ${prefixOfChains}-user-forward
${iptables} -A ${prefixOfChains}-reject-forward -m limit --limit 3/min -j LOG`;

/** The chains of firewalld 1.3 with the zone public on eth0, as far as forwarded packets meet them. */
const FIREWALLD = `table inet firewalld {
  chain filter_FWD_public { jump filter_FWD_public_log; jump filter_FWD_public_allow; reject with icmpx type admin-prohibited; }
  chain filter_FWD_public_log { }
  chain filter_FWD_public_allow { oifname "eth0" accept; }
  chain filter_FWD_trusted { accept; }
  chain filter_FORWARD_ZONES { iifname vmap { "eth0" : goto filter_FWD_public, "lo" : accept }; goto filter_FWD_public; }
  chain filter_FORWARD {
    type filter hook forward priority filter + 10; policy accept;
    ct state { established, related } accept
    ct status dnat accept
    iifname "lo" accept
    ct state invalid drop
    ip6 daddr { ::/96, ::ffff:0.0.0.0/96 } log prefix "x" reject with icmpv6 type addr-unreachable
    jump filter_FORWARD_ZONES
    reject with icmpx type admin-prohibited
  }
}`;

const NODE = { 4: '192.0.2.1', 6: '2001:db8::1' } as const;

const viewOf = (natOutgoing: boolean): ClusterView =>
  view('a', {
    nodes: [node('a', { ipv4: `${NODE[4]}/24`, ipv6: `${NODE[6]}/64` })],
    pools: ['10.65.0.0/16', 'fd65::/64'].map((cidr) => pool(cidr, cidr, { natOutgoing })),
  });

const never = () => new AbortController().signal;

let kernel: NetlinkKernel;
let path: ForwardPath | undefined;

beforeEach(async () => {
  requireThrowawayNamespace();
  setNodeForwarding();
  kernel = await NetlinkKernel.open();
  const dataplane = new PodWiring({ kernel, registry: testRegistry(), events: new Events(recordingLog().log) });
  for (const [name, end] of [
    ['a', 7],
    ['b', 8],
  ] as const) {
    addPod(name);
    const addresses = [address(`10.65.0.${end}`), address(`fd65::${end}`)];
    await dataplane.attach(podNetwork(name, { ...BY_FAMILY['both families'], addresses }), never());
  }
});

afterEach(async () => {
  await path?.stop();
  path = undefined;
  await kernel.close();
  setNodeForwarding('off');
  run('nft', 'flush', 'ruleset');
  cleanUp();
});

/** Watches the node's firewalls; `check` ends after the next check. */
async function watch({ acceptsFirst = true, natOutgoing = false } = {}) {
  const { nft, clock, events, options } = reconcilerOptions(kernelNft());
  path = new ForwardPath({
    ...options,
    acceptsFirst,
    podInterfaces: () => ['podw*', 'cali1'],
    peerInterface: () => 'eth0',
    uplink: () => 'eth0',
  });
  path.follow(viewOf(natOutgoing), { blocks: 'all', hasOtherChanges: true });
  await until(() => clock.sleeping === 1);
  const check = async () => {
    clock.advance(FORWARD_CHECK_INTERVAL_MS);
    await until(() => clock.sleeping === 1);
  };
  const conditions = () => path?.conditions().map(({ reason, message }) => `${reason}: ${message}`) ?? [];
  return { nft, events, check, conditions };
}

const TO = { 4: '10.65.0.8', 6: 'fd65::8' } as const;
const reaches = () => [canPing(TO[4], 'a'), canPing(TO[6], 'a')];
const rules = (iptables = 'iptables') => run(iptables, '-S', 'FORWARD').trim().split('\n');

const OWN = ['-i podw+', '-o podw+', '-i cali1', '-o cali1'].map(
  (by) => `-A FORWARD ${by} -m comment --comment podwire -j ACCEPT`,
);

describe.each([
  ['Docker', DOCKER('iptables') + DOCKER('ip6tables')],
  ['ufw', UFW('iptables', 'ufw') + UFW('ip6tables', 'ufw6')],
] as const)('where %s drops forwarded packets', (_, firewall) => {
  test('pods reach each other by Podwire’s rules at the head of the chain, which firewalls list as theirs', async () => {
    sh(firewall);
    const theirs = rules();
    expect(reaches()).toEqual([false, false]);
    const { events, check, conditions } = await watch();
    expect([reaches(), conditions()]).toEqual([[true, true], []]);
    expect(rules()).toEqual([theirs[0], ...OWN, ...theirs.slice(1)]);
    expect(events.takeLines()).toEqual(['ip filter written: wanted', 'ip6 filter written: wanted']);
    await check();
    expect(events.takeLines()).toEqual([]);
  });

  test('the condition names the chain without them, and its command lets the pods reach each other', async () => {
    sh(firewall);
    const { check, conditions } = await watch({ acceptsFirst: false });
    expect([reaches(), conditions().length]).toEqual([[false, false], 2]);
    expect(conditions()[0]).toMatch(/^ForwardDropped: IPv4 .*chain FORWARD of table ip filter \(policy drop\); run: /);
    for (const condition of conditions()) sh(condition.replace(/.*; run: /, ''));
    await check();
    expect([reaches(), conditions()]).toEqual([[true, true], []]);
  });
});

test('rules that another program flushed or overtook by a drop come back; other rules keep their place', async () => {
  sh(DOCKER('iptables'));
  const { events, check } = await watch();
  sh('iptables -F FORWARD');
  await check();
  expect([reaches()[0], rules().slice(1)]).toEqual([true, OWN]);
  sh('iptables -I FORWARD -s 10.65.0.99 -j DROP');
  events.takeLines();
  await check();
  expect(events.takeLines()).toEqual([]);
  sh('iptables -I FORWARD -j REJECT');
  await check();
  expect([reaches()[0], events.takeLines()]).toEqual([true, ['ip filter written: drift']]);
  expect(rules().slice(1, 5)).toEqual(OWN);
  await expect(kernelNft().apply(await acceptRuleDeletions(kernelNft()))).resolves.toBeUndefined();
  expect(rules().slice(1)).toEqual([
    '-A FORWARD -j REJECT --reject-with icmp-port-unreachable',
    '-A FORWARD -s 10.65.0.99/32 -j DROP',
  ]);
});

test.each([
  [
    'a policy',
    'table inet filter { chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; }; }',
    2,
  ],
  [
    'a rule',
    'table ip6 wall { chain x { counter reject; }; chain way { type filter hook forward priority -5; iifname "podw*" goto x; }; }',
    1,
  ],
  [
    'a chain before routing',
    'table inet wall { chain pre { type filter hook prerouting priority -150; ip saddr 10.65.0.0/16 drop; oifname "podw*" accept; }; }',
    1,
  ],
  [
    'a chain after routing',
    'table inet wall { chain post { type filter hook postrouting priority 0; policy drop; oifname "lo" accept; icmpv6 type nd-neighbor-solicit accept; }; }',
    2,
  ],
  ['firewalld', FIREWALLD, 2],
] as const)('%s of nftables that drops packets of pods is reported until it is cured', async (_, table, deadCount) => {
  run('nft', table);
  const { events, check, conditions } = await watch();
  expect([reaches().filter((reached) => !reached).length, conditions().length]).toEqual([deadCount, 1]);
  expect(events.takeLines()).toEqual([]);
  const [, cure = ''] = /; run: (.*)/.exec(conditions()[0] ?? '') ?? [];
  const zone = /^firewall-cmd --permanent --zone=trusted --add-source=(\S+) && firewall-cmd --reload$/.exec(cure)?.[1];
  // Steps of the program with the command.
  const trust = (ip: string, cidr: string) =>
    `nft insert rule inet firewalld filter_FORWARD_ZONES ${ip} saddr ${cidr} goto filter_FWD_trusted`;
  sh(zone === undefined ? cure : `${trust('ip', zone)}; ${trust('ip6', 'fd65::/64')}`);
  await check();
  expect([reaches(), conditions()]).toEqual([[true, true], []]);
});

describe('a rule that drops packets of pods to the outside', () => {
  const OUT = { 4: '192.0.2.9', 6: '2001:db8::9' } as const;
  const leaves = () => [canPing(OUT[4], 'a'), canPing(OUT[6], 'a')];
  const drop = (rule: string) =>
    run('nft', `table inet wall { chain way { type filter hook forward priority -5; ${rule} drop; }; }`);

  beforeEach(() => {
    addPod('far');
    run('ip', 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', 'far');
    run('ip', 'link', 'set', 'eth0', 'up');
    run('ip', '-n', 'far', 'link', 'set', 'eth0', 'up');
    for (const [family, length] of [
      [4, 24],
      [6, 64],
    ] as const) {
      const nodad = family === 6 ? ['nodad'] : [];
      run('ip', 'address', 'add', `${NODE[family]}/${length}`, 'dev', 'eth0', ...nodad);
      run('ip', '-n', 'far', 'address', 'add', `${OUT[family]}/${length}`, 'dev', 'eth0', ...nodad);
      run('ip', '-n', 'far', 'route', 'add', 'default', 'via', NODE[family]);
    }
  });

  test('is reported until it is cured', async () => {
    // IPv6 link-local addresses are tentative at first.
    await until(() => leaves().every((left) => left));
    drop('oifname "eth0" ip saddr 10.65.0.0/16 ip daddr != 10.65.0.0/16');
    const { check, conditions } = await watch({ natOutgoing: true });
    expect([leaves(), reaches(), conditions().length]).toEqual([[false, true], [true, true], 1]);
    expect(conditions()[0]).toMatch(
      /^ForwardDropped: IPv4 packets of pods from podw\* to eth0 .*chain way of table inet wall \(rule with handle \d+\); run: /,
    );
    for (const condition of conditions()) sh(condition.replace(/.*; run: /, ''));
    await check();
    expect([leaves(), conditions()]).toEqual([[true, true], []]);
  });

  test.each([
    ['the pool does not lead there', 'oifname "eth0" ip saddr 10.65.0.0/16 ip daddr != 10.65.0.0/16', false],
    ['it drops only the node’s network', 'ip saddr 10.65.0.0/16 ip daddr 192.0.2.0/24', true],
    ['it drops only the internet', 'ip saddr 10.65.0.0/16 ip daddr != { 10.65.0.0/16, 192.0.2.0/24 }', true],
  ])('is no condition where %s', async (_, rule, natOutgoing) => {
    drop(rule);
    const { conditions } = await watch({ natOutgoing });
    expect(conditions()).toEqual([]);
  });
});

test('firewalls that let packets of pods pass are no condition, and are not changed', async () => {
  run(
    'nft',
    `table inet filter { set pods { type ipv4_addr; flags interval; elements = { 10.65.0.0/16, 10.99.0.1 }; }
      chain pods { return; }
      chain forward { type filter hook forward priority filter; policy drop; ct state invalid drop; iifname "docker0" drop
        ip saddr 10.65.0.99 drop; meta l4proto { icmp, ipv6-icmp } accept; ct state vmap { established : accept, new : jump pods }
        ip saddr @pods ip daddr @pods accept; meta nfproto ipv6 accept; reject; }; }
    table ip nat { chain p { type nat hook postrouting priority 100; policy accept; }; }`,
  );
  const before = run('nft', '-a', '-s', 'list', 'ruleset');
  const { events, conditions } = await watch();
  expect([reaches(), conditions(), events.takeLines()]).toEqual([[true, true], [], []]);
  expect(run('nft', '-a', '-s', 'list', 'ruleset')).toBe(before);
});
