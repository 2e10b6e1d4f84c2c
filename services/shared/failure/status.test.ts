import { Metadata, status, type ServiceError, type StatusObject } from '@grpc/grpc-js';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { FAILURE_CODES, isFailureCode } from './codes.js';
import { Failure, tracedMessage } from './failure.js';
import { failureOfError, statusOfError } from './status.js';

const PEER = 'podwire-ipam at unix:/run/podwire/ipam.sock';
const DETAILS_KEY = 'grpc-status-details-bin';

/** The error that grpc-js creates for a status on the client's side. */
function errorOf({ code, details, metadata }: StatusObject): ServiceError {
  return Object.assign(new Error(`${code} ${status[code]}: ${details}`), { code, details, metadata });
}

function peerError(code: status, details: string, packed?: Buffer): ServiceError {
  const metadata = new Metadata();
  if (packed) metadata.set(DETAILS_KEY, packed);
  return errorOf({ code, details, metadata });
}

/** The size of a status in the trailers: an escaped message, and details in base64. */
function wireBytes({ details, metadata }: StatusObject): number {
  const packed = metadata.get(DETAILS_KEY).map((value) => Buffer.from(value).toString('base64').length);
  return encodeURI(details).length + packed.reduce((sum, bytes) => sum + bytes, 0);
}

const code = fc.constantFrom(...Object.keys(FAILURE_CODES).filter(isFailureCode));
const words = fc.string({ unit: 'grapheme', maxLength: 40 });
const violation = fc.record({ field: words, reason: words });

const failures = fc
  .record({
    code,
    message: words,
    violations: fc.array(violation, { maxLength: 5 }),
    details: fc.dictionary(fc.stringMatching(/^[a-z]{1,12}$/), words, { maxKeys: 5, noNullPrototype: true }),
  })
  .map(({ code: of, message, ...options }) => new Failure(of, message, options));

