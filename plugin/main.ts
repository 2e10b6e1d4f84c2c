#!/usr/bin/env node
import { hostname } from 'node:os';
import process from 'node:process';

import { systemClock } from '@podwire/shared/runtime/clock';
import { runProcess } from '@podwire/shared/runtime/lifecycle';
import { createLogger } from '@podwire/shared/runtime/log';
import { startTelemetry } from '@podwire/shared/telemetry/telemetry';

import { startPlugin } from './service.js';
import { pluginUsage, readPluginSettings } from './settings.js';

const NAME = 'podwire-plugin';

/** Longer than the longest configurable command and its rollback, which stopping waits for. */
const STOP_TIMEOUT_MS = 125_000;

const log = createLogger({ service: NAME, level: 'info' });

await runProcess({
  log,
  stopTimeoutMs: STOP_TIMEOUT_MS,
  usage: () => pluginUsage(hostname()),
  start: async (stopped) => {
    const settings = readPluginSettings(process.env, hostname());
    log.level = settings.logLevel;
    const own = { clock: systemClock, random: Math.random, pid: process.pid };
    const { nodeName } = settings;
    const source = { service: NAME, instance: nodeName, nodeName, metricsPort: 9092, clock: systemClock };
    const telemetry = { startTelemetry: () => startTelemetry({ env: process.env, log, ...source }) };
    return startPlugin(settings, { log, stopped, ...own, ...telemetry });
  },
});
