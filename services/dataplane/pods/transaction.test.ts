import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, test } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { address, BY_FAMILY, podNetwork } from '../testing/pods.js';
import { corrections, diff } from '../wiring/diff.js';
import { wantedState } from '../wiring/network.js';
import { formatStep, type Step } from '../wiring/step.js';
import { emptyObservation } from '../wiring/wire.js';
import type { PodSession } from './kernel.js';
import { transact, type NotApplied, type Result } from './transaction.js';

const NETNS = '/run/netns/a';
const network = podNetwork('a');
const wanted = wantedState(network);
const fresh = diff(wanted, emptyObservation(new Map([['net/ipv4/ip_forward', '1']])));
const never = new AbortController().signal;

async function node(): Promise<{ kernel: MemoryKernel; session: PodSession }> {
  const kernel = new MemoryKernel();
  kernel.addNamespace(NETNS).sysctls.set('net/ipv4/ip_forward', '1');
  return { kernel, session: await kernel.open(NETNS) };
}

interface ApplyOptions {
  readonly steps?: readonly Step[];
  readonly signal?: AbortSignal;
  /** Steps in place of the links' own. */
  readonly later?: readonly Step[];
}

const apply = (session: PodSession, { steps = fresh, signal = never, later }: ApplyOptions = {}): Promise<Result> =>
  transact({
    session,
    signal,
    next: ({ round, links }) => (round === 0 ? steps : (later ?? corrections(wanted, links))),
  });

function notApplied(result: Result): NotApplied {
  if (result.applied) throw new Error('it was applied');
  return result;
}

describe('a plan that succeeds', () => {
  test('returns its changes and the final links', async () => {
    const { session } = await node();
    const result = await apply(session);
    expect(result).toMatchObject({ applied: true, changes: fresh.length, warnings: [] });
    expect(result).toMatchObject({
      links: { host: { name: network.hostInterfaceName, up: true }, pod: { name: 'eth0' } },
    });
  });

  test('sets a MAC address again that the kernel ignored at creation', async () => {
    const { kernel, session } = await node();
    kernel.ignoresMacAtCreation = true;
    const result = await apply(session);
    expect(result).toMatchObject({ applied: true, links: { host: { mac: 'ee:ee:ee:ee:ee:ee' } } });
    // A link loses its neighbour entries with its MAC address.
    expect(kernel.commands.slice(-2)).toEqual([
      `ip link set ${network.hostInterfaceName} address ee:ee:ee:ee:ee:ee`,
      `ip neighbour replace 10.65.0.7 dev ${network.hostInterfaceName} lladdr ${network.mac} nud permanent`,
    ]);
  });

  test('sets the pod’s MAC address again as well, and the neighbours that go with it', async () => {
    const { kernel, session } = await node();
    const dual = wantedState(podNetwork('a', BY_FAMILY['both families']));
    await apply(session, { steps: diff(dual, await session.observe(dual)), later: [] });
    const { pod } = await session.observe(dual);
    const steps = corrections(dual, { pod: { ...pod.link!, mac: '02:00:00:00:00:99' } });
    expect(steps.map(formatStep)).toEqual([
      `ip -n pod link set eth0 address ${network.mac}`,
      'ip -n pod neighbour replace 169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent',
      'ip -n pod neighbour replace fe80::ecee:eeff:feee:eeee dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent',
    ]);
    const namespace = kernel.namespace(NETNS);
    namespace.setLink(namespace.find('eth0'), { mac: '02:00:00:00:00:99' });
    await apply(session, { steps, later: [] });
    expect(diff(dual, await session.observe(dual))).toEqual([]);
  });

  test('continues without an optional step, and reports it', async () => {
    const { kernel, session } = await node();
    const optional = fresh.findIndex((step) => step.type === 'sysctl-write' && step.optional);
    kernel.failNext('any step', { after: optional, errno: 'EROFS' });
    const result = await apply(session);
    expect(result).toMatchObject({ applied: true, changes: fresh.length - 1, warnings: [{ errno: 'EROFS' }] });
    expect(kernel.unusedFaults).toBe(0);
  });
});

