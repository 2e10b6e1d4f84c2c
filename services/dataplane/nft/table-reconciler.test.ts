import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, test } from 'vitest';

import { MemoryNft } from '../testing/memory-nft.js';
import { reconcilerOptions, until } from '../testing/nft.js';
import { NO_VERDICT_DETAIL } from './nft.js';
import { CHECK_INTERVAL_MS, TableReconciler } from './table-reconciler.js';
import { replacement, type Json, type JsonObject, type NftCommand, type NftTable } from './table.js';

const NAME = { family: 'inet', name: 'podwire' } as const;

function table(...elements: readonly string[]): NftTable {
  return {
    ...NAME,
    sets: [{ name: 'links', type: 'ifname', interval: false, elements }],
    chains: [{ name: 'c', hook: undefined, rules: [[{ drop: null }]] }],
  };
}

function element(verb: 'add' | 'delete', name: Json): NftCommand {
  const object = { element: { ...NAME, table: NAME.name, name: 'links', elem: [name] } };
  return verb === 'add' ? { add: object } : { delete: object };
}

/** Deletes a table as another program does. */
const DELETION: readonly NftCommand[] = [{ delete: { table: NAME } }];

const refused = (message: string) => new Failure('KERNEL_REFUSED', message);

const start = () => startOn(new MemoryNft());

function startOn<Kind extends MemoryNft>(nft: Kind, random = () => 0.5) {
  const { options, ...rest } = reconcilerOptions(nft);
  return { ...rest, reconciler: new TableReconciler({ ...options, random, table: NAME }) };
}

describe('a table that is wanted', () => {
  test('is written when it is missing, and nft does not run again', async () => {
    const { reconciler, nft, events } = start();
    await reconciler.setWanted(table('a'));
    expect(events.takeLines()).toEqual(['inet podwire written: found']);
    const runs = nft.reads + nft.transactions;
    await reconciler.setWanted(table('a'));
    expect(nft.reads + nft.transactions).toBe(runs);
    await reconciler.stop();
  });

  test('is not written when it exists already', async () => {
    const { reconciler, nft, events } = start();
    await nft.apply(replacement(table('a')));
    await reconciler.setWanted(table('a'));
    expect([nft.reads, nft.transactions]).toEqual([1, 1]);
    expect(events.takeLines()).toEqual([]);
    await reconciler.stop();
  });

  test('is written when the existing one differs', async () => {
    const { reconciler, nft, events } = start();
    await nft.apply(replacement(table('b', 'c')));
    await reconciler.setWanted(table('a'));
    expect(events.takeLines()).toEqual(['inet podwire written: found']);
    expect(nft.print()).toMatch(/"links": "a"$/);
    await reconciler.stop();
  });

  test('replaces the previous one, and is removed when none is wanted', async () => {
    const { reconciler, nft, events } = start();
    await reconciler.setWanted(table('a'));
    await reconciler.setWanted(table('b'));
    expect(nft.print()).toMatch(/"links": "b"$/);
    await reconciler.setWanted('absent');
    expect(await nft.read(NAME)).toBeUndefined();
    expect(events.takeLines()).toEqual([
      'inet podwire written: found',
      'inet podwire written: wanted',
      'inet podwire written: wanted',
    ]);
    await reconciler.stop();
  });

  test('is reached by its elements alone, without the program, if nothing else differs', async () => {
    const { reconciler, nft, events } = start();
    await reconciler.setWanted(table('a', 'b'));
    const [reads, transactions] = [nft.reads, nft.transactions];
    await reconciler.setWanted(table('b', 'c'));
    expect([nft.reads - reads, nft.transactions - transactions, nft.elementChanges]).toEqual([0, 0, 1]);
    expect(nft.print()).toMatch(/"links": "b", "c"$/);
    expect(events.takeLines()).toEqual(['inet podwire written: found', 'inet podwire written: wanted']);
    await reconciler.stop();
  });

  test('simultaneous changes are combined, and each caller waits for its own', async () => {
    const { reconciler, nft } = start();
    await reconciler.setWanted(table());
    const before = nft.elementChanges;
    const names = Array.from({ length: 50 }, (_, at) => `l${at}`);
    await Promise.all(
      names.map(async (name, at) => {
        await reconciler.setWanted(table(...names.slice(0, at + 1)));
        expect(nft.print()).toContain(`"${name}"`);
      }),
    );
    expect(nft.elementChanges - before).toBeLessThanOrEqual(2);
    await reconciler.stop();
  });

  test('is replaced when its elements cannot be changed, as another program has changed it', async () => {
    const { reconciler, nft, events } = start();
    await reconciler.setWanted(table('a'));
    await nft.apply(DELETION);
    await reconciler.setWanted(table('a', 'b'));
    expect(nft.print()).toMatch(/"links": "a", "b"$/);
    expect(events.takeLines()).toEqual(['inet podwire written: found', 'inet podwire written: drift']);
    await reconciler.stop();
  });
});

