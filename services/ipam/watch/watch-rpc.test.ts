import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { WatchKind, WatchPhase, WatchRequest, WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { Peer } from '@podwire/shared/rpc/client';
import { RpcServer } from '@podwire/shared/rpc/server';
import { systemClock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Mirror } from '../engine/mirror/mirror.js';
import { StreamHub } from '../engine/streams/hub.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { takeOrdinals } from '../records/block.js';
import { block, claimedBlock, fullBlock, poolRecord } from '../testing/records.js';
import { forever, keys, until, write } from '../testing/watch-client.js';
import { Catalog } from './catalog.js';
import { encodeChange, encodeMessage, watchService } from './watch-rpc.js';

const { watch: WATCH } = WatchServiceService;
/** As another client may send it: field 1, packed, with the values 1, 0 and 99. */
const OF_A_LATER_RELEASE = WatchRequest.decode(Uint8Array.of(0x0a, 3, 1, 0, 99)).kinds;

const { WATCH_KIND_POOLS: POOLS, WATCH_KIND_NODES: NODES, WATCH_KIND_ROUTES: ROUTES } = WatchKind;

let folder: string;
let store: MemoryStore;
let hub: StreamHub;
let mirror: Mirror;
let server: RpcServer;
let peer: Peer;
let sent: number;
let encoded: number;
let changeMessages: number;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-watch-'));
  store = new MemoryStore();
  [sent, encoded, changeMessages] = [0, 0, 0];
  const currentRevision = (signal: AbortSignal): Promise<number> => store.revision(signal);
  const objects = new Catalog({ keys, encode: (change) => (encoded++, encodeChange(change)) });
  hub = new StreamHub({
    objects,
    encode: (message) => {
      sent++;
      if (message.phase === 'changes') changeMessages++;
      return encodeMessage(message);
    },
    clock: systemClock,
    datastore: '',
    currentRevision,
    bookmarkAfterMs: 50,
    messageBytes: 16_384,
  });
  const report = (): void => undefined;
  mirror = await Mirror.start(
    { store, keys, clock: systemClock, random: () => 0.5, report, observe: objects.observe },
    forever,
  );
  server = new RpcServer({
    addresses: [`unix:${join(folder, 'ipam.sock')}`],
    log: createLogger({ service: 'test', level: 'fatal' }),
    clock: systemClock,
    defaultCallTimeoutMs: 1000,
    drainTimeoutMs: 5000,
    services: (_, streaming) => [watchService(hub, streaming)],
  });
  const [address = ''] = await server.listen();
  peer = new Peer('podwire-ipam', address);
});

afterEach(async () => {
  peer.close();
  await server.stop();
  hub.close();
  await mirror.close();
  rmSync(folder, { recursive: true });
});

const request = (rest: Partial<WatchRequest> = {}): WatchRequest => ({
  kinds: [ROUTES, POOLS],
  resumeToken: '',
  ...rest,
});

async function put(...records: Parameters<typeof write>[1][]): Promise<void> {
  const revision = await write(store, ...records);
  await until(() => hub.revision >= revision);
}

