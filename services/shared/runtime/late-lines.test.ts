import { spawnSync } from 'node:child_process';

import { context, createContextKey } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { pino, type Logger } from 'pino';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';

import { LateLines } from './late-lines.js';

const WHO = createContextKey('who');

let written: string[];
let nowMs: number;
let log: Logger;

beforeAll(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
});

afterAll(() => {
  context.disable();
});

beforeEach(() => {
  written = [];
  nowMs = 1000;
  const late = new LateLines({ write: (text) => void written.push(text) }, () => nowMs);
  const mixin = (): object => ({ who: context.active().getValue(WHO) });
  log = pino({ base: null, mixin, ...late.options() }, late);
});

const as = (who: string, work: () => void): void => context.with(context.active().setValue(WHO, who), work);
const lines = (): Record<string, unknown>[] =>
  written.flatMap((text) => text.trimEnd().split('\n')).map((line) => JSON.parse(line));
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

test('lines are written after the event loop turn in which they were logged, in one write, in order', async () => {
  log.info('first');
  log.child({ part: 1 }).warn({ extra: true }, 'second %d', 2);
  await Promise.resolve();
  log.error('third');
  expect(written).toEqual([]);
  await turn();
  expect(written).toHaveLength(1);
  expect(lines()).toMatchObject([
    { level: 30, msg: 'first' },
    { level: 40, part: 1, extra: true, msg: 'second 2' },
    { level: 50, msg: 'third' },
  ]);
});

test('a line has the time and the context in which it was logged', async () => {
  as('a', () => log.info('first'));
  nowMs = 2000;
  as('b', () => log.info('second'));
  nowMs = 3000;
  await turn();
  expect(lines()).toMatchObject([
    { time: '1970-01-01T00:00:01.000Z', who: 'a' },
    { time: '1970-01-01T00:00:02.000Z', who: 'b' },
  ]);
});

test('later turns have their own writes, and turns without lines have none', async () => {
  log.info('first');
  await turn();
  await turn();
  log.info('second');
  await turn();
  expect(lines().map(({ msg }) => msg)).toEqual(['first', 'second']);
  expect(written).toHaveLength(2);
});

test('a line of a lower level is not kept', async () => {
  log.debug('first');
  await turn();
  expect(written).toEqual([]);
});

test('a fatal line is written at once, with all before it', () => {
  log.info('first');
  log.fatal('second');
  expect(lines().map(({ msg }) => msg)).toEqual(['first', 'second']);
});

/** A program with two loggers to standard error, `log` and `other`. */
function program(body: string): string {
  const module = new URL('./log.js', import.meta.url).href.replace('/runtime/', '/dist/runtime/');
  return `
    const { createLogger } = await import(${JSON.stringify(module)});
    const [log, other] = [1, 2].map(() => createLogger({ service: 'test', level: 'info' }));
    ${body}`;
}

const linesOf = (text: string): unknown[] =>
  text
    .split('\n')
    .filter((line) => line.startsWith('{"level"'))
    .map((line) => JSON.parse(line).msg);

test.each([
  ['ends by itself', ''],
  ['exits', 'process.exit(3);'],
  ['throws', "throw new Error('a defect');"],
])('a process that %s has written its lines to standard error', (_, end) => {
  const script = program(`log.info('first'); other.info('second'); ${end}`);
  const { stderr } = spawnSync(process.execPath, ['--input-type=module', '--eval', script], { encoding: 'utf8' });
  expect(linesOf(stderr)).toEqual(['first', 'second']);
});
