#!/usr/bin/env node
// Tests Debian's plugins, and writes the results between two comments of README.md: `npm run table -w @podwire/conformance`,
// as root or in namespaces of a user's own. Names on the command line select some of them, whose table is only printed.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { judgePeer, PEERS } from './peers.js';
import { tableText, type TableEntry } from './report/table.js';

const README = join(import.meta.dirname, '..', 'README.md');
const [BEGIN, END] = ['<!-- peers -->\n', '<!-- end of peers -->\n'];

const names = process.argv.slice(2);
const entries: TableEntry[] = [];
for (const peer of PEERS.filter((name) => names.length === 0 || names.includes(name))) {
  const startMs = performance.now();
  const entry = await judgePeer(peer, process.pid);
  entries.push(entry);
  const bad = entry.verdicts.filter(({ status }) => status === 'fail' || status === 'error');
  process.stderr.write(`${peer}, ${((performance.now() - startMs) / 1000).toFixed(0)} s\n`);
  for (const { id, level, status, reasons } of bad)
    process.stderr.write(`  ${level} ${id} (${status}): ${reasons.join('; ')}\n`);
}
const table = tableText(entries);
if (names.length > 0) {
  process.stdout.write(table);
} else {
  const text = readFileSync(README, 'utf8');
  const [from, to] = [text.indexOf(BEGIN), text.indexOf(END)];
  if (from < 0 || to < from) throw new Error(`${README} lacks the comments between which the table stands`);
  writeFileSync(README, `${text.slice(0, from + BEGIN.length)}\n${table}\n${text.slice(to)}`);
}