describe('Watch', () => {
  test('sends objects like the lists, then changes, then bookmarks', async () => {
    await put(poolRecord('p', '10.65.0.0/16'), ...claimedBlock(block('10.65.0.0/26', 'n1')));
    const stream = peer.stream(WATCH, request(), forever);
    const { value: snapshot } = await stream.next();
    expect(snapshot).toMatchObject({ phase: WatchPhase.WATCH_PHASE_SNAPSHOT, reset: true, resumeToken: '' });
    expect(snapshot?.changes).toMatchObject([
      { kind: POOLS, name: 'p', object: { $case: 'pool', value: { name: 'p', cidr: '10.65.0.0/16', blockSize: 26 } } },
      {
        kind: ROUTES,
        name: '10.65.0.0/26',
        object: { $case: 'route', value: { cidr: '10.65.0.0/26', poolName: 'p', nodeName: 'n1' } },
      },
    ]);
    const { value: complete } = await stream.next();
    expect(complete).toMatchObject({ phase: WatchPhase.WATCH_PHASE_SNAPSHOT_COMPLETE, reset: false, changes: [] });
    expect(complete?.resumeToken).toMatch(/^[\w-]{10,}$/);
    await put(...claimedBlock(block('10.65.0.64/26', 'n2')));
    expect((await stream.next()).value).toMatchObject({
      phase: WatchPhase.WATCH_PHASE_CHANGES,
      changes: [{ kind: ROUTES, name: '10.65.0.64/26' }],
    });
    expect((await stream.next()).value).toMatchObject({ phase: WatchPhase.WATCH_PHASE_BOOKMARK, changes: [] });
    await stream.return();
    await until(() => hub.streamsCount === 0 && server.streamsCount === 0 && hub.waitersCount === 0);
  });

  test('sends nodes like the lists', async () => {
    const node = JSON.stringify({ metadata: { name: 'n1', uid: 'u', labels: { zone: 'x' } }, spec: {} });
    await store.commit(
      { comparisons: [], puts: [{ key: keys.node('n1'), value: Buffer.from(node) }], deletes: [] },
      forever,
    );
    const stream = peer.stream(WATCH, request({ kinds: [NODES] }), forever);
    expect((await stream.next()).value?.changes).toMatchObject([
      { kind: NODES, name: 'n1', object: { $case: 'node', value: { name: 'n1', labels: { zone: 'x' } } } },
    ]);
    await stream.return();
  });

  test('sends routes to blocks, with the addresses that other nodes use', async () => {
    const users = ['n1', 'n2'].map((node) => ({ handleId: 'h', owner: { node }, releasedAtMs: undefined }));
    const [own, borrowed] = users;
    const used = takeOrdinals(takeOrdinals(block('10.65.0.0/26', 'n1'), [3], own!), [7], borrowed!);
    await put(poolRecord('p', '10.65.0.0/16'), ...claimedBlock(used), ...claimedBlock(block('10.66.0.0/26', 'n2')));
    const stream = peer.stream(WATCH, request({ kinds: [ROUTES] }), forever);
    expect((await stream.next()).value?.changes).toEqual([
      {
        kind: ROUTES,
        name: '10.65.0.0/26',
        object: {
          $case: 'route',
          value: {
            cidr: '10.65.0.0/26',
            poolName: 'p',
            nodeName: 'n1',
            borrowed: [{ address: '10.65.0.7', nodeName: 'n2' }],
          },
        },
      },
      {
        kind: ROUTES,
        name: '10.66.0.0/26',
        object: { $case: 'route', value: { cidr: '10.66.0.0/26', poolName: '', nodeName: 'n2', borrowed: [] } },
      },
    ]);
    await stream.return();
  });

  test('continues from a token, with only the names of removed objects', async () => {
    await put(...claimedBlock(block('10.65.0.0/26', 'n1')));
    const first = peer.stream(WATCH, request(), forever);
    await first.next();
    const { value } = await first.next();
    await first.return();
    const [blockKey = ''] = claimedBlock(block('10.65.0.0/26', 'n1')).map((record) => keys.of(record));
    await store.commit({ comparisons: [], puts: [], deletes: [blockKey] }, forever);
    const resumed = peer.stream(WATCH, request({ resumeToken: value?.resumeToken ?? '' }), forever);
    const { value: message } = await resumed.next();
    expect(message).toMatchObject({ phase: WatchPhase.WATCH_PHASE_CHANGES, reset: false });
    expect(message?.changes).toEqual([{ kind: ROUTES, name: '10.65.0.0/26', object: undefined }]);
    await resumed.return();
  });

  test('ends with UNAVAILABLE when the server drains', async () => {
    const stream = peer.stream(WATCH, request(), forever);
    await stream.next();
    const readOn = async (): Promise<void> => {
      while (!(await stream.next()).done);
    };
    const outcome = expect(readOn()).rejects.toMatchObject({ code: 'UNREACHABLE' });
    await until(() => hub.waitersCount === 1);
    await server.stop();
    await outcome;
    expect([hub.streamsCount, hub.waitersCount]).toEqual([0, 0]);
  });

  test('does not keep more than a message for a client that does not read', async () => {
    // Each has borrowed addresses only: 12 MB, of which HTTP/2 and the client buffer 4 MiB.
    const cidrs = Array.from({ length: 240 }, (_, index) => `10.${65 + (index >> 6)}.${(index & 63) * 4}.0/22`);
    const round = (number: number) =>
      cidrs.map((cidr) => {
        const full = fullBlock(cidr, `${'n'.repeat(40)}${number}`);
        return { kind: 'block', value: { ...full, owner: undefined } } as const;
      });
    await put(...round(0));
    const stalled = peer.stream(WATCH, request(), forever);
    await stalled.next();
    let stalledAt = -1;
    for (let still = 0; still < 4; still++) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      if (stalledAt === sent) continue;
      stalledAt = sent;
      still = 0;
    }
    expect(stalledAt).toBeLessThan(cidrs.length);
    for (let number = 1; number <= 5; number++) await put(...round(number));
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(sent).toBe(stalledAt);
    const seen = new Map<string, string>();
    for await (const { changes } of stalled) {
      for (const { name, object } of changes)
        if (object?.$case === 'route') seen.set(name, object.value.borrowed[0]?.nodeName ?? '');
      const newest = [...seen.values()].filter((nodeName) => nodeName.endsWith('5'));
      if (newest.length === cidrs.length) break;
    }
    // The rest of the snapshot, and each block once more: not every intermediate state.
    expect(sent).toBeLessThanOrEqual(2 * cidrs.length + 1);
    await until(() => hub.streamsCount === 0);
  });

  test('sends a change to 60 watchers as one message, encoded once', async () => {
    await put(...claimedBlock(block('10.65.0.0/26', 'n1')));
    const streams = Array.from({ length: 60 }, () => peer.stream(WATCH, request(), forever));
    const next = async (stream: (typeof streams)[number], phase: WatchPhase) => {
      for (;;) {
        const { value } = await stream.next();
        if (value?.phase === phase) return value.changes.map(({ name }) => name);
      }
    };
    await Promise.all(streams.map((stream) => next(stream, WatchPhase.WATCH_PHASE_SNAPSHOT_COMPLETE)));
    await until(() => hub.waitersCount === 60);
    const [encodedBefore, changesBefore] = [encoded, changeMessages];
    await put({ kind: 'block', value: block('10.65.0.0/26', 'n2') });
    const told = await Promise.all(streams.map((stream) => next(stream, WatchPhase.WATCH_PHASE_CHANGES)));
    expect(told).toEqual(streams.map(() => ['10.65.0.0/26']));
    expect([encoded - encodedBefore, changeMessages - changesBefore]).toEqual([1, 1]);
    await Promise.all(streams.map((stream) => stream.return()));
    await until(() => hub.streamsCount === 0 && server.streamsCount === 0 && hub.waitersCount === 0);
  });

  test.each<[string, Partial<WatchRequest>, readonly string[]]>([
    ['no kind', { kinds: [] }, ['kinds']],
    ['an unknown kind', { kinds: OF_A_LATER_RELEASE }, ['kinds[1]', 'kinds[2]']],
    ['all that is wrong', { kinds: [], resumeToken: 'x' }, ['kinds', 'resume_token']],
    [
      'a token with trailing bytes',
      { resumeToken: `${Buffer.from('w1...5').toString('base64url')}A` },
      ['resume_token'],
    ],
  ])('refuses %s', async (_, rest, fields) => {
    const failure: unknown = await peer
      .stream(WATCH, request(rest), forever)
      .next()
      .catch((error: unknown) => error);
    expect(failure).toMatchObject({ code: 'INVALID_REQUEST', violations: fields.map((field) => ({ field })) });
    expect(hub.streamsCount).toBe(0);
  });
});
