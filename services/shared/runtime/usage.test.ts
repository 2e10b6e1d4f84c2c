import { expect, test } from 'vitest';
import { z } from 'zod';

import { serverSettingsUsage, serverUsage, settingsUsage } from './usage.js';

const SETTINGS = {
  listen: { variable: 'PODWIRE_X_LISTEN', schema: z.string(), default: 'unix:/run/x.sock', about: 'Where to serve.' },
  pool: {
    variable: 'PODWIRE_X_POOL',
    schema: z.string(),
    default: '',
    about: `Its range, ${'or another '.repeat(20)}.`,
  },
};

test('every setting is listed with its default, where it has one, and its effect', () => {
  const text = settingsUsage(SETTINGS);
  expect(text).toContain('  PODWIRE_X_LISTEN (unix:/run/x.sock)\n      Where to serve.\n');
  expect(text).toContain('  PODWIRE_X_POOL\n      Its range, or another');
  expect(text).not.toContain('OTEL_');
});

test('a process that exports telemetry lists those settings, too', () => {
  const text = serverSettingsUsage(SETTINGS);
  expect(text.startsWith(settingsUsage(SETTINGS))).toBe(true);
  expect(text).toContain('  OTEL_…\n');
});

test('no line is wider than a terminal, and no word is dropped', () => {
  const text = serverUsage('podwire-x', `${'Serves x. It '.repeat(20)}ends.`, SETTINGS);
  expect(Math.max(...text.split('\n').map((line) => line.length))).toBeLessThanOrEqual(110);
  expect(text.match(/another/g)).toHaveLength(20);
  expect(text.replace(/\s+/g, ' ').match(/Serves x\./g)).toHaveLength(20);
  expect(text.endsWith('\n')).toBe(true);
});
