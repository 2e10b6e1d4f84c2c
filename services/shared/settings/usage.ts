import type { Settings } from './config-reader.js';

/** Widest line of a usage text. */
const MAX_WIDTH = 110;
const INDENT = '      ';

/**
 * The settings of a program for its `--help`: each variable with its default, and its description below.
 * @returns lines, with a final newline
 */
export function settingsUsage(settings: Settings): string {
  const entries = Object.values(settings).map(
    ({ variable, default: usual, about }) => `  ${variable}${usual === '' ? '' : ` (${usual})`}\n${wrapped(about)}`,
  );
  return `settings (environment variables) with their defaults:\n\n${entries.join('')}`;
}

/** {@link settingsUsage} of a process that exports telemetry. */
export function serverSettingsUsage(settings: Settings): string {
  const about = 'Export of telemetry: see services/shared/telemetry/README.md.';
  return `${settingsUsage(settings)}  OTEL_…\n${wrapped(about)}`;
}

/** Usage text of a process that is configured by settings only. */
export function serverUsage(name: string, about: string, settings: Settings): string {
  return `usage: ${name}\n\n${wrapped(about, '')}\n  --help, --version\n\n${serverSettingsUsage(settings)}`;
}

function wrapped(text: string, indent = INDENT): string {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    if (line !== '' && indent.length + line.length + 1 + word.length > MAX_WIDTH) {
      lines.push(line);
      line = '';
    }
    line += line === '' ? word : ` ${word}`;
  }
  return [...lines, line].map((each) => `${indent}${each}\n`).join('');
}
