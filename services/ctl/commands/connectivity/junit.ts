/** A case of a test report. */
export interface Case {
  /** Group of the case. */
  readonly group: string;
  readonly name: string;
  readonly seconds: number;
  /** Empty: passed. */
  readonly failure: string;
  /** Empty: it ran. */
  readonly skipped: string;
}

/** A report in JUnit's XML form, as CI systems read it. */
export function junitOf(suite: string, cases: readonly Case[]): string {
  const failures = cases.filter(({ failure }) => failure !== '').length;
  const skipped = cases.filter((each) => each.skipped !== '').length;
  const counts = `tests="${cases.length}" failures="${failures}" skipped="${skipped}"`;
  const lines = cases.map(({ group, name, seconds, failure, skipped: reason }) => {
    const head = `    <testcase classname="${escaped(group)}" name="${escaped(name)}" time="${seconds.toFixed(3)}"`;
    if (failure !== '') return `${head}><failure message="${escaped(failure)}"/></testcase>`;
    return reason === '' ? `${head}/>` : `${head}><skipped message="${escaped(reason)}"/></testcase>`;
  });
  return [
    '<?xml version="1.0" encoding="UTF-8"?>',
    `<testsuites ${counts}>`,
    `  <testsuite name="${escaped(suite)}" ${counts}>`,
    ...lines,
    '  </testsuite>',
    '</testsuites>',
    '',
  ].join('\n');
}

const ESCAPES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  '\n': '&#10;',
};

function escaped(text: string): string {
  return text.replace(/[&<>"\n]/g, (character) => ESCAPES[character] ?? '');
}
