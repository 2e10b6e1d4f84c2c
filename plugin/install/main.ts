#!/usr/bin/env node
import { randomUUID } from 'node:crypto';
import process from 'node:process';

import { systemClock } from '@podwire/shared/runtime/clock';
import { outliveReader } from '@podwire/shared/runtime/reader-gone';

import { parseCommandLine } from './command-line.js';
import { runCommand } from './commands.js';

outliveReader('podwire');
const around = { process, clock: systemClock, newUid: randomUUID };
process.exitCode = await runCommand(parseCommandLine(process.argv.slice(2)), around);
