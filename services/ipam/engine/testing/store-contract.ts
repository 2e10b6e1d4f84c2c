import { getEventListeners, setMaxListeners } from 'node:events';

import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { RevisionCompacted, type Comparison, type RevisionChanges, type Store, type Transaction } from '../store.js';

interface StoreUnderTest {
  readonly store: Store;
  /** Makes the store compact the changes so far, at least those older than the newest. */
  readonly forgetChanges: () => Promise<void>;
  /** Releases everything, the store included. */
  readonly dispose: () => Promise<void>;
}

const signal = new AbortController().signal;
setMaxListeners(0, signal);
const text = (value: Uint8Array): string => Buffer.from(value).toString();

function transaction(parts: { puts?: Record<string, string>; deletes?: string[]; if?: Comparison[] }): Transaction {
  const puts = Object.entries(parts.puts ?? {}).map(([key, value]) => ({ key, value: Buffer.from(value) }));
  return { comparisons: parts.if ?? [], puts, deletes: parts.deletes ?? [] };
}

const record = (key: string, modRevision: number): Comparison => ({ type: 'record', key, modRevision });

async function commit(store: Store, parts: Parameters<typeof transaction>[0]): Promise<number> {
  const result = await store.commit(transaction(parts), signal);
  if (!result.committed) throw new Error('the comparison was lost');
  return result.revision;
}

/** The result of a transaction that must lose. */
async function commitLosing(store: Store, parts: Parameters<typeof transaction>[0]) {
  const result = await store.commit(transaction(parts), signal);
  if (result.committed) throw new Error('the comparison was not lost');
  const { revision, changed, missing } = result;
  const inOrder = [...changed].sort((a, b) => (a.key < b.key ? -1 : 1));
  const modRevisions = inOrder.map(({ modRevision }) => modRevision);
  return {
    revision,
    modRevisions,
    changed: inOrder.map(({ key, value }) => [key, text(value)]),
    missing: [...missing].sort(),
  };
}

async function take(
  changes: AsyncIterable<RevisionChanges>,
  count: number,
): Promise<{ readonly revision: number; readonly changes: readonly unknown[] }[]> {
  const taken: { readonly revision: number; readonly changes: readonly unknown[] }[] = [];
  for await (const { revision, changes: items } of changes) {
    if (items.length === 0) continue;
    const shown = items.map((item) => (item.type === 'put' ? { ...item, value: text(item.value) } : item));
    taken.push({ revision, changes: shown });
    if (taken.length === count) break;
  }
  return taken;
}

