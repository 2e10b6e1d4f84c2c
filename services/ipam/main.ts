#!/usr/bin/env node
import { randomUUID } from 'node:crypto';
import process from 'node:process';

import { systemClock as clock } from '@podwire/shared/runtime/clock';
import { runProcess } from '@podwire/shared/runtime/lifecycle';
import { serverLog } from '@podwire/shared/runtime/log';
import { tolerateBrokenPipe } from '@podwire/shared/runtime/broken-pipe';
import { startTelemetry } from '@podwire/shared/telemetry/telemetry';

import { parseCommandLine, runCommand } from './commands.js';
import { readConfig } from './config.js';
import { KubernetesApi } from './api-server/api.js';
import { startService } from './service.js';
import { TELEMETRY } from './telemetry.js';

const { pid, env } = process;
const endProcess = (): boolean => process.kill(pid);
const own = { clock, random: Math.random, newUid: randomUUID, pid, kubernetes: () => KubernetesApi.inCluster(env) };
tolerateBrokenPipe(TELEMETRY.service);
const command = parseCommandLine(process.argv.slice(2));
if (command.name === 'serve') await serve();
else process.exitCode = await runCommand(command, { ...own, process });

function serve(): Promise<void> {
  const { log, recentLines } = serverLog(TELEMETRY.service);
  return runProcess({
    log,
    args: [],
    stopTimeoutMs: 75_000, // More than the largest drain timeout.
    start: async (signal) => {
      const config = readConfig(env);
      const { metricsTokenFile } = config;
      log.level = config.logLevel;
      const stopTelemetry = await startTelemetry({ ...TELEMETRY, metricsTokenFile, env, log, clock });
      const service = await startService(config, { ...own, endProcess, env, recentLines, log, signal });
      return { stop: () => service.stop().then(stopTelemetry) };
    },
  });
}
