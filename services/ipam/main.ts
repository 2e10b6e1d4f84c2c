#!/usr/bin/env node
import { randomUUID } from 'node:crypto';
import process from 'node:process';

import { systemClock } from '@podwire/shared/runtime/clock';
import { runProcess } from '@podwire/shared/runtime/lifecycle';
import { createLogger } from '@podwire/shared/runtime/log';
import { startTelemetry } from '@podwire/shared/runtime/telemetry';

import { readConfig } from './config.js';
import { startService } from './service.js';

const NAME = 'podwire-ipam';

/** More than the longest time for calls to end that can be set. */
const STOP_TIMEOUT_MS = 75_000;

const log = createLogger({ service: NAME, level: 'info' });

await runProcess({
  log,
  stopTimeoutMs: STOP_TIMEOUT_MS,
  start: async (signal) => {
    const config = readConfig(process.env);
    log.level = config.logLevel;
    const stopTelemetry = await startTelemetry(NAME, process.env);
    const surroundings = { log, clock: systemClock, random: Math.random, newUid: randomUUID, pid: process.pid };
    const service = await startService(config, { ...surroundings, signal });
    const stop = async () => {
      await service.stop();
      await stopTelemetry();
    };
    return { stop };
  },
});