describe('a change by another program', () => {
  test.each<readonly [string, readonly NftCommand[]]>([
    ['deleted', DELETION],
    ['emptied', [element('delete', 'a')]],
    ['added to', [{ add: { rule: { ...NAME, table: NAME.name, chain: 'c', expr: [{ accept: null }] } } }]],
  ])('a table that another program has %s is restored at once', async (_, change) => {
    const { reconciler, nft, events, clock } = start();
    await reconciler.setWanted(table('a'));
    const before = nft.print();
    await nft.apply(change);
    expect(nft.print()).not.toBe(before);
    await until(() => events.lines.includes('inet podwire written: drift'));
    expect(nft.print()).toBe(before);
    expect(clock.monotonicMs()).toBe(0);
    await reconciler.stop();
  });

  test('that deletes the table is not compared first: the table is written, and read once to confirm it', async () => {
    const { reconciler, nft, events } = start();
    await reconciler.setWanted(table('a'));
    const { reads } = nft;
    await nft.apply(DELETION);
    await until(() => events.lines.includes('inet podwire written: drift'));
    expect(nft.reads - reads).toBe(1);
    await reconciler.stop();
  });

  test('between a write and its confirmation does not fail the write', async () => {
    class FlushedNft extends MemoryNft {
      flushes = 0;

      override async latestTransaction(): Promise<number> {
        if (this.flushes-- > 0) await this.apply(DELETION);
        return super.latestTransaction();
      }
    }
    const { reconciler, nft } = startOn(new FlushedNft());
    nft.flushes = 2;
    await reconciler.setWanted(table('a'));
    expect(nft.print()).toMatch(/"links": "a"$/);
    await reconciler.stop();
  });

  test('of another table, and own transactions, cause no reading', async () => {
    const { reconciler, nft } = start();
    await reconciler.setWanted(table('a'));
    await reconciler.setWanted(table('a', 'b'));
    const { reads } = nft;
    await nft.apply(replacement({ ...table('x'), name: 'foreign' }));
    for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect(nft.reads).toBe(reads);
    await reconciler.stop();
  });

  test('may be among lost reports: the table is read', async () => {
    const { reconciler, nft } = start();
    await reconciler.setWanted(table('a'));
    const { reads } = nft;
    nft.loseReports();
    await until(() => nft.reads > reads);
    await reconciler.stop();
  });

  test('is found every 15 s while the kernel reports none', async () => {
    const { reconciler, nft, clock, events } = start();
    const unsupported = () => new Failure('KERNEL_UNSUPPORTED', 'no reports');
    nft.failNext('watch', unsupported());
    await reconciler.setWanted(table('a'));
    expect(events.takeLines()).toEqual(['inet podwire written: found']);
    await nft.apply([element('delete', 'a')]);
    nft.failNext('watch', unsupported());
    clock.advance(CHECK_INTERVAL_MS);
    await until(() => events.lines.includes('inet podwire written: drift') && clock.sleeping === 1);
    const { reads } = nft;
    clock.advance(CHECK_INTERVAL_MS);
    await until(() => nft.reads === reads + 1);
    await reconciler.stop();
  });

  test('is reported again after the reports ended', async () => {
    const { reconciler, nft, events } = start();
    await reconciler.setWanted(table('a'));
    const { reads } = nft;
    nft.endWatches();
    await until(() => nft.reads === reads + 1);
    await nft.apply(DELETION);
    await until(() => events.lines.includes('inet podwire written: drift'));
    await reconciler.stop();
  });
});

