import { afterEach, describe, expect, test } from 'vitest';

import type { RecordStore } from '../records/record-store.js';
import { MemoryKernel } from '../testing/memory-kernel.js';
import { MemoryRecordStore } from '../testing/memory-record-store.js';
import { address, BY_FAMILY, podNetwork, recordingLog, secondInterface, testRegistry } from '../testing/pods.js';
import { tableOf } from '../wiring/network.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { Events } from './events.js';
import { PodWiring } from './pods.js';

/** The rules that make a pod answer by the interface that received the request, from attach to detach. */

const BOTH = BY_FAMILY['both families'];
const NETNS = '/run/netns/a';
const first = podNetwork('a', BOTH);
const second = secondInterface('a');
const RULES = ['10.66.0.7', 'fd66::7'].map(
  (source) => `${NETNS}: rule from ${source} lookup ${tableOf('net1')} priority 30087 protocol 87`,
);

const never = () => new AbortController().signal;

let kernels: MemoryKernel[] = [];

afterEach(() => {
  expect(kernels.map(({ openSessions, unusedFaults }) => [openSessions, unusedFaults])).toEqual(
    kernels.map(() => [0, 0]),
  );
  kernels = [];
});

/** A node with the pod's namespace, and a service on it; `restarted` is the next one. */
async function node(store: RecordStore = new MemoryRecordStore()) {
  const kernel = new MemoryKernel();
  kernels.push(kernel);
  kernel.addNamespace(NETNS);
  const { log, lines } = recordingLog();
  const start = async () => {
    const registry = testRegistry(store);
    await registry.load();
    return new PodWiring({ kernel, registry, events: new Events(log) });
  };
  const rules = () =>
    kernel
      .print()
      .split('\n')
      .filter((line) => line.includes(': rule'));
  const commands = async (work: () => Promise<unknown>): Promise<string[]> => {
    const before = kernel.commands.length;
    await work();
    return kernel.commands.slice(before);
  };
  /** Loses the attachment's record alone. */
  const lose = (network: PodNetwork) => store.remove(network.attachment);
  return { kernel, dataplane: await start(), restarted: start, lose, rules, commands, lines };
}

/** Detaches like a caller that does not know the pod's namespace. */
const detachUnnamed = (dataplane: PodWiring, { attachment, hostInterfaceName }: PodNetwork) =>
  dataplane.detach({ attachment, hostInterfaceName }, never());
const attach = (dataplane: PodWiring, ...networks: readonly PodNetwork[]) =>
  networks.reduce(async (done, network) => {
    await done;
    await dataplane.attach(network, never());
  }, Promise.resolve());
const check = async (dataplane: PodWiring, network: PodNetwork) =>
  (await dataplane.check(network, never())).map(({ object, actual }) => `${object}: ${actual}`);

describe('attach', () => {
  test('gives a pod’s first interface no rules, and each later one a rule for each of its addresses', async () => {
    const { dataplane, rules } = await node();
    await attach(dataplane, first);
    expect(rules()).toEqual([]);
    await attach(dataplane, second);
    expect(rules()).toEqual(RULES);
    expect([await check(dataplane, first), await check(dataplane, second)]).toEqual([[], []]);
  });

  test('plans a further interface directly when the first is known; a second attach changes nothing', async () => {
    const { dataplane, commands } = await node();
    await attach(dataplane, first);
    const made = await commands(() => attach(dataplane, second));
    expect(made.filter((command) => command.includes('->'))).toEqual([]);
    expect(await commands(() => attach(dataplane, second))).toEqual([]);
  });

  test.each(['IPv4', 'IPv6'] as const)(
    'gives them also when the interfaces of %s lead to different networks',
    async (family) => {
      const { dataplane, rules } = await node();
      const destination = family === 'IPv4' ? address('10.66.0.0') : address('fd66::');
      const length = family === 'IPv4' ? 16 : 64;
      const own = second.addresses.filter((each) => each.family === destination.family);
      const apart = { ...second, addresses: own, routes: [{ ...destination, length }] };
      await attach(dataplane, { ...first, ...BY_FAMILY[family] }, apart);
      expect(rules()).toEqual(RULES.filter((rule) => rule.includes(' fd') === (family === 'IPv6')));
      expect(await check(dataplane, apart)).toEqual([]);
    },
  );

  test('detects the first interface without its record', async () => {
    const { kernel, dataplane, rules } = await node();
    await attach(dataplane, first);
    const { log } = recordingLog();
    const forgetful = new PodWiring({ kernel, registry: testRegistry(), events: new Events(log) });
    await attach(forgetful, second);
    expect(rules()).toEqual(RULES);
  });

  test('keeps the workload’s own rules', async () => {
    const { kernel, dataplane } = await node();
    const own = { source: '10.66.0.7/32', table: 100, priority: 32_765, protocol: 3 };
    kernel.namespace(NETNS).addRule(own);
    await attach(dataplane, first, second);
    await dataplane.detach(second, never());
    expect(kernel.namespace(NETNS).rules).toEqual([own]);
  });

  test('that fails at any step leaves nothing', async () => {
    const { kernel, dataplane, commands } = await node();
    await attach(dataplane, first);
    const before = kernel.print();
    const steps = await commands(() => attach(dataplane, second));
    await dataplane.detach(second, never());
    expect(kernel.print()).toBe(before);
    const results: string[] = [];
    for (let after = 0; after < steps.length; after++) {
      kernel.failNext('any step', { after });
      const optional = steps[after]?.includes('sysctl') ?? false;
      const failed = await dataplane.attach(second, never()).then(
        () => false,
        () => true,
      );
      if (!failed) await dataplane.detach(second, never());
      expect(failed || optional, steps[after]).toBe(true);
      results.push(kernel.print());
    }
    expect(steps.filter((step) => step.includes('rule add'))).toHaveLength(2);
    expect(results).toEqual(steps.map(() => before));
  });
});

