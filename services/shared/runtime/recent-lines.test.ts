import fc from 'fast-check';
import { expect, test } from 'vitest';

import { createLogger } from './log.js';
import { RecentLines } from './recent-lines.js';

function written(recent: RecentLines, lines: readonly string[]): string[] {
  const passed: string[] = [];
  const destination = recent.alongside({ write: (line) => void passed.push(line) });
  for (const line of lines) destination.write(line);
  return passed;
}

test('the last 2000 lines are kept in their order, and all are passed on', () => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 5000 }), (count) => {
      const recent = new RecentLines();
      const lines = Array.from({ length: count }, (_, index) => `line ${index}\n`);
      expect(written(recent, lines)).toEqual(lines);
      expect(recent.text()).toBe(lines.slice(-2000).join(''));
    }),
    { numRuns: 20 },
  );
});

test('a time restricts the lines; a line without a time stays', () => {
  const recent = new RecentLines();
  const [early, late] = ['{"time":"2026-05-04T12:00:00.000Z"}\n', '{"time":"2026-05-04T13:00:00.000Z"}\n'];
  written(recent, [early, 'no JSON\n', late]);
  expect(recent.text(new Date('2026-05-04T12:30:00Z'))).toBe(`no JSON\n${late}`);
});

test('of a long line the beginning is kept', () => {
  const recent = new RecentLines();
  written(recent, [`${'x'.repeat(10_000)}\n`, 'next\n']);
  expect(recent.text()).toBe(`${'x'.repeat(4096)}\nnext\n`);
});

test('a logger keeps its lines', () => {
  const recent = new RecentLines();
  createLogger({ service: 'test', level: 'info', destination: { write: () => undefined }, recent }).info('hello');
  expect(JSON.parse(recent.text())).toMatchObject({ msg: 'hello', service: 'test' });
});
