#!/usr/bin/env node
import process from 'node:process';

import { systemClock } from '@podwire/shared/runtime/clock';

import { run } from './run.js';

process.exitCode = await run(process.argv.slice(2), { process, clock: systemClock });
