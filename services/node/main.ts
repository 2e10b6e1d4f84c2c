#!/usr/bin/env node
import { hostname } from 'node:os';
import process from 'node:process';

import { readBoot } from '@podwire/shared/runtime/boot';
import { systemClock } from '@podwire/shared/runtime/clock';
import { runProcess } from '@podwire/shared/runtime/lifecycle';
import { serverLog } from '@podwire/shared/runtime/log';
import { startTelemetry } from '@podwire/shared/telemetry/telemetry';

import { NODE_PROGRAM, startNode } from './service.js';
import { nodeUsage, readNodeSettings, STOP_TIMEOUT_MS } from './settings.js';

/** Default port of the Prometheus endpoint. */
const METRICS_PORT = 9091;

const { log, recentLines } = serverLog(NODE_PROGRAM);

await runProcess({
  log,
  stopTimeoutMs: STOP_TIMEOUT_MS,
  usage: () => nodeUsage(hostname()),
  start: async (stopped) => {
    const settings = readNodeSettings(process.env, hostname());
    log.level = settings.logLevel;
    const own = {
      clock: systemClock,
      random: Math.random,
      boot: readBoot(),
      pid: process.pid,
      env: process.env,
      recentLines,
      stopped,
    };
    const { nodeName, metricsTokenFile } = settings;
    const source = { service: NODE_PROGRAM, instance: nodeName, nodeName, metricsPort: METRICS_PORT };
    const telemetry = () => startTelemetry({ env: process.env, log, clock: systemClock, metricsTokenFile, ...source });
    return startNode(settings, { log, ...own, startTelemetry: telemetry });
  },
});
