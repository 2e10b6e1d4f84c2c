import console from 'node:console';
import { writeFileSync } from 'node:fs';
import process from 'node:process';

import { Failure } from '../failure/failure.js';
import { runProcess, type Running } from '../runtime/lifecycle.js';
import { createLogger } from '../runtime/log.js';

/** A program whose lifecycle follows its argument. It prints each step to standard output, one word a line. */

const say = (word: string) => process.stdout.write(`${word}\n`);
const never = new Promise<never>(() => setInterval(() => undefined, 1000));

function running(stop: () => Promise<void>): Promise<Running> {
  setInterval(() => undefined, 1000);
  say('started');
  return Promise.resolve({
    stop: () => {
      say('stop');
      return stop();
    },
  });
}

const pause = (durationMs: number) => new Promise<void>((resolve) => setTimeout(resolve, durationMs));

const SCENARIOS: Record<string, (signal: AbortSignal) => Promise<Running>> = {
  serves: () => running(() => pause(200)),
  'takes no arguments': () => running(() => pause(0)),
  'hangs at the stop': () => running(() => never),
  'fails at the stop': () => running(() => Promise.reject(new Failure('STORE_UNAVAILABLE', 'the store is gone'))),
  'starts slowly': async () => {
    say('starting');
    await pause(400);
    return running(() => Promise.resolve());
  },
  'gives up its start': (signal) => {
    say('starting');
    const waiting = setInterval(() => undefined, 1000);
    return new Promise((_, reject) => {
      signal.addEventListener('abort', () => {
        clearInterval(waiting);
        reject(new Failure('STORE_UNAVAILABLE', 'etcd is down'));
      });
    });
  },
  'hangs at the start': () => {
    say('starting');
    return never;
  },
  'fails at the start': () => Promise.reject(new Failure('INVALID_SETTINGS', 'PODWIRE_X is nonsense')),
  'has a defect at the start': () => {
    throw new TypeError('x is not a function');
  },
  'throws without a handler': () => {
    setTimeout(() => {
      throw new TypeError('x is not a function');
    }, 20);
    return running(() => Promise.resolve());
  },
  'rejects without a handler': () => {
    setTimeout(() => void Promise.reject(new TypeError('x is not a function')), 20);
    return running(() => Promise.resolve());
  },
  'is warned': () => {
    process.emitWarning('that is out of use', 'DeprecationWarning', 'DEP0000');
    return running(() => pause(0));
  },
  'has libraries that talk': () => {
    console.error(new Error('no space left'));
    console.log('%d pages', 7);
    return running(() => pause(0));
  },
  'makes a file': () => {
    writeFileSync(process.argv[3] ?? '', '', { mode: 0o666 });
    return running(() => Promise.resolve());
  },
};

const [scenario = '', ...rest] = process.argv.slice(2);
const start = SCENARIOS[scenario];
if (!start) throw new Error(`no such life: ${scenario}`);
const args = scenario === 'takes no arguments' ? rest : [];
const usage = () => 'usage: fixture\n';
const log = createLogger({ service: 'fixture', level: 'info' });
// The time limits are longer than a busy machine takes.
const stopTimeoutMs = scenario.startsWith('hangs') ? 600 : 30_000;
await runProcess({ log, start, stopTimeoutMs, args, usage });