describe('a deleted rule', () => {
  test('is reported by a check, and restored by a repair and by the full check', async () => {
    const { kernel, dataplane, rules } = await node();
    await attach(dataplane, first, second);
    const [rule] = kernel.namespace(NETNS).rules;
    const looks = [
      () => dataplane.repair(second, never()),
      () => dataplane.repairRecorded(second.attachment, never()),
      () => dataplane.attach(second, never()),
    ];
    for (const look of looks) {
      kernel.namespace(NETNS).deleteRule(rule!);
      expect(await check(dataplane, second)).toEqual([
        `pod rule from 10.66.0.7 lookup ${tableOf('net1')} priority 30087 protocol 87: missing`,
      ]);
      await look();
      expect(rules()).toEqual(RULES);
    }
  });

  test('follows the addresses', async () => {
    const { dataplane, rules } = await node();
    await attach(dataplane, first, second);
    await attach(dataplane, { ...second, addresses: [address('10.66.0.9')] });
    expect(rules()).toEqual([RULES[0]?.replace('0.7', '0.9')]);
  });
});

describe('detach', () => {
  test.each([
    ['while the first interface stays', [second]],
    ['behind the first interface', [first, second]],
  ])('removes the rules from a pod that keeps running, %s', async (_, detached) => {
    const { kernel, dataplane } = await node();
    const before = kernel.print();
    await attach(dataplane, first, second);
    for (const network of detached) await dataplane.detach(network, never());
    if (!detached.includes(first)) await dataplane.detach(first, never());
    expect(kernel.print()).toBe(before);
  });

  test('removes them after a restart, before any check', async () => {
    const { dataplane, restarted, rules } = await node();
    await attach(dataplane, first, second);
    await (await restarted()).detach(second, never());
    expect(rules()).toEqual([]);
  });

  test('does not read the rules of a pod with one interface', async () => {
    const { kernel, dataplane } = await node();
    await attach(dataplane, first);
    kernel.failNext('open');
    kernel.failNext('rule-list');
    expect(await dataplane.detach(first, never())).toBe(true);
    // No rules were read so far; the next call reads them.
    expect(kernel.unusedFaults).toBe(2);
    await expect(kernel.open(NETNS)).rejects.toThrow();
    const session = await kernel.open(NETNS);
    await expect(session.rules(tableOf('eth0'))).rejects.toThrow();
    await session.close();
  });

  test('works without the namespace, and changes nothing in one that replaced it', async () => {
    const { kernel, dataplane } = await node();
    await attach(dataplane, first, second);
    kernel.removeNamespace(NETNS);
    expect(await dataplane.detach(first, never())).toBe(false);
    const foreign = { source: '10.66.0.7/32', table: tableOf('net1'), priority: 30_087, protocol: 87 };
    kernel.addNamespace(NETNS).addRule(foreign);
    expect(await dataplane.detach(second, never())).toBe(false);
    expect(kernel.namespace(NETNS).rules).toEqual([foreign]);
  });

  test.each(['rule-list', 'rule-delete'] as const)(
    'continues when the kernel refuses (%s), and logs the remaining rules',
    async (operation) => {
      const { kernel, dataplane, rules, lines } = await node();
      await attach(dataplane, first, second);
      kernel.failNext(operation);
      expect(await dataplane.detach(second, never())).toBe(true);
      expect(rules()).toEqual(RULES);
      expect(lines.map(({ msg }) => msg)).toContain(
        'source routing rules of interface net1 could not be removed from the pod',
      );
      // The next interface of that name reuses or removes them.
      await attach(dataplane, { ...second, addresses: [address('10.66.0.9')] });
      expect(rules()).toEqual([RULES[0]?.replace('0.7', '0.9')]);
    },
  );
});

