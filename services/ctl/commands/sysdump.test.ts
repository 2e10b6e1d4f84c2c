import { spawnSync } from 'node:child_process';
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';

import { CollectResponse, DiagnosticsServiceService } from '@podwire/proto/podwire/diagnostics/v1/diagnostics';
import {
  ClusterServiceService,
  GetClusterInfoResponse,
  ListNodeStatesResponse,
} from '@podwire/proto/podwire/ipam/v1/cluster';
import { HistoryServiceService, ListChangesResponse } from '@podwire/proto/podwire/ipam/v1/history';
import { ListPoolsResponse, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { fake, fakeNode, Fakes, fakeStream, pool } from '../testing/ctl.js';

let fakes: Fakes;

beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

/** A message of a stream as a node sends it: behind its length. */
function framed(file: string, part: string): Buffer {
  const bytes = CollectResponse.encode({ file, part: Buffer.from(part) }).finish();
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return Buffer.concat([length, bytes]);
}

function serve(): Promise<void> {
  const states = ListNodeStatesResponse.fromPartial({ nodes: [{ name: 'n1' }, { name: 'n2' }] });
  return fakes.serve(
    fake(ClusterServiceService.getClusterInfo, () => GetClusterInfoResponse.fromPartial({ store: 'etcd' })),
    fake(ClusterServiceService.listNodeStates, () => states),
    fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
    fake(HistoryServiceService.listChanges, ({ pageToken }) =>
      ListChangesResponse.fromPartial({
        changes: [{ kind: 'ippool', name: pageToken === '' ? 'first' : 'second' }],
        nextPageToken: pageToken === '' ? 'next' : '',
      }),
    ),
    fakeStream(DiagnosticsServiceService.collect, ({ since }) => [
      { file: 'log.jsonl', part: Buffer.from('one\n') },
      { file: 'log.jsonl', part: Buffer.from(`since ${since ? 'then' : 'the start'}\n`) },
      { file: 'version.json', part: Buffer.from('{}\n') },
    ]),
    fakeNode('n1', () => Buffer.concat([framed('a.txt', 'first '), framed('a.txt', 'second'), framed('b.txt', '')])),
  );
}

/** Runs sysdump. @returns the contents by name, without the name of the folder */
async function dump(...args: readonly string[]) {
  const file = join(fakes.folder, 'dump.tar.gz');
  const result = await fakes.podwirectl('sysdump', '--file', file, ...args);
  const tar = (...options: readonly string[]): string => spawnSync('tar', options, { encoding: 'utf8' }).stdout;
  const names = tar('tzf', file)
    .split('\n')
    .filter((name) => name !== '');
  const contents = new Map(names.map((name) => [name.replace(/^[^/]*\//, ''), tar('xzOf', file, name)]));
  return { ...result, file, contents };
}

test('has the files of all processes, and names the missing ones', async () => {
  await serve();
  const { exitCode, stdout, contents, file } = await dump();
  expect(exitCode).toBe(4);
  expect(statSync(file).mode & 0o777).toBe(0o600);
  expect(contents.get('podwire-ipam/log.jsonl')).toBe('one\nsince the start\n');
  expect(contents.get('nodes/n1/a.txt')).toBe('first second');
  expect(contents.get('nodes/n1/b.txt')).toBe('');
  expect(contents.get('nodes/n2/error.txt')).toContain('there is no node "n2"');
  expect(contents.get('cluster/ippools.yaml')).toContain('cidr: 10.65.0.0/16');
  expect(JSON.parse(contents.get('cluster/changes.json') ?? '')).toMatchObject({
    changes: [{ name: 'first' }, { name: 'second' }],
  });
  expect(JSON.parse(contents.get('cluster/info.json') ?? '')).toMatchObject({ store: 'etcd' });
  expect(stdout).toMatch(/^nodes\/n1 +2 +1 +complete$/m);
  expect(stdout).toMatch(/^nodes\/n2 +0 +0 +there is no node "n2"/m);
});

test('--node and --since restrict it', async () => {
  await serve();
  const { contents } = await dump('--node', 'n1', '--since', '1h');
  expect([...contents.keys()].filter((name) => name.startsWith('nodes/'))).toEqual([
    'nodes/n1/a.txt',
    'nodes/n1/b.txt',
  ]);
  expect(contents.get('podwire-ipam/log.jsonl')).toBe('one\nsince then\n');
});

test.each(['../../outside', '/outside', 'a/../../outside', ''])('a node cannot add the file "%s"', async (name) => {
  await fakes.serve(fakeNode('n1', () => Buffer.concat([framed('a.txt', 'own'), framed(name, 'x')])));
  const { exitCode, contents } = await dump('--node', 'n1');
  expect(exitCode).toBe(4);
  expect([...contents.keys()].filter((each) => !each.startsWith('nodes/n1/'))).toEqual([
    ...['cluster/error.txt', 'podwire-ipam/error.txt', 'sources.json'],
  ]);
  expect(contents.get('nodes/n1/a.txt')).toBe('own');
  expect(contents.get('nodes/n1/error.txt')).toContain('is no name within a folder');
});

test('a podwire-ipam that refuses its own files is still asked for the nodes', async () => {
  const denied = (): never => {
    throw new Failure('ACCESS_DENIED', 'a reader only reads');
  };
  const states = ListNodeStatesResponse.fromPartial({ nodes: [{ name: 'n1' }] });
  await fakes.serve(
    fake(ClusterServiceService.listNodeStates, () => states),
    fakeStream(DiagnosticsServiceService.collect, denied),
    fakeNode('n1', denied),
  );
  const { stdout } = await dump();
  expect(stdout).toMatch(/^podwire-ipam +0 +0 +a reader only reads/m);
  expect(stdout).toMatch(/^nodes\/n1 +0 +0 +a reader only reads/m);
});

test('without podwire-ipam it has the files of the own node', async () => {
  const collected = fakeStream(DiagnosticsServiceService.collect, () => [{ file: 'a.txt', part: Buffer.from('own') }]);
  await fakes.serve(collected);
  const { exitCode, contents } = await dump('--ipam', `unix:${join(fakes.folder, 'none.sock')}`);
  expect(exitCode).toBe(4);
  expect(contents.get('node/a.txt')).toBe('own');
  expect(contents.get('podwire-ipam/error.txt')).toContain('the socket does not exist');
});

test('--file - writes the archive to the standard output', async () => {
  await serve();
  const { exitCode, stderr } = await fakes.podwirectl('sysdump', '--file', '-', '--node', 'n1');
  // The fake podwire-ipam lacks most methods.
  expect(exitCode).toBe(4);
  expect(stderr).toContain('podwirectl: nodes/n1: complete\n');
  const { stdout } = spawnSync('tar', ['tzf', '-'], { input: fakes.stdoutBytes, encoding: 'utf8' });
  expect(stdout).toContain('/nodes/n1/a.txt\n');
});

test('an existing file is kept', async () => {
  await serve();
  await dump();
  const { file } = await dump();
  const before = readFileSync(file);
  const { exitCode, stderr } = await fakes.podwirectl('sysdump', '--file', file);
  expect(exitCode).toBe(2);
  expect(stderr).toContain(`${file}: cannot be written`);
  expect(readFileSync(file).equals(before)).toBe(true);
});

test('a failure of one answer does not end the rest of the cluster', async () => {
  await fakes.serve(
    fake(ClusterServiceService.getClusterInfo, () => {
      throw new Failure('STORE_UNAVAILABLE', 'the datastore does not answer');
    }),
    fake(ClusterServiceService.listNodeStates, () => ListNodeStatesResponse.fromPartial({})),
    fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
  );
  const { contents } = await dump();
  expect(contents.get('cluster/error.txt')).toContain('the datastore does not answer');
  expect(contents.get('cluster/ippools.yaml')).toContain('name: main');
});
