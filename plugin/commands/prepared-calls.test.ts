import { Failure } from '@podwire/shared/failure/failure';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import type { PreparedCall, Limits } from '../clients/clients.js';
import { run } from '../run.js';
import { CONFIG, ENVIRONMENT, Plugin } from '../testing/plugin.js';

/** Open calls by purpose, and the number of calls so far. */
interface Counted {
  open: number;
  opened: number;
}

let plugin: Plugin;
let attaching: Counted;
let releasing: Counted;

beforeEach(async () => {
  attaching = { open: 0, opened: 0 };
  releasing = { open: 0, opened: 0 };
  plugin = await new Plugin().start();
});

afterEach(async () => {
  await plugin.end();
  expect(plugin.script.unusedFaults()).toEqual([]);
});

/** Opens as `open` does, and counts. */
function counting<Subject, Answer>(counted: Counted, open: (limits: Limits) => PreparedCall<Subject, Answer>) {
  return (limits: Limits): PreparedCall<Subject, Answer> => {
    counted.open += 1;
    counted.opened += 1;
    const call = open(limits);
    return {
      send: (subject, sendLimits) => call.send(subject, sendLimits),
      close: () => {
        counted.open -= 1;
        call.close();
      },
    };
  };
}

/** Runs a command with services that count prepared calls. */
function command(name: 'ADD' | 'DEL') {
  const { tools } = plugin.options;
  const dataplane = {
    ...tools.dataplane,
    openAttachPod: counting(attaching, (limits) => tools.dataplane.openAttachPod(limits)),
  };
  const ipam = { ...tools.ipam, openRelease: counting(releasing, (limits) => tools.ipam.openRelease(limits)) };
  const request = {
    plugin: 'podwire',
    variables: { ...ENVIRONMENT, CNI_COMMAND: name },
    configuration: JSON.stringify(CONFIG),
    traceContext: {},
    startedNs: undefined,
    arrivedNs: BigInt(systemClock.nowMs()) * 1_000_000n,
    cancel: new AbortController(),
  };
  return run(request, { ...plugin.options, tools: { ...tools, dataplane, ipam } });
}

test('ADD opens AttachPod while it waits for addresses, and DEL opens Release while it detaches', async () => {
  const giveAddresses = plugin.script.hold('Allocate');
  const adding = command('ADD');
  await plugin.script.untilCalled('Allocate');
  expect(attaching).toEqual({ open: 1, opened: 1 });
  giveAddresses();
  expect((await adding).exitCode).toBe(0);
  expect(attaching.open).toBe(0);

  const detach = plugin.script.hold('DetachPod');
  const deleting = command('DEL');
  await plugin.script.untilCalled('DetachPod');
  expect(releasing).toEqual({ open: 1, opened: 1 });
  expect(plugin.script.calls.filter((call) => call.startsWith('Release '))).toEqual([]);
  detach();
  expect((await deleting).exitCode).toBe(0);
  expect(releasing.open).toBe(0);
});

test.each(['Allocate', 'AttachPod'] as const)('an ADD that fails at %s leaves no call open', async (method) => {
  plugin.script.failNext(method, new Failure('INVALID_NETNS', 'refused'));
  expect((await command('ADD')).exitCode).toBe(1);
  expect(attaching).toEqual({ open: 0, opened: 1 });
});

test.each(['DetachPod', 'Release'] as const)('a DEL that fails at %s leaves no call open', async (method) => {
  expect((await command('ADD')).exitCode).toBe(0);
  plugin.script.failNext(method, new Failure('INVALID_REQUEST', 'refused'));
  expect((await command('DEL')).exitCode).toBe(0);
  expect(releasing).toEqual({ open: 0, opened: 1 });
});
