import type { Level, Verdict } from '../case.js';

const MARKS = { pass: 'pass', fail: 'FAIL', 'not applicable': 'n/a', error: 'ERROR' } as const;
const LEVELS: readonly Level[] = ['MUST', 'SHOULD', 'ADVICE'];

/** One line for a verdict, with the reason where it is not a pass; with its evidence where it failed and `isVerbose`. */
export function verdictText(verdict: Verdict, { isVerbose }: { readonly isVerbose: boolean }): string {
  const { status, level, id, title, section, reasons, evidence } = verdict;
  const line = `${MARKS[status].padEnd(5)} ${level.padEnd(6)} ${id.padEnd(34)} ${title} [${section}]\n`;
  const isBad = status === 'fail' || status === 'error';
  const why =
    status === 'pass' ? [] : reasons.slice(0, isVerbose ? undefined : 3).map((reason) => `        ${reason}\n`);
  const shown = isVerbose && isBad ? evidence.map((entry) => `${entry.replace(/^/gm, '      | ')}\n`) : [];
  return [line, ...why, ...shown].join('');
}

/** The number of cases with each verdict, level by level. */
export function summaryText(name: string, verdicts: readonly Verdict[]): string {
  const count = (level: Level, status: Verdict['status']) =>
    String(verdicts.filter((verdict) => verdict.level === level && verdict.status === status).length);
  const row = (cells: readonly string[]) =>
    `${cells[0]?.padEnd(8)}${cells
      .slice(1)
      .map((cell) => cell.padStart(16))
      .join('')}\n`;
  const statuses = ['pass', 'fail', 'not applicable', 'error'] as const;
  const rows = LEVELS.map((level) => row([level, ...statuses.map((status) => count(level, status))]));
  return [`\n${name}\n`, row(['', ...statuses]), ...rows].join('');
}

/** Cases of the level MUST that did not pass although they apply. */
export function mustFailures(verdicts: readonly Verdict[]): number {
  return verdicts.filter(({ level, status }) => level === 'MUST' && (status === 'fail' || status === 'error')).length;
}
