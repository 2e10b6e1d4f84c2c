#!/usr/bin/env node
import { randomUUID } from 'node:crypto';
import process from 'node:process';

import { systemClock } from '@podwire/shared/runtime/clock';
import { tolerateBrokenPipe } from '@podwire/shared/runtime/broken-pipe';

import { parseCommandLine } from './command-line.js';
import { runCommand } from './commands.js';

tolerateBrokenPipe('podwire');
const deps = { process, clock: systemClock, newUid: randomUUID };
process.exitCode = await runCommand(parseCommandLine(process.argv.slice(2)), deps);
