import type { JsonValue } from '@bufbuild/protobuf';
import { status } from '@grpc/grpc-js';
import { FAILURE_CODES, type FailureCode } from '@podwire/shared/failure/codes';

/** What a command has to say. */
export interface Report {
  /** For people, in this order. */
  readonly sections: readonly Section[];
  /** Machine-readable output: the answers of the services. Called only for JSON output. */
  readonly data: () => JsonValue;
  /** What one may do next, for people: on the standard error, so that a table can be piped. */
  readonly hints?: readonly string[];
  /** Default: done. */
  readonly exitCode?: number;
}

export type Section = Table | Fields | Sentence;

export interface Table {
  readonly kind: 'table';
  readonly title?: string;
  readonly columns: readonly Column[];
  readonly rows: readonly (readonly string[])[];
  /** What is said where there is no row. */
  readonly none: string;
}

/** A column's head; numbers stand at its right. */
export type Column = string | { readonly right: string };

/** Names with their values, one in each line; those without a value are left out. */
export interface Fields {
  readonly kind: 'fields';
  readonly title?: string;
  readonly fields: readonly (readonly [name: string, value: string])[];
}

export interface Sentence {
  readonly kind: 'sentence';
  readonly text: string;
}

export const sentence = (text: string): Sentence => ({ kind: 'sentence', text });

export const DONE = 0;
export const FAILED = 1;
export const NOT_UNDERSTOOD = 2;
export const NOT_FOUND = 3;
export const FOUND_WRONG = 4;
const NO_ANSWER = 5;

/** How podwirectl ends, for scripts. */
export const EXIT_CODES = [
  { code: DONE, about: 'done' },
  { code: FAILED, about: 'failed or refused' },
  { code: NOT_UNDERSTOOD, about: 'not understood, or not confirmed with --yes' },
  { code: NOT_FOUND, about: 'what was named does not exist' },
  { code: FOUND_WRONG, about: 'something is not as it should be' },
  { code: NO_ANSWER, about: 'a service did not answer' },
] as const;

const OF_STATUS: Partial<Record<status, number>> = {
  [status.INVALID_ARGUMENT]: NOT_UNDERSTOOD,
  [status.NOT_FOUND]: NOT_FOUND,
  [status.UNAVAILABLE]: NO_ANSWER,
  [status.DEADLINE_EXCEEDED]: NO_ANSWER,
};

export function exitCodeOf(code: FailureCode): number {
  return OF_STATUS[FAILURE_CODES[code].status] ?? FAILED;
}

/** How results are printed. */
export type OutputFormat = 'table' | 'yaml' | 'json';
