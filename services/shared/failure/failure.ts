import { FAILURE_CODES, type FailureCode } from './codes.js';

/** One wrong field of a request, a configuration or a set of settings. */
export interface Violation {
  /** Path of the field, as its sender wrote it: `attachment.container_id`, `CNI_IFNAME`, `ipam.type`. */
  readonly field: string;
  /** What is wrong, and what would be right. */
  readonly reason: string;
}

export interface FailureOptions {
  readonly violations?: readonly Violation[];
  /** Facts for machines: names and numbers only, as they cross every border. */
  readonly details?: Readonly<Record<string, string>>;
  readonly cause?: unknown;
  /** Trace of the call that brought it, as 32 hexadecimal digits: the one that the other side's log has it under. */
  readonly traceId?: string | undefined;
}

/**
 * The one error that Podwire's own code throws for what can go wrong in use. The message names the object, the reason and the
 * next step; the code decides how each border passes it on, and whether a repeat makes sense.
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

/** A failure whose message lists every wrong field, so that one attempt shows them all. */
export function violationsFailure(code: FailureCode, subject: string, violations: readonly Violation[]): Failure {
  const list = violations.map(({ field, reason }) => `${field} ${reason}`).join('; ');
  return new Failure(code, `${subject}: ${list}`, { violations });
}