describe('failure → status → failure', () => {
  test('keeps code, message, violations and details', () => {
    fc.assert(
      fc.property(failures, (failure) => {
        const sent = statusOfError(failure);
        expect(sent.code).toBe(status[FAILURE_CODES[failure.code].status]);
        const error = errorOf(sent);
        const { code: received, message, violations, details, cause } = failureOfError(error, PEER);
        expect({ received, message }).toEqual({ received: failure.code, message: failure.message });
        expect({ violations, details }).toEqual({ violations: failure.violations, details: failure.details });
        expect(cause).toBe(error);
      }),
    );
  });

  test('fits into gRPC’s limit of 16 KiB, for any failure', () => {
    const long = fc.string({ unit: fc.constantFrom('a', ' ', '…', '\ud800', '💥'), maxLength: 9000, size: 'max' });
    const many = { maxLength: 3000, size: 'max' } as const;
    const big = fc
      .record({
        message: long,
        violations: fc.array(fc.record({ field: fc.constantFrom('', 'a.b'), reason: words }), many),
        details: fc.array(fc.tuple(fc.nat().map(String), words), many).map((pairs) => Object.fromEntries(pairs)),
      })
      .map(({ message, ...options }) => new Failure('POOLS_EXHAUSTED', message, options));
    fc.assert(
      fc.property(big, (failure) => {
        const sent = statusOfError(failure);
        expect(wireBytes(sent)).toBeLessThan(16 * 1024 - 256);
        expect(failureOfError(errorOf(sent), PEER).code).toBe('POOLS_EXHAUSTED');
      }),
      // Shrinking such sizes takes minutes and shows no more than the size does.
      { numRuns: 50, endOnFailure: true },
    );
  });

  test('a message that is too long is cut, with a note', () => {
    const sent = statusOfError(new Failure('POOLS_EXHAUSTED', 'x'.repeat(2049)));
    expect(sent.details).toMatch(/^x{2048}… \(truncated;/);
    expect(statusOfError(new Failure('POOLS_EXHAUSTED', 'x'.repeat(2048))).details).toBe('x'.repeat(2048));
  });

  test('violations and details that do not fit are dropped from the end', () => {
    const violations = Array.from({ length: 1000 }, (_, n) => ({ field: `field[${n}]`, reason: 'is wrong' }));
    const received = failureOfError(errorOf(statusOfError(new Failure('INVALID_REQUEST', 'm', { violations }))), PEER);
    expect(received.violations.length).toBeGreaterThan(50);
    expect(received.violations).toEqual(violations.slice(0, received.violations.length));
  });
});

describe('a thrown value that is not a failure', () => {
  test.each([
    ['an error', new TypeError('password is hunter2')],
    ['a text', 'password is hunter2'],
    ['nothing', undefined],
    ['an object like a failure', { code: 'POOL_IN_USE', message: 'password is hunter2' }],
  ])('%s becomes a neutral text without its content', (_, thrown) => {
    const sent = statusOfError(thrown);
    expect(sent).toMatchObject({
      code: status.INTERNAL,
      details: 'internal error: see the service’s log under this trace',
    });
    const bytes = Buffer.concat(sent.metadata.get(DETAILS_KEY).map((value) => Buffer.from(value)));
    expect(bytes.toString('latin1')).not.toMatch(/hunter2|TypeError|\.ts/);
    expect(Object.keys(sent.metadata.getMap())).toEqual([DETAILS_KEY]);
    expect(failureOfError(errorOf(sent), PEER)).toMatchObject({ code: 'INTERNAL', details: {}, violations: [] });
  });

  test('refers to its trace, where there is one', () => {
    const trace = '0af7651916cd43dd8448eb211c80319c';
    const messageOf = (thrown: unknown, traceId?: string) =>
      tracedMessage(failureOfError(errorOf(statusOfError(thrown)), PEER, traceId));
    expect(messageOf(new Error('x'), trace)).toBe(`internal error: see the service’s log under trace ${trace}`);
    expect(messageOf(new Error('x'))).toBe('internal error: see the service’s log under this trace');
    expect(messageOf(new Failure('CONFLICT', 'x'.repeat(10_000)), trace)).toMatch(
      new RegExp(`has the whole message under trace ${trace}\\)$`),
    );
    expect(messageOf(new Failure('CONFLICT', 'busy'), trace)).toBe('busy');
  });

  test('the cause of a failure is not sent', () => {
    const sent = statusOfError(new Failure('STORE_UNAVAILABLE', 'gone', { cause: new Error('hunter2') }));
    const bytes = Buffer.concat(sent.metadata.get(DETAILS_KEY).map((value) => Buffer.from(value)));
    expect(bytes.toString('latin1')).not.toContain('hunter2');
  });
});

describe('a status without Podwire’s failure', () => {
  test.each([
    [status.UNAVAILABLE, 'UNREACHABLE', /^podwire-ipam at .* does not answer; check that it runs.*\(refused\)$/],
    [status.DEADLINE_EXCEEDED, 'DEADLINE_EXCEEDED', /^podwire-ipam at .* did not answer in time.*\(refused\)$/],
    [status.UNIMPLEMENTED, 'UNIMPLEMENTED', /^podwire-ipam at .*: method is unknown.*\(refused\)$/],
    [status.CANCELLED, 'CANCELLED', /^podwire-ipam at .*: refused$/],
    [status.INVALID_ARGUMENT, 'INVALID_REQUEST', /^podwire-ipam at .*: refused$/],
    [status.PERMISSION_DENIED, 'INTERNAL', /^podwire-ipam at .*: refused$/],
    [status.UNKNOWN, 'INTERNAL', /^podwire-ipam at .*: refused$/],
  ])('%i is %s', (grpc, expected, message) => {
    const failure = failureOfError(peerError(grpc, 'refused'), PEER);
    expect(failure.code).toBe(expected);
    expect(failure.message).toMatch(message);
  });

  test('a deadline before there was a connection has no reference to the peer’s log', () => {
    const details = 'Deadline exceeded after 2.000s,name resolution: 0.001s,wait_for_ready,Waiting for LB pick';
    const { code, message } = failureOfError(peerError(status.DEADLINE_EXCEEDED, details), PEER);
    expect(code).toBe('DEADLINE_EXCEEDED');
    expect(message).toMatch(
      /^podwire-ipam at .*: did not answer in time: no connection; check that it runs and listens there$/,
    );
  });

  test('a deadline has Podwire’s message, not the library’s', () => {
    const details = 'Deadline exceeded after 1.490s,name resolution: 0.001s,remote_addr=/run/podwire/ipam.sock';
    const { message, cause } = failureOfError(peerError(status.DEADLINE_EXCEEDED, details), PEER);
    expect(message).toMatch(/^podwire-ipam at .*: did not answer in time; see its log under this trace$/);
    expect(cause).toMatchObject({ details });
  });

  test('unreadable details are ignored, whatever their bytes', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 60 }), (bytes) => {
        const error = peerError(status.UNAVAILABLE, 'refused', Buffer.from(bytes));
        expect(failureOfError(error, PEER).code).toBe('UNREACHABLE');
      }),
    );
  });

  test('a damaged failure is ignored', () => {
    const [packed] = statusOfError(new Failure('POOL_IN_USE', 'busy', { details: { pool: 'a' } })).metadata.get(
      DETAILS_KEY,
    );
    const cut = Buffer.from(packed ?? '').subarray(0, 60);
    expect(failureOfError(peerError(status.FAILED_PRECONDITION, 'busy', cut), PEER).code).toBe('INTERNAL');
  });

  test('a code of another domain is ignored, and one of a later release is mapped by its status', () => {
    const replaced = (from: string, to: string) => {
      const [packed] = statusOfError(new Failure('CONFLICT', 'busy')).metadata.get(DETAILS_KEY);
      expect(from).toHaveLength(to.length);
      return Buffer.from(
        Buffer.from(packed ?? '')
          .toString('latin1')
          .replace(from, to),
        'latin1',
      );
    };
    const other = peerError(status.UNAVAILABLE, 'busy', replaced('podwire.dev', 'example.com'));
    const later = (code: status) => peerError(code, 'busy', replaced('CONFLICT', 'CONFLACT'));
    expect(failureOfError(other, PEER)).toMatchObject({ code: 'UNREACHABLE', message: expect.stringContaining(PEER) });
    const seen = [status.UNAVAILABLE, status.ABORTED, status.INVALID_ARGUMENT, status.NOT_FOUND, status.INTERNAL].map(
      (code) => failureOfError(later(code), PEER),
    );
    expect(seen.map(({ code }) => code)).toEqual([
      'UNREACHABLE',
      'CONFLICT',
      'INVALID_REQUEST',
      'UNKNOWN_REASON',
      'UNKNOWN_REASON',
    ]);
    // The peer's text is kept, with the reason of the peer.
    for (const failure of seen) expect(failure).toMatchObject({ message: 'busy', details: { reason: 'CONFLACT' } });
  });
});
