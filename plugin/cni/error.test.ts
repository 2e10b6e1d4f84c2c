import { FAILURE_CODES, isFailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, test } from 'vitest';

import { cniErrorOf } from './error.js';

const codes = Object.keys(FAILURE_CODES).filter(isFailureCode);

describe('an error object', () => {
  test.each(codes)('has the registry’s code for %s, and its name', (code) => {
    const failure = new Failure(code, 'message', { details: { pool: 'a' } });
    expect(cniErrorOf(failure, { cniVersion: '0.4.0', traceId: 'abc' })).toEqual({
      cniVersion: '0.4.0',
      code: FAILURE_CODES[code].cni,
      msg: 'message',
      details: `${code}; pool: a; trace: abc`,
    });
  });

  test.each([new TypeError('secret'), 'secret', undefined])('does not disclose the defect %s', (defect) => {
    const error = cniErrorOf(defect, { cniVersion: '1.0.0' });
    expect(error.code).toBe(999);
    expect(JSON.stringify(error)).not.toContain('secret');
  });

  test('has no phrase that containerd takes for a successful DEL', () => {
    const failure = new Failure('KERNEL_REFUSED', 'Not found, not found: No such file or directory', {
      details: { object: 'not found' },
    });
    expect(JSON.stringify(cniErrorOf(failure, { cniVersion: '1.0.0' }))).not.toMatch(/not found|no such file/i);
  });
});
