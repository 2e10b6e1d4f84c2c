import { hostname } from 'node:os';
import process from 'node:process';

import { systemClock as clock } from '@podwire/shared/runtime/clock';

import { readConfig } from '../config.js';
import { runRemoval } from '../removal.js';

const USAGE = 'usage: podwire-dataplane remove [--yes]\ntry: podwire-dataplane --help\n';

const { pid, stdout, stderr } = process;
const options = process.argv.slice(3);
if (options.every((option) => option === '--yes')) {
  const deps = { clock, pid, stdout, stderr };
  process.exitCode = await runRemoval(() => readConfig(process.env, hostname()), options.length > 0, deps);
} else {
  stderr.write(USAGE);
  process.exitCode = 2;
}
