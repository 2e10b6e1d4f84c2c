import { violationsFailure, type Violation } from '../failure/failure.js';

/** Collects the faults of a request, so that one answer lists all of them. */
export class Checks {
  readonly #violations: Violation[];
  readonly #prefix: string;

  constructor(violations: Violation[] = [], prefix = '') {
    this.#violations = violations;
    this.#prefix = prefix;
  }

  /** The checks of a message in a field, which names its own fields only. */
  within(field: string): Checks {
    return new Checks(this.#violations, `${this.#prefix}${field}.`);
  }

  /** @param reason - undefined when the field is valid */
  check(field: string, reason: string | undefined): void {
    if (reason !== undefined) this.#violations.push({ field: `${this.#prefix}${field}`, reason });
  }

  /** @throws Failure INVALID_REQUEST that lists all faults */
  throwIfAny(method: string): void {
    if (this.#violations.length > 0) throw violationsFailure('INVALID_REQUEST', `${method} refused`, this.#violations);
  }
}

/**
 * Converts the message of a request to a value.
 * @param read - adds faults to the checks; its result is ignored if there are any
 * @throws Failure INVALID_REQUEST
 */
export function readChecked<Value>(method: string, read: (checks: Checks) => Value): Value {
  const checks = new Checks();
  const value = read(checks);
  checks.throwIfAny(method);
  return value;
}
