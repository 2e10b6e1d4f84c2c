import { FAILURE_CODES, type FailureCode } from './codes.js';

/** One wrong field of a request, a configuration or a set of settings. */
export interface Violation {
  /** Path of the field, as its sender wrote it: `attachment.container_id`, `CNI_IFNAME`, `ipam.type`. */
  readonly field: string;
  /** Violation, and the valid values. */
  readonly reason: string;
}

export interface FailureOptions {
  readonly violations?: readonly Violation[];
  /** Facts for machines. Names and numbers only, because clients receive them. */
  readonly details?: Readonly<Record<string, string>>;
  readonly cause?: unknown;
  /** Trace ID of the failed call, 32 hexadecimal digits, which the peer's log contains too. */
  readonly traceId?: string | undefined;
}

/**
 * The error that Podwire's code throws for expected failures. The message names the object, the fault and the next step. The
 * code determines gRPC status, CNI error code, and whether a retry may succeed.
 */
export class Failure extends Error {
  override readonly name = 'Failure';
  readonly code: FailureCode;
  readonly violations: readonly Violation[];
  readonly details: Readonly<Record<string, string>>;
  readonly traceId: string | undefined;

  constructor(code: FailureCode, message: string, options: FailureOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.violations = options.violations ?? [];
    this.details = options.details ?? {};
    this.traceId = options.traceId;
  }

  get retryable(): boolean {
    return FAILURE_CODES[this.code].retryable;
  }
}

/** A failure whose message lists every invalid field, so that one attempt shows them all. */
export function violationsFailure(code: FailureCode, subject: string, violations: readonly Violation[]): Failure {
  const list = violations.map(({ field, reason }) => `${field} ${reason}`).join('; ');
  return new Failure(code, `${subject}: ${list}`, { violations });
}

/** How a message refers to the trace of its call. */
export const UNDER_TRACE = 'under this trace';

/** A failure's message for output without trace context: includes the trace ID if the message refers to one. */
export function tracedMessage({ message, traceId }: Failure): string {
  return traceId === undefined ? message : message.replaceAll(UNDER_TRACE, `under trace ${traceId}`);
}