describe('a failure', () => {
  test('is returned to the caller, reported once, and retried before the next check', async () => {
    const { reconciler, nft, clock, events } = start();
    for (let times = 0; times < 3; times++) nft.failNext('apply', refused('not today'));
    await expect(reconciler.setWanted(table('a'))).rejects.toThrow('not today');
    expect(reconciler.conditions({}, 'open')).toEqual([{ message: 'open: not today' }]);
    const waitsMs: (number | undefined)[] = [];
    for (let attempt = 1; attempt <= 3; attempt++) {
      const before = nft.transactions;
      await until(() => clock.sleeping === 1 && clock.nextMs! < CHECK_INTERVAL_MS);
      waitsMs.push(clock.nextMs);
      clock.advance(clock.nextMs!);
      await until(() => nft.transactions > before);
    }
    await until(() => reconciler.conditions({}, '').length === 0);
    expect(waitsMs).toEqual([1000, 2000, 4000]);
    expect(events.takeLines()).toEqual([
      'inet podwire failed: not today',
      'inet podwire written: found',
      'inet podwire recovered',
    ]);
    expect(nft.unusedFaults).toBe(0);
    await reconciler.stop();
  });

  test('of a check draws one back-off', async () => {
    const draws = [0.75, 0.5, 0.25];
    const { reconciler, nft, clock } = startOn(new MemoryNft(), () => draws.shift() ?? 0);
    for (let times = 0; times < 2; times++) nft.failNext('read', refused('busy'));
    nft.failNext('apply', refused('busy'));
    await expect(reconciler.setWanted(table('a'))).rejects.toThrow('busy');
    expect(clock.nextMs).toBe(1500);
    clock.advance(1500);
    await until(() => draws.length === 1 && clock.sleeping === 1);
    expect(clock.nextMs).toBe(2000);
    await reconciler.stop();
  });

  test('of reading leaves the table unchanged', async () => {
    const { reconciler, nft } = start();
    nft.failNext('read', refused('busy'));
    await expect(reconciler.setWanted(table('a'))).rejects.toThrow('busy');
    expect(nft.transactions).toBe(0);
    await reconciler.stop();
  });

  test('of reading that recurs, as nft cannot print the table, leads to its replacement', async () => {
    const { reconciler, nft, clock, events } = start();
    await nft.apply(replacement(table('b')));
    for (let times = 0; times < 2; times++) nft.failNext('read', refused('unexpected output'));
    await expect(reconciler.setWanted(table('a'))).rejects.toThrow('unexpected output');
    await until(() => clock.sleeping === 1 && clock.nextMs! < CHECK_INTERVAL_MS);
    clock.advance(clock.nextMs!);
    await until(() => reconciler.conditions({}, '').length === 0);
    expect(nft.print()).toMatch(/"links": "a"$/);
    expect(events.takeLines()).toEqual([
      'inet podwire failed: unexpected output',
      'inet podwire written: found',
      'inet podwire recovered',
    ]);
    await reconciler.stop();
  });

  test('of reading that takes too long leads to no write', async () => {
    const { reconciler, nft } = start();
    const slow = new Failure('KERNEL_REFUSED', 'slow', { details: { [NO_VERDICT_DETAIL]: '1' } });
    for (let times = 0; times < 2; times++) {
      nft.failNext('read', slow);
      await expect(reconciler.setWanted(table('a'))).rejects.toThrow('slow');
    }
    expect(nft.transactions).toBe(0);
    await reconciler.stop();
  });

  test('of a change of elements and of the replacement is repaired by the next change', async () => {
    const { reconciler, nft } = start();
    await reconciler.setWanted(table('a'));
    nft.failNext('changeElements', refused('no'));
    nft.failNext('read', refused('no reading either'));
    await expect(reconciler.setWanted(table('a', 'b'))).rejects.toThrow('no reading either');
    await reconciler.setWanted(table('a', 'b', 'c'));
    expect(nft.print()).toMatch(/"links": "a", "b", "c"$/);
    await reconciler.stop();
  });

  test('of a table that is no longer wanted ends when nftables are missing', async () => {
    const { reconciler, nft } = start();
    const missing = new Failure('KERNEL_UNSUPPORTED', 'no nft');
    nft.failNext('read', missing);
    await expect(reconciler.setWanted(table('a'))).rejects.toBe(missing);
    nft.failNext('read', missing);
    await reconciler.setWanted('absent');
    expect(reconciler.conditions({}, '')).toEqual([]);
    await reconciler.stop();
  });

  test('is not reported for missing nftables while no table is wanted', async () => {
    const { reconciler, nft, events } = start();
    nft.failNext('read', new Failure('KERNEL_UNSUPPORTED', 'no nft'));
    await reconciler.setWanted('absent');
    expect(reconciler.conditions({}, '')).toEqual([]);
    expect(events.takeLines()).toEqual([]);
    await reconciler.stop();
  });
});

/** A release of nft that lists rules in another form, or does nothing but reports success. */
class OtherNft extends MemoryNft {
  deaf = false;

  override async read(name: typeof NAME): Promise<readonly JsonObject[] | undefined> {
    const objects = await super.read(name);
    return objects?.map((object) => ('rule' in object ? { rule: { shown: 'otherwise', of: object.rule! } } : object));
  }

  override apply(commands: readonly NftCommand[]): Promise<void> {
    return this.deaf ? Promise.resolve() : super.apply(commands);
  }
}

describe('a release of nft', () => {
  test('that lists rules in another form: the table is written once, and drift is detected', async () => {
    const { reconciler, nft, events } = startOn(new OtherNft());
    await nft.apply(replacement(table('a')));
    await reconciler.setWanted(table('a'));
    const { reads } = nft;
    nft.loseReports();
    await until(() => nft.reads > reads);
    expect(events.takeLines()).toEqual(['inet podwire written: found']);
    await nft.apply([{ add: { rule: { ...NAME, table: NAME.name, chain: 'c', expr: [] } } }]);
    await until(() => events.lines.length > 0);
    expect(events.takeLines()).toEqual(['inet podwire written: drift']);
    await reconciler.stop();
  });

  test('that does nothing and reports success is detected', async () => {
    const { reconciler, nft } = startOn(new OtherNft());
    nft.deaf = true;
    await expect(reconciler.setWanted(table('a'))).rejects.toThrow('lists different content');
    await reconciler.stop();
  });
});

test('stopping waits for the run in flight, and leaves the table', async () => {
  const { reconciler, nft, clock } = start();
  const wanting = reconciler.setWanted(table('a'));
  await reconciler.stop();
  await wanting;
  expect(await nft.read(NAME)).toBeDefined();
  expect(clock.sleeping).toBe(0);
});
