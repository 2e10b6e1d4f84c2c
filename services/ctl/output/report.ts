import type { JsonValue } from '@bufbuild/protobuf';
import { FAILURE_CODES, type FailureCode } from '@podwire/shared/failure/codes';

/** The result of a command. */
export interface Report {
  /** Output for people, in this order. */
  readonly sections: readonly Section[];
  /** Machine-readable output: the answers of the services. Called only for JSON output. */
  readonly data: () => JsonValue;
  /** Failures, for the standard error, in every format. */
  readonly errors?: readonly string[];
  /** Suggested next commands. They go to the standard error, so that a table can be piped. */
  readonly hints?: readonly string[];
  /** Whether the command has printed its output itself. */
  readonly isPrinted?: boolean;
  /** Names of the objects, for `-o name`. */
  readonly names?: readonly string[];
  /** The change that this report previews. */
  readonly confirmation?: Confirmation;
  /** Default: {@link DONE}. */
  readonly exitCode?: number;
}

/** A change that is only executed once it is confirmed. */
export interface Confirmation {
  /** Command line that executes exactly the preview, without the program's name. */
  readonly command: string;
  readonly execute: () => Promise<Report>;
}

export type Section = Table | Fields | Sentence | Text;

export interface Table {
  readonly kind: 'table';
  readonly title?: string;
  readonly columns: readonly Column[];
  readonly rows: readonly (readonly string[])[];
  /** Printed where there is no row. */
  readonly none: string;
}

/** A column's heading; `right` aligns the column to the right, as for numbers. */
export type Column = string | { readonly right: string };

/** Names with their values, one per line; names without a value are omitted. */
export interface Fields {
  readonly kind: 'fields';
  readonly title?: string;
  readonly fields: readonly (readonly [name: string, value: string])[];
}

export interface Sentence {
  readonly kind: 'sentence';
  readonly text: string;
}

/** Lines that are printed as they are. */
export interface Text {
  readonly kind: 'text';
  readonly text: string;
}

export const sentence = (text: string): Sentence => ({ kind: 'sentence', text });

export const DONE = 0;
export const FAILED = 1;
export const INVALID_USAGE = 2;
export const NOT_FOUND = 3;
export const PROBLEM_FOUND = 4;
const NO_ANSWER = 5;

/** Exit codes of podwirectl, for scripts. */
export const EXIT_CODES = [
  { code: DONE, about: 'done' },
  { code: FAILED, about: 'failed or refused' },
  { code: INVALID_USAGE, about: 'usage error, or not confirmed' },
  { code: NOT_FOUND, about: 'object not found' },
  { code: PROBLEM_FOUND, about: 'problem or difference found' },
  { code: NO_ANSWER, about: 'a service did not answer' },
] as const;

/** One check of a node. The detail of a failure or a warning ends with its remedy. */
export interface Check {
  readonly check: string;
  readonly result: 'ok' | 'warning' | 'failed';
  readonly detail: string;
}

function checksTable(checks: readonly Check[]): Table {
  const rows = checks.map(({ check, result, detail }) => [check, result, detail]);
  return { kind: 'table', columns: ['CHECK', 'RESULT', 'DETAIL'], rows, none: '' };
}

/**
 * A table of checks. Its exit code says whether one failed.
 * @param values - further values for programs
 */
export function checksReport(checks: readonly Check[], values: Readonly<Record<string, boolean>> = {}): Report {
  const isPassed = checks.every(({ result }) => result !== 'failed');
  return {
    sections: [checksTable(checks)],
    data: () => ({ ...values, passed: isPassed, checks: checks.map((each) => ({ ...each })) }),
    exitCode: isPassed ? DONE : PROBLEM_FOUND,
  };
}

const EXIT_CODE_OF_STATUS: Readonly<Record<string, number>> = {
  INVALID_ARGUMENT: INVALID_USAGE,
  NOT_FOUND: NOT_FOUND,
  UNAVAILABLE: NO_ANSWER,
  DEADLINE_EXCEEDED: NO_ANSWER,
};

export function exitCodeOf(code: FailureCode): number {
  return EXIT_CODE_OF_STATUS[FAILURE_CODES[code].status] ?? FAILED;
}

/** How results are printed. */
export type OutputFormat = 'table' | 'wide' | 'yaml' | 'json' | 'name';