describe('a plan that fails', () => {
  const required = fresh.flatMap((step, position) => (step.type === 'sysctl-write' && step.optional ? [] : [position]));

  test.each(required)('at step %i leaves nothing', async (position) => {
    const { kernel, session } = await node();
    const before = kernel.print();
    kernel.failNext('any step', { after: position, errno: 'ENOBUFS' });
    const result = notApplied(await apply(session));
    expect(result).toMatchObject({ isRolledBack: true, errno: 'ENOBUFS', failure: { code: 'KERNEL_REFUSED' } });
    expect(kernel.unusedFaults).toBe(0);
    expect(kernel.print()).toBe(before);
  });

  const repaired = podNetwork('a', {
    mac: '02:00:00:00:00:99',
    mtuBytes: 1400,
    ipForwarding: true,
    addresses: [address('10.65.0.8')],
  });

  test('at any step of a repair restores the state before', async () => {
    const steps = 11;
    const outcomes = [];
    for (let position = 0; position <= steps; position++) {
      const { kernel, session } = await node();
      await apply(session);
      const before = kernel.print();
      kernel.failNext('any step', { after: position });
      const plan = diff(wantedState(repaired), await session.observe(wantedState(repaired)));
      expect(plan).toHaveLength(steps);
      const result = await apply(session, { steps: plan, later: [] });
      outcomes.push({ applied: result.applied, asBefore: kernel.print() === before, unused: kernel.unusedFaults });
    }
    const rolledBack = { applied: false, asBefore: true, unused: 0 };
    expect(outcomes).toEqual([
      ...Array<typeof rolledBack>(steps).fill(rolledBack),
      { applied: true, asBefore: false, unused: 1 },
    ]);
  });

  test('and whose rollback fails reports the remaining changes, and reverts the rest', async () => {
    const { kernel, session } = await node();
    kernel.failNext('route-add', { after: 2 });
    kernel.failNext('link-delete', { errno: 'EBUSY' });
    const result = notApplied(await apply(session));
    expect(result.isRolledBack).toBe(false);
    expect(result.failure.message).toContain(
      `revert these changes manually: ip link delete ${network.hostInterfaceName} (`,
    );
    expect(result.failure.message).toContain('EBUSY');
    expect(result.failure.details).toMatchObject({ undone: 'false', errno: 'EIO' });
    expect(kernel.namespace(NETNS).sysctls.get('net/ipv4/ip_forward')).toBe('1');
    expect(kernel.unusedFaults).toBe(0);
  });

  test('is rolled back when an object to delete has already vanished', async () => {
    const { kernel, session } = await node();
    kernel.failNext('route-add', { after: 2 });
    kernel.failNext('link-delete', { errno: 'ENODEV' });
    expect(await apply(session)).toMatchObject({ applied: false, isRolledBack: true });
    expect(kernel.unusedFaults).toBe(0);
  });

  test('is rolled back when the link to restore has already vanished', async () => {
    const { kernel, session } = await node();
    await apply(session);
    kernel.host.removeLink(kernel.host.find(network.hostInterfaceName));
    const [change, previous] = [{ up: true }, { up: false }];
    const name = network.hostInterfaceName;
    const result = notApplied(
      await apply(session, { steps: [{ type: 'link-set', side: 'host', name, change, previous }] }),
    );
    expect(result).toMatchObject({ errno: 'ENODEV', isRolledBack: true });
    expect(result.failure.message).not.toContain('by hand');
  });

  test('restores the attributes of a link that were set before the refused one', async () => {
    const { kernel, session } = await node();
    await apply(session);
    const before = kernel.print();
    const change = { mac: '02:00:00:00:00:99', mtuBytes: 70_000 };
    const previous = { mac: network.mac, mtuBytes: 1500 };
    const neighbour = { device: 'eth0', address: '169.254.1.1', mac: 'ee:ee:ee:ee:ee:ee' };
    const result = await apply(session, {
      steps: [
        { type: 'neighbour-delete', side: 'pod', neighbour },
        { type: 'link-set', side: 'pod', name: 'eth0', change, previous },
      ],
    });
    expect(result).toMatchObject({ applied: false, errno: 'EINVAL', isRolledBack: true });
    expect(kernel.print()).toBe(before);
  });

  test('because of the signal is rolled back too', async () => {
    const { kernel, session } = await node();
    const before = kernel.print();
    const ending = new AbortController();
    const pause = kernel.pauseBefore('sysctl-write');
    const applying = apply(session, { signal: ending.signal });
    await pause.reached;
    ending.abort(new Failure('DEADLINE_EXCEEDED', 'too late'));
    pause.release();
    expect(await applying).toMatchObject({
      applied: false,
      isRolledBack: true,
      failure: { code: 'DEADLINE_EXCEEDED' },
    });
    expect(kernel.print()).toBe(before);
  });

  test('because the kernel ignores a setting names it', async () => {
    const { kernel, session } = await node();
    const before = kernel.print();
    const result = notApplied(await apply(session, { later: fresh.slice(1, 2) }));
    expect(result.failure).toMatchObject({ code: 'KERNEL_REFUSED' });
    expect(result.failure.message).toContain(`ip link set ${network.hostInterfaceName}`);
    expect(kernel.print()).toBe(before);
  });

  test('because of a defect is rolled back, and the defect is thrown', async () => {
    const { kernel, session } = await node();
    const before = kernel.print();
    let calls = 0;
    const broken: PodSession = {
      identity: session.identity,
      observe: (all) => session.observe(all),
      podLink: (name) => session.podLink(name),
      rules: (table) => session.rules(table),
      orphanRules: () => session.orphanRules(),
      apply: (steps) => (calls++ === 1 ? Promise.reject(new TypeError('defect')) : session.apply(steps)),
      close: () => session.close(),
    };
    await expect(apply(broken, { later: fresh.slice(1, 2) })).rejects.toThrow('defect');
    expect(kernel.print()).toBe(before);
  });
});
