import { execFileSync } from 'node:child_process';

import { describe, expect, it } from 'vitest';

import type { Namespace, NftSet, NftTransaction, TableMonitorOptions } from '../lib/index.js';
import { failureOf, makePod, open, run } from './ip.js';

const OURS = { family: 'inet', table: 'podwire' } as const;
const NAMES: NftSet = { ...OURS, name: 'names', key: ['ifname'] };
const RULES = 'add table inet podwire; add set inet podwire names { type ifname; }';

async function makeTable(): Promise<{ pod: string; inside: Namespace }> {
  const { name, path } = makePod();
  nft(name, RULES);
  return { pod: name, inside: await open(path) };
}

function nft(pod: string, commands: string): void {
  run('ip', 'netns', 'exec', pod, 'nft', commands);
}

/** The next event, which must be a transaction. */
async function nextOf(events: AsyncIterator<NftTransaction | { readonly object: 'overrun' }>): Promise<NftTransaction> {
  const { value, done } = await events.next();
  if (done === true || value.object !== 'transaction') throw new Error(`no transaction but ${JSON.stringify(value)}`);
  return value;
}

describe('monitorTables', () => {
  it('receives own transactions with the generation that their result has', async () => {
    const { inside } = await makeTable();
    const monitor = await inside.monitorTables({ tables: [OURS] });
    const { generation } = await inside.changeElements([
      { type: 'elements.add', set: NAMES, elements: [{ key: ['podw0'] }, { key: ['podw1'] }] },
    ]);
    const transaction = await nextOf(monitor[Symbol.asyncIterator]());
    expect(transaction).toMatchObject({ generation, changes: [{ ...OURS, kinds: ['elements.add'] }] });
    expect(transaction.threadId).toBeGreaterThan(0);
    expect(await inside.generation()).toBe(generation);
    monitor.close();
  });

  it.each([
    ['flush ruleset', ['table.delete', 'set.delete']],
    ['delete table inet podwire', ['table.delete', 'set.delete']],
    ['flush set inet podwire names', ['elements.delete']],
    ['add chain inet podwire c; add rule inet podwire c drop', ['chain.add', 'rule.add']],
  ])('receives `nft %s` with the name of the program', async (command, kinds) => {
    const { pod, inside } = await makeTable();
    nft(pod, 'add element inet podwire names { a }');
    const monitor = await inside.monitorTables({ tables: [{ family: 'ip', table: 'podwire' }, OURS] });
    nft(pod, command);
    expect(await nextOf(monitor[Symbol.asyncIterator]())).toMatchObject({
      processName: 'nft',
      generation: await inside.generation(),
      changes: [{ ...OURS, kinds }],
    });
    monitor.close();
  });

  it('leaves out transactions of other tables, also of other families', async () => {
    const { pod, inside } = await makeTable();
    const monitor = await inside.monitorTables({ tables: [OURS] });
    nft(pod, 'add table ip podwire');
    nft(pod, 'add table inet other');
    nft(pod, 'add table inet other2; add element inet podwire names { a }');
    const transaction = await nextOf(monitor[Symbol.asyncIterator]());
    expect(transaction.changes).toEqual([{ ...OURS, kinds: ['elements.add'] }]);
    monitor.close();
  });

  it('reports an overrun when the process was too busy to read, and continues', async () => {
    const { pod, inside } = await makeTable();
    const monitor = await inside.monitorTables({ tables: [OURS] });
    const names = Array.from({ length: 30_000 }, (_, n) => `podw${n}`);
    const round = `add element inet podwire names { ${names.join(', ')} }\nflush set inet podwire names\n`;
    // The event loop is blocked meanwhile.
    for (let n = 0; n < 5; n += 1) execFileSync('ip', ['netns', 'exec', pod, 'nft', '-f', '-'], { input: round });
    const seen: string[] = [];
    for await (const event of monitor) {
      seen.push(event.object);
      // After the report the queue is empty, and the kernel adds new events.
      if (event.object === 'overrun') nft(pod, 'flush ruleset');
      if (event.object === 'transaction' && event.changes[0]?.kinds.includes('table.delete')) break;
    }
    expect(seen.slice(-2)).toEqual(['overrun', 'transaction']);
  });

  it.each<[string, TableMonitorOptions, string]>([
    ['no table', { tables: [] }, 'options.tables'],
    ['an empty name', { tables: [{ family: 'ip', table: '' }] }, 'options.tables[0].table'],
    ['a long wait', { tables: [OURS], gatherMs: 1001 }, 'options.gatherMs'],
  ])('refuses %s', async (_, options, path) => {
    const inside = await open(makePod().path);
    expect(await failureOf(inside.monitorTables(options))).toMatchObject({ name: 'ArgumentError', path });
  });
});
