#!/usr/bin/env node
import process from 'node:process';

import { systemClock } from '@podwire/shared/runtime/clock';
import { outliveReader } from '@podwire/shared/runtime/reader-gone';
import { propagateTraces } from '@podwire/shared/runtime/telemetry';

import { run } from './run.js';

outliveReader('podwirectl');
propagateTraces();
process.exitCode = await run(process.argv.slice(2), { process, clock: systemClock });
