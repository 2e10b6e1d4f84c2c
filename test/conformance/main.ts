#!/usr/bin/env node
import process from 'node:process';

import { runCommandLine } from './command-line.js';

// A reader of the output, such as head, may have closed it.
process.stdout.on('error', () => undefined);
process.exitCode = await runCommandLine({
  args: process.argv.slice(2),
  self: [process.execPath, ...process.execArgv, ...process.argv.slice(1, 2)],
  env: process.env,
  pid: process.pid,
  isRoot: process.getuid?.() === 0,
  chance: Math.random,
  write: (text) => process.stdout.write(text),
  complain: (text) => process.stderr.write(text),
});
