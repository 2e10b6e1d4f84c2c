import { expect, test } from 'vitest';

import { FAILURE_CODES } from './codes.js';
import { Failure, violationsFailure } from './failure.js';

test('a failure carries code, message, violations, details and cause', () => {
  const cause = new Error('ENOENT');
  const violations = [{ field: 'ipam.type', reason: 'is empty' }];
  const failure = new Failure('INVALID_CONFIG', 'refused', { violations, details: { key: 'a' }, cause });
  expect(failure).toBeInstanceOf(Error);
  expect(failure).toMatchObject({ name: 'Failure', code: 'INVALID_CONFIG', message: 'refused', violations, cause });
  expect(failure.details).toEqual({ key: 'a' });
});

test('violations, details and cause are optional', () => {
  const failure = new Failure('CONFLICT', 'busy');
  expect([failure.violations, failure.details]).toEqual([[], {}]);
  expect(failure).not.toHaveProperty('cause');
});

test('whether a failure is retryable is a property of its code', () => {
  const repeated = Object.entries(FAILURE_CODES).filter(([, { retryable }]) => retryable);
  expect(new Failure('STORE_UNAVAILABLE', 'x').retryable).toBe(true);
  expect(new Failure('INVALID_REQUEST', 'x').retryable).toBe(false);
  expect(repeated.map(([code]) => code).sort()).toEqual([
    'BIRD_UNREACHABLE',
    'CANCELLED',
    'CONFLICT',
    'DEADLINE_EXCEEDED',
    'DELEGATE_UNAVAILABLE',
    'HOST_PORT_TAKEN',
    'NOT_READY',
    'PODS_AT_RISK',
    'STORE_RESTORED',
    'STORE_UNAVAILABLE',
    'TOO_MANY_REQUESTS',
    'TOO_MANY_STREAMS',
    'UNREACHABLE',
  ]);
});

test('invalid fields are listed in the message, each with its reason', () => {
  const violations = [
    { field: 'CNI_IFNAME', reason: 'is empty' },
    { field: 'CNI_NETNS', reason: 'is missing' },
  ];
  const failure = violationsFailure('INVALID_ENVIRONMENT', 'ADD refused', violations);
  expect(failure.message).toBe('ADD refused: CNI_IFNAME is empty; CNI_NETNS is missing');
  expect(failure).toMatchObject({ code: 'INVALID_ENVIRONMENT', violations });
});