/** The behaviour that every store has. Runs against the one that `open` makes, empty each time. */
export function describeStoreContract(name: string, open: () => Promise<StoreUnderTest>): void {
  describe(`${name} as a store`, () => {
    let subject: StoreUnderTest;
    let store: Store;
    beforeEach(async () => {
      subject = await open();
      ({ store } = subject);
    });
    afterEach(() => subject.dispose());

    describe('reading', () => {
      it('lists the records of a prefix in key order, with the revision of their last change', async () => {
        const first = await commit(store, { puts: { '/a/2': 'two', '/b/1': 'other', '/a/10': 'ten' } });
        const second = await commit(store, { puts: { '/a/2': 'TWO' } });
        const { records, revision } = await store.list('/a/', signal);
        expect(records.map(({ key, value, modRevision }) => [key, text(value), modRevision])).toEqual([
          ['/a/10', 'ten', first],
          ['/a/2', 'TWO', second],
        ]);
        expect(revision).toBe(second);
      });

      it('lists nothing under a prefix without records', async () => {
        expect((await store.list('/none/', signal)).records).toEqual([]);
      });

      it('reads exactly the keys asked for, and leaves out those without a record', async () => {
        const revision = await commit(store, { puts: { '/a': '1', '/a/b': '2', '/c': '3' } });
        const snapshot = await store.read(['/a', '/c', '/missing'], signal);
        expect(snapshot.records.map(({ key }) => key).sort()).toEqual(['/a', '/c']);
        expect(snapshot.revision).toBe(revision);
      });

      it('keeps bytes as they are, and empty values', async () => {
        const value = Uint8Array.from([0, 255, 1, 128]);
        const puts = [
          { key: '/bytes', value },
          { key: '/empty', value: new Uint8Array() },
        ];
        await store.commit({ comparisons: [], puts, deletes: [] }, signal);
        const { records } = await store.list('/', signal);
        expect(records.map((item) => [...item.value])).toEqual([[0, 255, 1, 128], []]);
      });
    });

    describe('scanning', () => {
      it('returns the records of a prefix in pages, in key order, each once', async () => {
        const keys = Array.from({ length: 25 }, (_, index) => `/s/${String(index).padStart(2, '0')}`);
        await commit(store, { puts: Object.fromEntries(keys.map((key) => [key, key])) });
        const revision = await commit(store, {
          puts: { '/r': 'before', '/s': 'before', '/t': 'after', '/s0': 'after' },
        });
        const seen: string[] = [];
        const sizes: number[] = [];
        for (let after: string | undefined, more = true; more;) {
          const page = await store.scan({ prefix: '/s/', after, limit: 10 }, signal);
          expect(page.revision).toBe(revision);
          expect(page.records.map(({ value }) => text(value))).toEqual(page.records.map(({ key }) => key));
          seen.push(...page.records.map(({ key }) => key));
          sizes.push(page.records.length);
          after = seen.at(-1);
          ({ more } = page);
        }
        expect(seen).toEqual(keys);
        expect(sizes).toEqual([10, 10, 5]);
      });

      it('reports the end after a page that is exactly full', async () => {
        await commit(store, { puts: { '/s/1': '1', '/s/2': '2', '/t': '3' } });
        const page = await store.scan({ prefix: '/s/', after: undefined, limit: 2 }, signal);
        expect([page.records.length, page.more]).toEqual([2, false]);
        expect((await store.scan({ prefix: '/s/', after: '/s/1', limit: 1 }, signal)).more).toBe(false);
        expect((await store.scan({ prefix: '/s/', after: undefined, limit: 1 }, signal)).more).toBe(true);
      });

      it('continues after a key that was removed meanwhile', async () => {
        const modRevision = await commit(store, { puts: { '/s/1': '1', '/s/2': '2', '/s/3': '3' } });
        await commit(store, { deletes: ['/s/2'] });
        const { records, more } = await store.scan({ prefix: '/s/', after: '/s/2', limit: 10 }, signal);
        expect(records.map(({ key, modRevision: at }) => [key, at])).toEqual([['/s/3', modRevision]]);
        expect(more).toBe(false);
      });

      it('returns pages of one moment, or reports that the store no longer has it', async () => {
        const revision = await commit(store, { puts: { '/s/1': 'old', '/s/2': 'old' } });
        const page = async (after: string | undefined): Promise<string> => {
          const { records } = await store.scan({ prefix: '/s/', after, limit: 1, revision }, signal);
          return records.map(({ value }) => Buffer.from(value).toString()).join();
        };
        expect(await page(undefined)).toBe('old');
        await commit(store, { puts: { '/s/2': 'new' } });
        const second = page('/s/1').catch((error: unknown) => (error instanceof RevisionCompacted ? 'gone' : error));
        expect(['old', 'gone']).toContain(await second);
        await subject.forgetChanges();
        await expect(page('/s/1')).rejects.toThrow(RevisionCompacted);
      });
    });

    describe('the revision', () => {
      it('is that of the newest transaction', async () => {
        const before = await store.revision(signal);
        const first = await commit(store, { puts: { '/a': '1' } });
        expect(first).toBeGreaterThan(before);
        expect(await store.revision(signal)).toBe(first);
        const revisions = await Promise.all(
          Array.from({ length: 20 }, async (_, index) => {
            const committed = await commit(store, { puts: { [`/n/${index}`]: '1' } });
            return (await store.revision(signal)) - committed;
          }),
        );
        expect(Math.min(...revisions)).toBeGreaterThanOrEqual(0);
      });
    });

    describe('committing', () => {
      it('raises the revision with every change', async () => {
        const revisions = [];
        for (const value of ['1', '2', '3']) revisions.push(await commit(store, { puts: { '/a': value } }));
        expect(revisions).toEqual([...revisions].sort((a, b) => a - b));
        expect(new Set(revisions).size).toBe(3);
      });

      it('creates a record only once', async () => {
        const create = { puts: { '/a': '1' }, if: [record('/a', 0)] };
        expect((await store.commit(transaction(create), signal)).committed).toBe(true);
        expect((await store.commit(transaction(create), signal)).committed).toBe(false);
      });

      it('changes nothing when one of several comparisons is lost', async () => {
        const revision = await commit(store, { puts: { '/a': '1', '/b': '1' } });
        await commit(store, { puts: { '/b': '2' } });
        const stale = {
          puts: { '/a': '9', '/c': '9' },
          deletes: ['/b'],
          if: [record('/a', revision), record('/b', revision)],
        };
        expect(await commitLosing(store, stale)).toMatchObject({ changed: [['/b', '2']], missing: [] });
        const { records } = await store.list('/', signal);
        expect(records.map(({ key, value }) => [key, text(value)])).toEqual([
          ['/a', '1'],
          ['/b', '2'],
        ]);
      });

      it('treats a deleted record as never created', async () => {
        await commit(store, { puts: { '/a': '1' } });
        await commit(store, { deletes: ['/a'] });
        await commit(store, { puts: { '/a': '2' }, if: [record('/a', 0)] });
        expect((await store.list('/a', signal)).records).toHaveLength(1);
      });

      it('deletes a missing record without a change', async () => {
        const revision = await commit(store, { puts: { '/a': '1' } });
        expect(await commit(store, { deletes: ['/missing'] })).toBe(revision);
      });

      it('compares without changing', async () => {
        const revision = await commit(store, { puts: { '/a': '1' } });
        expect(await commit(store, { if: [record('/a', revision)] })).toBe(revision);
      });

      it('compares a prefix: changed and new records count, removals and other prefixes do not', async () => {
        const revision = await commit(store, { puts: { '/p/1': '1', '/p/2': '1' } });
        const unchanged: Comparison = { type: 'prefix', prefix: '/p/', notAfterRevision: revision };
        await commit(store, { puts: { '/q': '1' }, deletes: ['/p/2'] });
        await commit(store, { if: [unchanged] });
        await commit(store, { puts: { '/p/3': '1' } });
        expect(await commitLosing(store, { if: [unchanged] })).toMatchObject({ changed: [['/p/3', '1']], missing: [] });
      });

      it('lets exactly one of many concurrent transactions win a comparison, and returns its record to the losers', async () => {
        const revision = await commit(store, { puts: { '/a': '0' } });
        const race = (index: number) => transaction({ puts: { '/a': `${index}` }, if: [record('/a', revision)] });
        const results = await Promise.all(Array.from({ length: 20 }, (_, index) => store.commit(race(index), signal)));
        const won = results.flatMap((result, index) => (result.committed ? [{ ...result, index }] : []));
        expect(won).toHaveLength(1);
        for (const result of results) {
          if (result.committed) continue;
          const [met] = result.changed;
          expect([met && text(met.value), met?.modRevision]).toEqual([`${won[0]?.index}`, won[0]?.revision]);
        }
      });

      it('returns the conflicts of lost comparisons, of one moment, and none of comparisons that hold', async () => {
        const first = await commit(store, { puts: { '/made': '1', '/same': '1', '/changed': '1', '/gone': '1' } });
        const second = await commit(store, { puts: { '/changed': '2', '/p/1': '1', '/pp': '1' }, deletes: ['/gone'] });
        const third = await commit(store, { puts: { '/p/2': 'two' } });
        const comparisons: Comparison[] = [
          record('/made', 0),
          record('/same', first),
          record('/changed', first),
          record('/gone', first),
          record('/never', 0),
          { type: 'prefix', prefix: '/p/', notAfterRevision: second },
        ];
        expect(await commitLosing(store, { puts: { '/same': '9' }, if: comparisons })).toEqual({
          revision: third,
          changed: [
            ['/changed', '2'],
            ['/made', '1'],
            ['/p/2', 'two'],
          ],
          modRevisions: [second, first, third],
          missing: ['/gone'],
        });
        expect((await store.list('/same', signal)).records.map(({ value }) => text(value))).toEqual(['1']);
      });

      it('wins with the returned revisions, unless another transaction was faster', async () => {
        await commit(store, { puts: { '/a': '1', '/b': '1' } });
        const { modRevisions } = await commitLosing(store, {
          puts: { '/a': '2' },
          if: [record('/a', 0), record('/b', 0)],
        });
        const again = modRevisions.map((modRevision, index) => record(index === 0 ? '/a' : '/b', modRevision));
        await commit(store, { puts: { '/a': '2' }, if: again });
        expect((await commitLosing(store, { puts: { '/a': '3' }, if: again })).changed).toEqual([['/a', '2']]);
      });

      it('returns the conflicts of a transaction that only compares', async () => {
        const revision = await commit(store, { puts: { '/a': '1' } });
        await commit(store, { deletes: ['/a'], puts: { '/b': '1' } });
        const met = { changed: [['/b', '1']], missing: ['/a'] };
        expect(await commitLosing(store, { if: [record('/a', revision), record('/b', 0)] })).toMatchObject(met);
      });

      it('puts records that it does not compare', async () => {
        const revision = await commit(store, { puts: { '/a': '1', '/log/1': 'old' } });
        await commit(store, { puts: { '/a': '2', '/log/1': 'new', '/log/2': 'made' }, if: [record('/a', revision)] });
        const { records } = await store.list('/log/', signal);
        expect(records.map(({ value }) => text(value))).toEqual(['new', 'made']);
      });

      it('shows a committed change to the next read', async () => {
        await commit(store, { puts: { '/a': '1' } });
        expect((await store.read(['/a'], signal)).records.map(({ value }) => text(value))).toEqual(['1']);
      });
    });

    describe('watching', () => {
      it('delivers changes from a revision on, one item per revision, of the prefix alone', async () => {
        const start = await commit(store, { puts: { '/a/1': 'old' } });
        const first = await commit(store, { puts: { '/a/1': 'new', '/b': 'other' } });
        await commit(store, { puts: { '/b': 'only' } });
        const taken = take(store.watch({ prefix: '/a/', afterRevision: start }, signal), 2);
        const second = await commit(store, { puts: { '/a/2': 'two' }, deletes: ['/a/1'] });
        expect(await taken).toEqual([
          { revision: first, changes: [{ type: 'put', key: '/a/1', value: 'new' }] },
          {
            revision: second,
            changes: expect.arrayContaining([
              { type: 'put', key: '/a/2', value: 'two' },
              { type: 'delete', key: '/a/1' },
            ]),
          },
        ]);
      });

      it('delivers each of many concurrent changes once, in order', async () => {
        const start = await commit(store, { puts: { '/n': '0' } });
        const taken = take(store.watch({ prefix: '/n', afterRevision: start }, signal), 50);
        const revisions = await Promise.all(
          Array.from({ length: 50 }, (_, index) => commit(store, { puts: { '/n': String(index) } })),
        );
        const seen = (await taken).map(({ revision }) => revision);
        expect(seen).toEqual(revisions.sort((a, b) => a - b));
      });

      it('ends when its signal fires', async () => {
        const abort = new AbortController();
        const { revision } = await store.list('/', signal);
        const ended = take(store.watch({ prefix: '/', afterRevision: revision }, abort.signal), 1);
        setTimeout(() => abort.abort(), 20);
        expect(await ended).toEqual([]);
      });

      it('reports when the requested changes are no longer kept', async () => {
        const start = await commit(store, { puts: { '/a': '1' } });
        for (const value of ['2', '3', '4']) await commit(store, { puts: { '/a': value } });
        await subject.forgetChanges();
        await expect(take(store.watch({ prefix: '/', afterRevision: start }, signal), 1)).rejects.toThrow(
          RevisionCompacted,
        );
      });
    });

    describe('ending', () => {
      it('refuses a call whose signal is aborted, without effect', async () => {
        const aborted = AbortSignal.abort();
        const put = transaction({ puts: { '/a': '1' } });
        await expect(store.commit(put, aborted)).rejects.toMatchObject({ code: 'CANCELLED' });
        await expect(store.list('/', aborted)).rejects.toBeInstanceOf(Failure);
        await expect(store.revision(aborted)).rejects.toMatchObject({ code: 'CANCELLED' });
        await expect(store.scan({ prefix: '/', after: undefined, limit: 1 }, aborted)).rejects.toBeInstanceOf(Failure);
        expect((await store.list('/', signal)).records).toEqual([]);
      });

      it('leaves no listener on the signal of a completed call, which may be the next one’s too', async () => {
        const { signal: kept } = new AbortController();
        await store.commit(transaction({ puts: { '/a': '1' } }), kept);
        await store.commit(transaction({ puts: { '/a': '2' }, if: [record('/a', 0)] }), kept);
        await store.list('/', kept);
        await store.read(['/a'], kept);
        await store.revision(kept);
        await store.scan({ prefix: '/', after: undefined, limit: 1 }, kept);
        expect(getEventListeners(kept, 'abort')).toEqual([]);
      });

      it('fails every call once it is closed, and can be closed twice', async () => {
        const watching = take(
          store.watch({ prefix: '/', afterRevision: (await store.list('/', signal)).revision }, signal),
          1,
        );
        const watchFailed = expect(watching).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
        await store.close();
        await store.close();
        const unavailable = { code: 'STORE_UNAVAILABLE' };
        await expect(store.list('/', signal)).rejects.toMatchObject(unavailable);
        await expect(store.read(['/'], signal)).rejects.toMatchObject(unavailable);
        await expect(store.scan({ prefix: '/', after: undefined, limit: 1 }, signal)).rejects.toMatchObject(
          unavailable,
        );
        await expect(store.revision(signal)).rejects.toMatchObject(unavailable);
        await expect(store.commit(transaction({ puts: { '/a': '1' } }), signal)).rejects.toMatchObject(unavailable);
        await watchFailed;
      });

      it('completes commits made before it is closed', async () => {
        const handedOver = store.commit(transaction({ puts: { '/a': '1' } }), signal);
        await Promise.resolve();
        await store.close();
        expect((await handedOver).committed).toBe(true);
      });
    });
  });
}
