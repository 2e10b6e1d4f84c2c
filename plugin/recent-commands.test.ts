import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { propagateTraces } from '@podwire/shared/telemetry/telemetry';
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';

import { RecentCommands, type RecentCommand } from './recent-commands.js';
import { Plugin } from './testing/plugin.js';

const COMMANDS = z.object({ node: z.string(), commands: z.array(z.record(z.string(), z.unknown())) });

const COMMAND: RecentCommand = {
  startedMs: 0,
  command: 'GC',
  request: undefined,
  result: 'success',
  message: undefined,
  durationMs: 1,
  addresses: [],
  traceId: undefined,
  intervals: [],
};

let plugin: Plugin;

// The time of a command is recorded in the context of its trace.
beforeAll(() => propagateTraces());

beforeEach(async () => {
  plugin = await new Plugin().start();
});

afterEach(() => plugin.end());

const commands = () => COMMANDS.parse(JSON.parse(plugin.recent.text())).commands;

test('an ADD is listed with its pod, addresses and intervals, and a failed one with its reason; newest first', async () => {
  const arrivedNs = 1_700_000_000_000_000_000n;
  await plugin.run('ADD', { rest: { startedNs: arrivedNs - 2_000_000n, arrivedNs } });
  plugin.script.failNext('Allocate', new Failure('POOLS_EXHAUSTED', 'no free address'));
  await plugin.run('ADD', { variables: { CNI_CONTAINERID: 'f00' } });
  await plugin.run('DEL');
  const [deleted, failed, added] = commands();
  expect(added).toMatchObject({
    startedAt: expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/),
    command: 'ADD',
    pod: { namespace: 'default', name: 'web-0', uid: 'u-1' },
    containerId: 'c0ffee',
    network: 'net',
    interface: 'eth0',
    result: 'success',
    addresses: [expect.stringMatching(/^[\d.]+$/)],
  });
  expect(added).not.toHaveProperty('message');
  expect(added?.intervals).toEqual(
    expect.arrayContaining([
      { name: 'shim', phase: 'shim', startMs: 0, durationMs: 2, depth: 0 },
      expect.objectContaining({ name: 'podwire.plugin.queue_wait', phase: 'queue', depth: 0 }),
      expect.objectContaining({ name: 'podwire-ipam Allocate', phase: 'rpc', depth: 0 }),
      expect.objectContaining({ name: 'podwire-ipam', phase: 'ipam', depth: 1 }),
      expect.objectContaining({ name: 'dataplane AttachPod', phase: 'dataplane', depth: 0 }),
    ]),
  );
  expect(failed).toMatchObject({
    command: 'ADD',
    containerId: 'f00',
    result: 'POOLS_EXHAUSTED',
    message: expect.stringContaining('no free address'),
    addresses: [],
  });
  expect(deleted).toMatchObject({ command: 'DEL', result: 'success', addresses: [] });
});

test('a command is listed after its answer is sent: its caller waits', async () => {
  const listed: number[] = [];
  const answer = await plugin.run('ADD', {}, (sent) => listed.push(sent.exitCode, commands().length));
  expect([answer.exitCode, listed, commands().length]).toEqual([0, [0, 0], 1]);
});

test('an invalid command has no container, and STATUS and VERSION are omitted', async () => {
  await plugin.run('STATUS', { config: { cniVersion: '1.1.0' } });
  await plugin.run('VERSION');
  await plugin.run('x'.repeat(100));
  expect(commands()).toEqual([expect.objectContaining({ command: 'unknown', result: 'INVALID_ENVIRONMENT' })]);
  expect(commands()[0]).not.toHaveProperty('containerId');
});

test('the oldest of more than 500 commands is dropped', () => {
  const recent = new RecentCommands('node-1');
  for (let index = 0; index <= 500; index++) recent.add({ ...COMMAND, startedMs: index });
  const listed = COMMANDS.parse(JSON.parse(recent.text())).commands;
  expect(listed).toHaveLength(500);
  expect([listed.at(0)?.startedAt, listed.at(-1)?.startedAt]).toEqual([
    '1970-01-01T00:00:00.500Z',
    '1970-01-01T00:00:00.001Z',
  ]);
});

describe('the next process', () => {
  let folder: string;
  let file: string;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'podwire-commands-'));
    file = join(folder, 'recent-commands');
  });
  afterEach(() => rmSync(folder, { recursive: true }));

  const commandsOf = (recent: RecentCommands): string[] =>
    z
      .object({ commands: z.array(z.object({ result: z.string() })) })
      .parse(JSON.parse(recent.text()))
      .commands.map(({ result }) => result);

  function withResults(...results: readonly string[]): RecentCommands {
    const recent = new RecentCommands('node-1');
    for (const result of results) recent.add({ ...COMMAND, result });
    return recent;
  }

  test('has the commands of the one before behind its own, and no more than all', async () => {
    await withResults('first', 'second').store(file);
    const next = withResults('third');
    await next.load(file);
    expect(commandsOf(next)).toEqual(['third', 'second', 'first']);
    for (let count = 0; count < 498; count++) next.add({ ...COMMAND, result: 'later' });
    expect(commandsOf(next)).toHaveLength(500);
    expect(commandsOf(next).slice(-2)).toEqual(['third', 'second']);
  });

  test.each(['', 'no JSON', '{"commands": 7}'])('starts without commands from a file with %j', async (text) => {
    writeFileSync(file, text);
    const next = new RecentCommands('node-1');
    await next.load(file);
    expect(commandsOf(next)).toEqual([]);
  });

  test('a process without new commands leaves the file as it is', async () => {
    await withResults('first').store(file);
    const before = readFileSync(file, 'utf8');
    const next = new RecentCommands('another-name');
    await next.load(file);
    await next.store(file);
    expect(readFileSync(file, 'utf8')).toBe(before);
  });
});
