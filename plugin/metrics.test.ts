import { metrics } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { propagateTraces } from '@podwire/shared/telemetry/telemetry';
import { afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';

import { CommandEvents, Duration } from './events.js';
import { ProcessStopping } from './requests/attachment-queue.js';
import { Plugin } from './testing/plugin.js';

/** Recorded metrics. */

let read: ReadMetrics;
let plugin: Plugin;

/** The lines of a metric, without its name. */
async function linesOf(name: string): Promise<string[]> {
  const lines = await read.read();
  return lines.filter((line) => line.startsWith(`${name} `)).map((line) => line.slice(name.length + 1));
}

/** The values of the labels, without the number. */
const labelsOf = (lines: readonly string[]) =>
  lines.map((line) =>
    line
      .replaceAll(/[a-z]+=/g, '')
      .split(' ')
      .slice(0, -1)
      .join(' '),
  );

// The time of a command is recorded in the context of its trace.
beforeAll(() => propagateTraces());

beforeEach(async () => {
  read = new ReadMetrics('podwire.plugin.');
  plugin = await new Plugin({ timeoutMs: 2000 }).start();
});

afterEach(async () => {
  await plugin.end();
  metrics.disable();
});

test('each command is recorded with its result, and so are its phases', async () => {
  const arrivedNs = 1_700_000_000_000_000_000n;
  await plugin.run('ADD', { rest: { startedNs: arrivedNs - 40_500_000n, arrivedNs } });
  await plugin.run('DEL');
  await plugin.run('STATUS', { config: { cniVersion: '1.1.0' } });
  await plugin.run('GC', { config: { cniVersion: '1.1.0', 'cni.dev/valid-attachments': [] } });
  await plugin.run('ADD', { variables: { CNI_IFNAME: 'lo' } });
  await plugin.run('x'.repeat(100));
  const lines = await read.read();
  const of = (name: string) =>
    lines.filter((line) => line.startsWith(`${name} `)).map((line) => line.slice(name.length + 1));
  expect(labelsOf(of('command.duration'))).toEqual([
    'ADD INVALID_ENVIRONMENT',
    'ADD success',
    'DEL success',
    'GC success',
    'STATUS success',
    'unknown INVALID_ENVIRONMENT',
  ]);
  const phases = of('command.phase.duration');
  expect(labelsOf(phases)).toEqual(
    expect.arrayContaining(['ADD plugin success', 'ADD queue success', 'ADD rpc success', 'ADD plugin failure']),
  );
  expect(new Set(labelsOf(phases).map((labels) => labels.split(' ')[0]))).toEqual(
    new Set(['ADD', 'DEL', 'STATUS', 'GC', 'unknown']),
  );
  expect(phases).toContain('command=ADD phase=shim result=success 0.0405');
  expect(of('commands.failed')).toEqual(['command=ADD reason=INVALID_ENVIRONMENT 1']);
  expect(of('commands.cut_off')).toEqual([]);
});

test('readiness is a gauge, and so is each reason why an ADD would fail, from the first STATUS on', async () => {
  expect(await linesOf('ready')).toEqual([]);
  const status = () => plugin.run('STATUS', { config: { cniVersion: '1.1.0' } });
  await vi.waitFor(async () => expect(await status()).toMatchObject({ exitCode: 0 }), { timeout: 20_000 });
  const levels = async () => (await read.read()).filter((line) => /^(ready|add_blocked) /.test(line));
  const unblocked = ['dataplane', 'ipam', 'ipam-plugin', 'journal'].map((reason) => `add_blocked reason=${reason} 0`);
  expect(await levels()).toEqual(['add_blocked reason=addresses 0', ...unblocked, 'ready 1']);
  for (let count = 0; count < 64; count++) {
    plugin.ipam.put({ network: 'net', containerId: `c${count}`, interfaceName: 'eth0' });
  }
  await vi.waitFor(
    async () => {
      await status();
      expect(await levels()).toEqual(['add_blocked reason=addresses 1', ...unblocked, 'ready 1']);
    },
    { timeout: 20_000 },
  );
});

test('durations are in seconds, from the start of the shim', async () => {
  const clock = new ManualClock();
  const duration = new Duration({ startedNs: 1_000_000_000n, arrivedNs: 1_250_000_000n }, clock);
  clock.advance(500);
  new CommandEvents().ended('ADD', { result: 'success', duration, cutOff: undefined });
  expect((await read.read()).filter((line) => line.startsWith('command.'))).toEqual([
    'command.duration command=ADD result=success 0.75',
    'command.phase.duration command=ADD phase=plugin result=success 0.5',
    'command.phase.duration command=ADD phase=shim result=success 0.25',
  ]);
});

test('a command over its deadline is counted, with the phase that it waited in', async () => {
  plugin.script.hold('AttachPod');
  await plugin.run('ADD');
  const lines = await read.read();
  expect(lines).toContainEqual(expect.stringMatching(/^command.phase.duration command=ADD phase=rpc result=failure /));
  expect(lines).toContainEqual(expect.stringMatching(/^command.duration command=ADD result=DEADLINE_EXCEEDED /));
  expect(lines).toContain('commands.cut_off command=ADD reason=deadline 1');
});

test('commands cut off by their caller and by a DEL are counted separately, and are in flight until then', async () => {
  const inFlight = async () => (await linesOf('commands.in_flight')).filter((line) => /command=(ADD|DEL) /.test(line));
  const cancel = new AbortController();
  const letGo = plugin.script.hold('AttachPod');
  const first = plugin.run('ADD', { rest: { cancel } });
  await plugin.script.untilCalled('AttachPod');
  expect(await inFlight()).toContain('command=ADD 1');
  cancel.abort(new Failure('CANCELLED', 'the caller disconnected'));
  await first;
  const second = plugin.run('ADD');
  const deleting = plugin.run('DEL');
  letGo();
  await Promise.all([second, deleting]);
  const lines = await read.read();
  expect(lines.filter((line) => line.startsWith('commands.cut_off '))).toEqual([
    'commands.cut_off command=ADD reason=caller 1',
    'commands.cut_off command=ADD reason=superseded 1',
  ]);
  expect(lines).toContain('commands.in_flight command=ADD 0');
});

test('a command cut off by the end of the process is not counted as the caller’s, nor is a superseded ADD', async () => {
  const cancel = new AbortController();
  plugin.script.hold('AttachPod');
  const first = plugin.run('ADD', { rest: { cancel } });
  await plugin.script.untilCalled('AttachPod');
  cancel.abort(new ProcessStopping());
  expect(await first).toMatchObject({ exitCode: 1, isForNextProcess: true });
  const late = new AbortController();
  const second = plugin.run('ADD', { rest: { cancel: late } });
  const deleting = plugin.run('DEL');
  late.abort(new ProcessStopping());
  expect(await second).not.toHaveProperty('isForNext');
  await deleting;
  expect(await linesOf('commands.cut_off')).toEqual(['command=ADD reason=stop 1', 'command=ADD reason=superseded 1']);
});
