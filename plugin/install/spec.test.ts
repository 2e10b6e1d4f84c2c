import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { fillPlaceholders, ignoredPlaceholders, placeholderValues } from './spec.js';

const values = placeholderValues({
  mtuBytes: 1440,
  nodeName: 'node-1',
  logLevel: 'info',
  env: { KUBERNETES_SERVICE_HOST: '10.0.0.1', SERVICEACCOUNT_TOKEN: 'secret', LOG_FILE_PATH: '/x' },
});

describe('placeholders', () => {
  test.each([
    ['{"mtu": __CNI_MTU__}', { mtu: 1440 }],
    ['{"mtu": "__CNI_MTU__"}', { mtu: '1440' }],
    ['{"n": __KUBERNETES_NODE_NAME__}', { n: 'node-1' }],
    ['{"n": "a-__KUBERNETES_NODE_NAME__-__CNI_MTU__"}', { n: 'a-node-1-1440' }],
    ['{"a": "__KUBERNETES_SERVICE_HOST__:__KUBERNETES_SERVICE_PORT__"}', { a: '10.0.0.1:' }],
    [String.raw`{"a": "\"__CNI_MTU__\\"}`, { a: '"1440\\' }],
    ['{"max": __LOG_FILE_MAX_SIZE__}', { max: 0 }],
  ])('%s', (template, expected) => {
    expect(JSON.parse(fillPlaceholders(template, values))).toEqual(expected);
  });

  test('an unknown placeholder is refused by name, together with all further ones', () => {
    expect(() => fillPlaceholders('{"a": "__FOO__", "b": __BAR_1__, "c": "__FOO__"}', values)).toThrow(
      /without a value: __FOO__, __BAR_1__; use only CNI_MTU/,
    );
  });

  test('a credential is never written, and the log’s file is ignored', () => {
    const template = '{"t": "__SERVICEACCOUNT_TOKEN__", "f": "__LOG_FILE_PATH__"}';
    expect(fillPlaceholders(template, values)).toBe('{"t": "", "f": ""}');
    expect(ignoredPlaceholders(template)).toEqual(['LOG_FILE_PATH', 'SERVICEACCOUNT_TOKEN']);
  });

  test('no value changes the meaning of the rest of the text', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (value) => {
        const filled = fillPlaceholders('{"in": "<__X__>", "out": __X__, "last": 1}', { X: value });
        const parsed = JSON.parse(filled);
        expect(parsed).toMatchObject({ in: `<${value}>`, last: 1 });
        expect(String(parsed.out)).toBe(/^-?\d+(\.\d+)?$/.test(value) ? String(Number(value)) : value);
      }),
      { examples: [['"'], ['\\'], ['",x":"'], ['$&'], ['1e9'], ['-0.5'], ['true'], ['__X__'], ['\u2028\n']] },
    );
  });
});
