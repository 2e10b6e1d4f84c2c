import { hostname } from 'node:os';
import process from 'node:process';

import { runRemoval } from '@podwire/dataplane/removal';
import { systemClock as clock } from '@podwire/shared/runtime/clock';

import { readNodeSettings } from '../settings.js';

const USAGE = 'usage: podwire-node remove [--yes]\ntry: podwire-node --help\n';

const { pid, stdout, stderr } = process;
const options = process.argv.slice(3);
if (options.every((option) => option === '--yes')) {
  const deps = { clock, pid, stdout, stderr };
  process.exitCode = await runRemoval(() => readNodeSettings(process.env, hostname()), options.length > 0, deps);
} else {
  stderr.write(USAGE);
  process.exitCode = 2;
}
