// Text tables for a terminal.

/** Milliseconds with two decimals. */
export const ms = (value) => value.toFixed(2);

/** Rows under a head, in columns as wide as they need be; a rule under the head. */
export function table(head, rows) {
  const widths = head.map((title, column) => Math.max(title.length, ...rows.map((row) => String(row[column]).length)));
  const line = (cells) => `  ${cells.map((cell, column) => String(cell).padEnd(widths[column])).join('  ')}`.trimEnd();
  return [line(head), line(widths.map((width) => '─'.repeat(width))), ...rows.map(line)].join('\n');
}
