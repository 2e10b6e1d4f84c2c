#!/usr/bin/env node
import { hostname } from 'node:os';
import process from 'node:process';

import { systemClock } from '@podwire/shared/runtime/clock';
import { runProcess } from '@podwire/shared/runtime/lifecycle';
import { createLogger } from '@podwire/shared/runtime/log';
import { startTelemetry } from '@podwire/shared/telemetry/telemetry';

import { dataplaneUsage, readConfig } from './config.js';
import { readBoot } from './pods/orphans.js';
import { startService } from './service.js';

const NAME = 'podwire-dataplane';

/** Longer than the greatest drain timeout. */
const STOP_TIMEOUT_MS = 65_000;

/** Default port of the Prometheus endpoint. */
const METRICS_PORT = 9091;

const log = createLogger({ service: NAME, level: 'info' });

await runProcess({
  log,
  stopTimeoutMs: STOP_TIMEOUT_MS,
  usage: () => dataplaneUsage(hostname()),
  start: async (stopped) => {
    const config = readConfig(process.env, hostname());
    log.level = config.logLevel;
    const own = { clock: systemClock, random: Math.random, boot: readBoot(), pid: process.pid, stopped };
    const { nodeName } = config;
    const source = { service: NAME, instance: nodeName, nodeName, metricsPort: METRICS_PORT, clock: systemClock };
    const telemetry = { startTelemetry: () => startTelemetry({ env: process.env, log, ...source }) };
    return startService(config, { log, ...own, ...telemetry });
  },
});