describe('where namespaces have no cookies (before Linux 5.14)', () => {
  async function old() {
    const made = await node();
    made.kernel.reportsCookies = false;
    return made;
  }

  test('a later interface of IPv6 also has rules, even on another network', async () => {
    const { dataplane, rules } = await old();
    const apart = { ...second, addresses: [address('fd66::7')], routes: [{ ...address('fd66::'), length: 64 }] };
    await attach(dataplane, { ...first, ...BY_FAMILY.IPv6 }, apart);
    expect(rules()).toEqual([RULES[1]]);
  });

  test('rules are removed after the interface, and none in a namespace that replaced the pod’s', async () => {
    const { kernel, dataplane, rules } = await old();
    await attach(dataplane, first);
    const before = kernel.print();
    await attach(dataplane, second);
    await dataplane.detach(second, never());
    expect([rules(), kernel.print()]).toEqual([[], before]);
    await attach(dataplane, second);
    kernel.removeNamespace(NETNS);
    const other = kernel.addNamespace(NETNS);
    other.addLink({ name: 'net1', mac: '02:00:00:00:00:09', mtuBytes: 1500 }, 'veth');
    const foreign = { source: '10.66.0.7/32', table: tableOf('net1'), priority: 30_087, protocol: 87 };
    other.addRule(foreign);
    await dataplane.detach(second, never());
    expect(other.rules).toEqual([foreign]);
  });
});

describe('rules of an interface whose record was lost', () => {
  const look = (dataplane: PodWiring) => dataplane.repairRecorded(first.attachment, never());

  async function lost() {
    const made = await node();
    await attach(made.dataplane, first);
    const before = made.kernel.print();
    await attach(made.dataplane, second);
    await made.lose(second);
    return { ...made, before, later: await made.restarted() };
  }

  test('stay while the interface exists, and are removed by the next check of another one', async () => {
    const { kernel, later, rules, before, commands, lines } = await lost();
    expect(await commands(() => look(later))).toEqual([]);
    await detachUnnamed(later, second);
    expect(rules()).toEqual(RULES);
    expect(await look(later)).toEqual({ outcome: 'matches', differences: [] });
    expect(kernel.print()).toBe(before);
    expect(lines.at(-1)).toMatchObject({
      msg: 'removed 2 source routing rules of a deleted interface from the pod',
      rules: RULES.map((rule) => rule.replace(`${NETNS}: rule `, '')),
    });
    expect(await commands(() => look(later))).toEqual([]);
  });

  test('stay while routes use their table; the workload’s own always stay', async () => {
    const { kernel, later, rules } = await lost();
    await detachUnnamed(later, second);
    const pod = kernel.namespace(NETNS);
    const table = tableOf('net1');
    const foreign = [
      { source: '10.66.0.7/32', table: tableOf('net2'), priority: 30_088, protocol: 87 },
      { source: '10.66.0.7/32', table: tableOf('net3'), priority: 30_087, protocol: 3 },
      { source: '10.66.0.7/32', table: 100, priority: 30_087, protocol: 87 },
    ];
    for (const rule of foreign) pod.addRule(rule);
    const way = { destination: '0.0.0.0/0', device: 'eth0', gateway: undefined, metric: 0, scope: 'link' } as const;
    pod.addRoute({ ...way, protocol: 3, table });
    await look(later);
    expect(rules()).toEqual(expect.arrayContaining(RULES));
    expect(pod.rules).toHaveLength(5);
    pod.deleteRoute({ ...way, protocol: 3, table });
    await look(later);
    expect(pod.rules).toEqual(foreign);
  });

  test('are not orphans while the interface is recorded, even when its wire was cut', async () => {
    const { kernel, dataplane, rules, commands } = await node();
    await attach(dataplane, first, second);
    kernel.host.removeLink(kernel.host.find(second.hostInterfaceName));
    expect(await commands(() => look(dataplane))).toEqual([]);
    expect(rules()).toEqual(RULES);
  });

  test.each(['orphan-list', 'rule-delete'] as const)(
    'that the kernel refuses to remove (%s) are logged, and block no repair',
    async (operation) => {
      const { kernel, later, rules, before, lines } = await lost();
      await detachUnnamed(later, second);
      kernel.host.routes.splice(0, 1);
      kernel.failNext(operation);
      expect(await look(later)).toMatchObject({ outcome: 'matches', differences: [{ actual: 'missing' }] });
      expect(rules()).toEqual(RULES);
      expect(lines.map(({ msg }) => msg)).toContainEqual(expect.stringContaining('retried with the next check'));
      await look(later);
      expect(kernel.print()).toBe(before);
    },
  );
});

