#!/usr/bin/env node
import process from 'node:process';

import { systemClock } from '@podwire/shared/runtime/clock';
import { tolerateBrokenPipe } from '@podwire/shared/runtime/broken-pipe';
import { propagateTraces } from '@podwire/shared/runtime/telemetry';

import { run } from './run.js';

tolerateBrokenPipe('podwirectl');
propagateTraces();
process.exitCode = await run(process.argv.slice(2), { process, clock: systemClock });
