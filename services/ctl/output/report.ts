import type { JsonValue } from '@bufbuild/protobuf';

/** What a command has to say. */
export interface Report {
  /** For people, in this order. */
  readonly sections: readonly Section[];
  /** For programs: the answers of the services. Called only when it is asked for. */
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
