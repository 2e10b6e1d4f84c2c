import type { RunDeps } from '@podwire/ctl/run';
import { systemClock } from '@podwire/shared/runtime/clock';

/** Dependencies of podwirectl's commands that neither wait for a signal nor keep running. */
export const COMMAND_DEPS: Omit<RunDeps, 'process'> = {
  clock: systemClock,
  random: Math.random,
  stopSignal: () => new AbortController().signal,
  edit: () => Promise.reject(new Error('no command of these tests opens an editor')),
  traceCommand: () => Promise.resolve(),
  serve: () => Promise.reject(new Error('no command of these tests keeps running')),
};
