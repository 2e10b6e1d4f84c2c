import { violationsFailure, type Violation } from '../failure/failure.js';

/** Collects what is wrong with a request, so that one answer names it all. */
export class Checks {
  readonly #violations: Violation[] = [];

  /** @param reason - undefined when the field is right */
  check(field: string, reason: string | undefined): void {
    if (reason !== undefined) this.#violations.push({ field, reason });
  }

  /** @throws Failure INVALID_REQUEST that lists everything that was found wrong */
  throwIfAny(method: string): void {
    if (this.#violations.length > 0) throw violationsFailure('INVALID_REQUEST', `${method} refused`, this.#violations);
  }
}

/**
 * Reads a request's message into a value.
 * @param read - notes in the checks what is wrong; what it returns then is not used
 * @throws Failure INVALID_REQUEST
 */
export function readChecked<Value>(method: string, read: (checks: Checks) => Value): Value {
  const checks = new Checks();
  const value = read(checks);
  checks.throwIfAny(method);
  return value;
}
