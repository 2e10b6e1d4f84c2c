import type { Level, Verdict } from '../case.js';

/** A plugin and its verdicts. */
export interface TableEntry {
  readonly name: string;
  readonly verdicts: readonly Verdict[];
}

const LEVELS: readonly Level[] = ['MUST', 'SHOULD', 'ADVICE'];

const HEAD = ['Plugin', 'passed', ...LEVELS.map((level) => `${level} failed`), 'Failed rules'];

/** Markdown, one row for each plugin, as Prettier would have it. */
export function tableText(entries: readonly TableEntry[]): string {
  const rows = [HEAD, ...entries.map(cellsOf)];
  const widths = HEAD.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  const line = (cells: readonly string[]) =>
    `| ${cells.map((cell, at) => cell.padEnd(widths[at] ?? 0)).join(' | ')} |\n`;
  const [head = [], ...rest] = rows;
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...rest.map(line)].join('');
}

/** The texts of one row, in the order of the columns. */
export function cellsOf({ name, verdicts }: TableEntry): readonly string[] {
  const failed = verdicts.filter(isFailure);
  const count = (level: Level) => String(failed.filter((verdict) => verdict.level === level).length);
  const passed = verdicts.filter(({ status }) => status === 'pass').length;
  return [name, String(passed), ...LEVELS.map(count), failedText(failed)];
}

/** Whether it counts as failed: a case that cannot be run has not passed. */
function isFailure({ status }: Verdict): boolean {
  return status === 'fail' || status === 'error';
}

const VERSION = /^(.+)\.(\d+\.\d+\.\d+)$/;

/** The IDs, the most severe first; IDs that differ in the version only count as one. */
function failedText(failed: readonly Verdict[]): string {
  const versions = new Map<string, readonly string[]>();
  for (const level of LEVELS) {
    for (const { id } of failed.filter((verdict) => verdict.level === level)) {
      const [, base = id, version] = VERSION.exec(id) ?? [];
      versions.set(base, [...(versions.get(base) ?? []), ...(version === undefined ? [] : [version])]);
    }
  }
  const texts = [...versions].map(([id, list]) => `\`${id}\`${list.length > 0 ? ` (${list.join(', ')})` : ''}`);
  return texts.join(', ') || 'nothing';
}
