import { Failure } from '@podwire/shared/failure/failure';

/** The failure that some work throws. Whatever else it throws, or nothing, is the test's end. */
export function failureOf(work: () => unknown): Failure {
  try {
    work();
  } catch (error) {
    if (error instanceof Failure) return error;
    throw error;
  }
  throw new Error('it did not fail');
}
