import { styleText } from 'node:util';

import type { JsonValue } from '@bufbuild/protobuf';

import type { Column, Fields, OutputFormat, Report, Section, Table } from './report.js';

/** Text for the two output streams. */
export interface Rendered {
  readonly stdout: string;
  readonly stderr: string;
}

const GAP = '  ';

export interface RenderOptions {
  readonly format: OutputFormat;
  /** Whether tables have headings. */
  readonly hasHeadings: boolean;
  /** Whether headings are bold and hints dim, for a terminal. */
  readonly isColoured: boolean;
  /** Writes machine-readable output; loaded for json and yaml only. */
  readonly renderData?: ((data: JsonValue, format: OutputFormat) => string) | undefined;
}

/** A report as text: an empty line between sections, except between sentences. Hints are for people, and only accompany tables. */
export function render(report: Report, options: RenderOptions): Rendered {
  const { format, renderData } = options;
  const stderr = (report.errors ?? []).map((error) => `podwirectl: ${printable(error)}\n`).join('');
  if (renderData) return { stdout: renderData(report.data(), format), stderr };
  if (format === 'name') return { stdout: (report.names ?? []).map((name) => `${name}\n`).join(''), stderr };
  const hints = report.hints?.map((hint) => `${styled('dim', `hint: ${hint}`, options)}\n`) ?? [];
  const sections = report.sections.map((section, index) => {
    const isNextLine = section.kind === 'sentence' && report.sections[index - 1]?.kind === 'sentence';
    return `${index === 0 || isNextLine ? '' : '\n'}${renderSection(section, options)}`;
  });
  return { stdout: sections.join(''), stderr: stderr + hints.join('') };
}

function renderSection(section: Section, options: RenderOptions): string {
  switch (section.kind) {
    case 'table':
      return titled(section.title, renderTable(section, options));
    case 'fields':
      return titled(section.title, renderFields(section));
    case 'sentence':
      return `${printable(section.text)}\n`;
    case 'text':
      return section.text.endsWith('\n') ? section.text : `${section.text}\n`;
  }
}

function titled(title: string | undefined, text: string): string {
  return title === undefined ? text : `${title}:\n${text}`;
}

const headOf = (column: Column): string => (typeof column === 'string' ? column : column.right);

function styled(style: 'bold' | 'dim', text: string, { isColoured }: RenderOptions): string {
  return isColoured ? styleText(style, text, { validateStream: false }) : text;
}

function renderTable({ columns, rows, none }: Table, options: RenderOptions): string {
  if (rows.length === 0) return `${none}\n`;
  const headings = options.hasHeadings ? [columns.map(headOf)] : [];
  const cells = [...headings, ...rows.map((row) => row.map((cell) => printable(cell) || '-'))];
  const widths = columns.map((_, place) => Math.max(...cells.map((row) => widthOf(row[place] ?? ''))));
  const line = (row: readonly string[]): string =>
    row
      .map((cell, place) => {
        const padding = ' '.repeat(Math.max(0, (widths[place] ?? 0) - widthOf(cell)));
        return typeof columns[place] === 'string' ? cell + padding : padding + cell;
      })
      .join(GAP)
      .trimEnd();
  const lines = cells.map(line);
  const [first = '', ...rest] = lines;
  const shown = options.hasHeadings ? [styled('bold', first, options), ...rest] : lines;
  return `${shown.join('\n')}\n`;
}

function renderFields({ fields }: Fields): string {
  const shown = fields.filter(([, value]) => value !== '');
  const width = Math.max(0, ...shown.map(([name]) => name.length));
  return shown.map(([name, value]) => `${name.padEnd(width)}${GAP}${printable(value)}\n`).join('');
}

/** Columns on a terminal, if all characters have the same width. */
const widthOf = (text: string): number => Array.from(text).length;

/** Replaces control characters, which would move the terminal's cursor. Stored texts may come from any source. */
function printable(text: string): string {
  return text.replaceAll(/\p{Cc}/gu, (character) => (character === '\n' ? ' ' : '\uFFFD'));
}