describe('rules of a pod without records', () => {
  const detachAt = (dataplane: PodWiring, netns: string) => dataplane.detach({ ...second, netns }, never());

  async function lost() {
    const made = await node();
    await attach(made.dataplane, first, second);
    for (const network of [first, second]) await made.lose(network);
    return { ...made, later: await made.restarted() };
  }

  test('are removed by a detach that names the namespace, also at a retry, and only rules of its interface', async () => {
    const { later, kernel, rules, lines } = await lost();
    const pod = kernel.namespace(NETNS);
    const foreign = [
      { source: '10.67.0.7/32', table: tableOf('net2'), priority: 30_087, protocol: 87 },
      { source: '10.66.0.7/32', table: tableOf('net1'), priority: 30_087, protocol: 3 },
    ];
    for (const rule of foreign) pod.addRule(rule);
    await detachUnnamed(later, second);
    expect(rules()).toEqual(expect.arrayContaining(RULES));
    expect(await detachAt(later, NETNS)).toBe(false);
    expect(pod.rules).toEqual(foreign);
    expect(pod.has('eth0')).toBe(true);
    expect(lines.at(-2)).toMatchObject({ rules: RULES.map((rule) => rule.replace(`${NETNS}: rule `, '')) });
  });

  test.each(['/run/netns/gone', '/proc/self/ns/net'])('block no detach at %s', async (netns) => {
    const { later, rules, lines } = await lost();
    expect(await detachAt(later, netns)).toBe(true);
    expect(rules()).toEqual(RULES);
    expect(lines.filter(({ level }) => level === 'warn')).toEqual([]);
  });

  test.each([
    ['another pod’s that is recorded', false],
    ['another pod’s whose record was lost', true],
  ])('are not removed from a namespace in use: %s', async (_, isLost) => {
    const { kernel, dataplane, lose, restarted } = await node();
    kernel.addNamespace('/run/netns/b');
    const other = { ...secondInterface('b'), addresses: [address('10.66.0.9')], hostInterfaceName: 'podwother' };
    await attach(dataplane, podNetwork('b'), other);
    if (isLost) await lose(other);
    else kernel.host.removeLink(kernel.host.find(other.hostInterfaceName));
    const before = kernel.print();
    expect(await detachAt(await restarted(), '/run/netns/b')).toBe(false);
    expect(kernel.print()).toBe(before);
    expect(kernel.namespace('/run/netns/b').rules).toHaveLength(1);
  });

  test('stay while routes use their table', async () => {
    const { later, kernel, rules } = await lost();
    const way = { device: 'eth0', gateway: undefined, metric: 0, scope: 'link' } as const;
    kernel.namespace(NETNS).addRoute({ ...way, destination: '10.9.0.0/16', protocol: 3, table: tableOf('net1') });
    expect(await detachAt(later, NETNS)).toBe(true);
    expect(rules()).toEqual(RULES);
  });

  test.each(['orphan-list', 'rule-delete'] as const)(
    'that the kernel refuses to remove (%s) are logged, and the pod is detached',
    async (operation) => {
      const { later, kernel, rules, lines } = await lost();
      kernel.failNext(operation);
      expect(await detachAt(later, NETNS)).toBe(true);
      expect(rules()).toEqual(RULES);
      expect(lines.map(({ msg }) => msg)).toContain(
        'source routing rules of interface net1 could not be removed from the pod',
      );
      await detachAt(later, NETNS);
      expect(rules()).toEqual([]);
    },
  );

  test('are not read when a record has the namespace, or the caller names none', async () => {
    const { kernel, dataplane } = await node();
    await attach(dataplane, first);
    kernel.failNext('orphan-list');
    expect(await dataplane.detach(first, never())).toBe(true);
    expect(await detachUnnamed(dataplane, first)).toBe(false);
    expect(kernel.unusedFaults).toBe(1);
    await dataplane.detach(first, never());
  });
});
