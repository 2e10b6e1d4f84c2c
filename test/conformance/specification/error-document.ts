import { isObject, numberOf, parseJson, textOf } from './json.js';

/** Codes with a meaning in the specification (section 5, Error); 8 is libcni's, which runtimes know. */
const KNOWN_CODES: readonly number[] = [1, 2, 3, 4, 5, 6, 7, 8, 11, 50, 51];

/** The first code that plugins may define. */
const FIRST_OWN_CODE = 100;

/** The standard output of a failing plugin. */
export interface ErrorDocument {
  readonly cniVersion: string | undefined;
  readonly code: number;
  readonly msg: string;
}

export function readErrorDocument(stdout: string): ErrorDocument | undefined {
  const value = parseJson(stdout);
  if (!isObject(value)) return undefined;
  const [code, msg] = [numberOf(value.code), textOf(value.msg)];
  if (code === undefined || msg === undefined) return undefined;
  return { code, msg, cniVersion: textOf(value.cniVersion) };
}

/** The faults in the standard output of a failed plugin. `cniVersion` has a separate case. */
export function errorDocumentFaults(stdout: string): readonly string[] {
  const value = parseJson(stdout);
  if (!isObject(value)) return ['standard output is not one JSON object, which an error is'];
  const faults: string[] = [];
  const { code } = value;
  if (typeof code !== 'number' || !Number.isInteger(code) || code < 0) faults.push('code is no unsigned integer');
  else if (code < FIRST_OWN_CODE && !KNOWN_CODES.includes(code)) {
    faults.push(`code ${code} is reserved and has no meaning`);
  }
  if (textOf(value.msg) === undefined) faults.push('msg is not a text, or empty');
  if (value.details !== undefined && typeof value.details !== 'string') faults.push('details is not a text');
  return faults;
}
