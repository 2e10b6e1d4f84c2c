#!/usr/bin/env node
import process from 'node:process';

import { systemClock } from '@podwire/shared/runtime/clock';
import { tolerateBrokenPipe } from '@podwire/shared/runtime/broken-pipe';

import type { CommandProcess } from './clients/services.js';
import { run } from './run.js';

/** Timeout of the end of a command that serves, in milliseconds. */
const STOP_TIMEOUT_MS = 1000;

function stopSignal(): AbortSignal {
  const stopped = new AbortController();
  // A second signal ends a process that does not react.
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => stopped.abort());
  return stopped.signal;
}

const serve: CommandProcess['serve'] = async (start) => {
  const [{ runProcess }, { createLogger }] = await Promise.all([
    import('@podwire/shared/runtime/lifecycle'),
    import('@podwire/shared/runtime/log'),
  ]);
  const log = createLogger({ service: 'podwirectl', level: 'info' });
  return runProcess({ log, start: () => Promise.resolve(start(log)), stopTimeoutMs: STOP_TIMEOUT_MS, args: [] });
};

tolerateBrokenPipe('podwirectl');
const traceCommand = async (): Promise<void> =>
  (await import('@podwire/shared/telemetry/command-trace')).traceCommand();

const edit: CommandProcess['edit'] = async (file) =>
  (await import('./clients/terminal.js')).openEditor(process.env.EDITOR ?? 'vi', file);

const deps = { process, clock: systemClock, random: Math.random, stopSignal, serve, edit, traceCommand };
process.exitCode = await run(process.argv.slice(2), deps);
