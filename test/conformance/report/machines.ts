import type { Verdict } from '../case.js';

export interface Judged {
  readonly name: string;
  readonly seed: number;
  readonly verdicts: readonly Verdict[];
}

/** Everything, evidence included. */
export function jsonReport({ name, seed, verdicts }: Judged): string {
  return `${JSON.stringify({ specification: '1.1.0', plugin: name, seed, verdicts }, undefined, 2)}\n`;
}

/** JUnit's XML as continuous integration reads it: a failed case below MUST is a skipped one, with its reasons. */
export function junitReport({ name, verdicts }: Judged): string {
  const isFailure = ({ level, status }: Verdict) => status === 'fail' && level === 'MUST';
  const failures = verdicts.filter(isFailure).length;
  const errors = verdicts.filter(({ status }) => status === 'error').length;
  const skipped = verdicts.filter(({ status }) => status !== 'pass').length - failures - errors;
  const totals = `tests="${verdicts.length}" failures="${failures}" errors="${errors}" skipped="${skipped}"`;
  const lines = verdicts.map((verdict) => testCase(name, verdict));
  return `<?xml version="1.0" encoding="UTF-8"?>\n<testsuite name="${escaped(name)}" ${totals}>\n${lines.join('')}</testsuite>\n`;
}

function testCase(name: string, { id, level, section, title, status, reasons, evidence, durationMs }: Verdict): string {
  const attributes = `classname="${escaped(name)}.${level}" name="${escaped(`${id}: ${title} [${section}]`)}"`;
  const open = `  <testcase ${attributes} time="${(durationMs / 1000).toFixed(3)}"`;
  if (status === 'pass') return `${open}/>\n`;
  const message = `message="${escaped(reasons.join('; '))}"`;
  if (status === 'error')
    return `${open}>\n    <error ${message}>${escaped(evidence.join('\n'))}</error>\n  </testcase>\n`;
  if (status === 'fail' && level === 'MUST') {
    return `${open}>\n    <failure ${message}>${escaped(evidence.join('\n'))}</failure>\n  </testcase>\n`;
  }
  return `${open}>\n    <skipped ${message}/>\n  </testcase>\n`;
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&apos;',
};

/** XML has no way to write most control characters: they become a question mark. */
function escaped(text: string): string {
  return text
    .replace(/[&<>"']/g, (character) => ENTITIES[character] ?? character)
    .replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd]/g, '?');
}
