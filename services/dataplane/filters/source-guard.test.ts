import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, test } from 'vitest';

import { MemoryNft } from '../testing/memory-nft.js';
import { reconcilerOptions, prefix, until } from '../testing/nft.js';
import { address } from '../testing/pods.js';
import { GUARD_TABLE, guardTable, SourceGuard } from './source-guard.js';
import { CHECK_INTERVAL_MS } from '../nft/table-reconciler.js';
import { objectsOf, removal, type ElementsChange, type NftCommand, type TableName } from '../nft/table.js';
import { formOf } from '../nft/table-form.js';

function start() {
  const { options, ...rest } = reconcilerOptions(new MemoryNft());
  return { ...rest, guard: new SourceGuard(options) };
}

const pod = (hostInterfaceName: string, prefixes: readonly string[] = []) => ({
  hostInterfaceName,
  addresses: [address('10.7.0.9')],
  sourcePrefixes: prefixes.map(prefix),
});

const IPV6_POD = { ...pod('podwipv6'), addresses: [address('10.7.0.8'), address('fd07::8')] };

const shown = async (nft: MemoryNft) => formOf((await nft.read(GUARD_TABLE))!);
const wanted = (prefixes: Readonly<Record<string, readonly string[]>>) => wantedOf(new Map(Object.entries(prefixes)));
const wantedOf = (prefixes: ReadonlyMap<string, readonly string[]>) =>
  formOf(objectsOf(guardTable(new Map([...prefixes].map(([name, list]) => [name, list.map(prefix)])))));

/** Nftables that hold each transaction until the test releases it. */
class SlowNft extends MemoryNft {
  isSlow = false;
  /** Waiting transactions. */
  readonly waiting: (() => void)[] = [];

  override async apply(commands: readonly NftCommand[]): Promise<void> {
    await this.#released();
    await super.apply(commands);
  }

  override async changeElements(table: TableName, changes: readonly ElementsChange[]): Promise<number | undefined> {
    await this.#released();
    return super.changeElements(table, changes);
  }

  async #released(): Promise<void> {
    if (this.isSlow) await new Promise<void>((resolve) => this.waiting.push(resolve));
  }
}

const isDone = (work: Promise<void>) =>
  Promise.race([work.then(() => true), new Promise<false>((resolve) => setTimeout(() => resolve(false), 20))]);

describe('one pod and another', () => {
  test('a pod with IPv6 addresses does not wait for the prefixes of another', async () => {
    const { options, nft } = reconcilerOptions(new SlowNft());
    const guard = new SourceGuard(options);
    await guard.start(new Map());
    nft.isSlow = true;
    const setting = guard.install(pod('podwa', ['fd01::/64']));
    await until(() => nft.waiting.length === 1);
    expect(await isDone(guard.install(IPV6_POD))).toBe(true);
    expect(await isDone(setting)).toBe(false);
    for (const go of nft.waiting) go();
    await setting;
    await guard.stop();
  });

  test('a pod with IPv6 addresses waits while the table is missing', async () => {
    const { options, nft, clock } = reconcilerOptions(new SlowNft());
    const guard = new SourceGuard(options);
    await guard.start(new Map());
    await nft.apply(removal(GUARD_TABLE));
    nft.isSlow = true;
    clock.advance(CHECK_INTERVAL_MS);
    await until(() => nft.waiting.length === 1);
    const ready = guard.install(IPV6_POD);
    expect(await isDone(ready)).toBe(false);
    for (const go of nft.waiting) go();
    await ready;
    expect(await shown(nft)).toEqual(wanted({}));
    await guard.stop();
  });
});

describe('the guard', () => {
  test('is in force before the first pod, with the prefixes of existing pods', async () => {
    const { guard, nft } = start();
    await guard.start(
      new Map([
        ['podwa', [prefix('fd01::/64')]],
        ['podwb', []],
        ['cali1', []],
      ]),
    );
    expect(await shown(nft)).toEqual(wanted({ podwa: ['fd01::/64'], cali1: [] }));
    const runs = nft.reads + nft.transactions;
    await guard.install(IPV6_POD);
    expect(nft.reads + nft.transactions).toBe(runs);
    await guard.stop();
  });

  test('does not run nft for a pod without source prefixes', async () => {
    const { guard, nft } = start();
    await guard.start(new Map());
    const runs = nft.reads + nft.transactions;
    await guard.install(pod('podwa'));
    await guard.forget('podwa');
    expect(nft.reads + nft.transactions).toBe(runs);
    await guard.stop();
  });

  test('adds, changes and removes prefixes with one transaction each', async () => {
    const { guard, nft } = start();
    await guard.start(new Map());
    const steps: readonly (readonly [string, readonly string[] | undefined])[] = [
      ['podwa', ['10.9.0.0/16', 'fd01::/64']],
      ['podwb', ['10.9.0.0/16']],
      ['podwa', ['10.0.0.0/8', 'fd01::/64', 'fd02::/64']],
      ['podwa', ['10.0.0.0/8', 'fd01::/64', 'fd02::/64']],
      ['podwb', []],
      ['cali1', ['10.8.0.0/16']],
      ['cali2', []],
      ['cali1', []],
      ['podwa', undefined],
      ['cali1', undefined],
    ];
    const state = new Map<string, readonly string[]>();
    const costs: number[] = [];
    for (const [device, list] of steps) {
      const [reads, transactions] = [nft.reads, nft.transactions + nft.elementChanges];
      await (list ? guard.install(pod(device, list)) : guard.forget(device));
      expect(nft.reads).toBe(reads);
      costs.push(nft.transactions + nft.elementChanges - transactions);
      if (list) state.set(device, list);
      else state.delete(device);
      expect(await shown(nft)).toEqual(wantedOf(state));
    }
    expect(costs).toEqual([1, 1, 1, 0, 1, 1, 1, 1, 1, 1]);
    await guard.stop();
  });

  test('merges nested prefixes, which the kernel would refuse', async () => {
    const { guard, nft } = start();
    await guard.start(new Map());
    await guard.install(pod('podwa', ['10.1.0.0/16', '10.0.0.0/8', '10.0.0.0/8']));
    expect(await shown(nft)).toEqual(wanted({ podwa: ['10.0.0.0/8'] }));
    await guard.stop();
  });

  test('that fails is a condition, and pods that need it are refused', async () => {
    const { guard, nft } = start();
    nft.failNext('read', new Failure('KERNEL_UNSUPPORTED', 'no nft here'));
    await expect(guard.start(new Map())).rejects.toMatchObject({ code: 'KERNEL_UNSUPPORTED' });
    expect(guard.conditions()).toEqual([
      { reason: 'SourceGuardUnavailable', blockedFamilies: [6], message: expect.stringContaining('no nft here') },
    ]);
    nft.failNext('read', new Failure('KERNEL_UNSUPPORTED', 'no nft here'));
    await expect(guard.install(IPV6_POD)).rejects.toMatchObject({ code: 'KERNEL_UNSUPPORTED' });
    await guard.install(IPV6_POD);
    expect(guard.conditions()).toEqual([]);
    expect(nft.unusedFaults).toBe(0);
    await guard.stop();
  });
});
