// Podwire's two processes on the embedded datastore, and a way to call them.
import { spawnSync } from 'node:child_process';
import { connect } from 'node:net';
import { join } from 'node:path';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';

import { NODE_ADDRESS } from './node.mjs';
import { ROOT } from './prepare.mjs';

/** Time for the processes to start, in milliseconds: a machine under load takes seconds to load the modules. */
const START_TIMEOUT_MS = 30_000;

/** A collector gets the first figures soon, not after the SDK's usual minute. */
const METRICS_INTERVAL_MS = '5000';

export const NODE_NAME = 'demo-node';

function settings(sockets, folder) {
  return {
    ipam: {
      PODWIRE_IPAM_LISTEN: `unix:${sockets.ipam}`,
      PODWIRE_IPAM_STORE_DIRECTORY: join(folder, 'store'),
      PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/16',
    },
    node: {
      PODWIRE_NODE_CNI_SOCKET: sockets.cni,
      PODWIRE_NODE_LISTEN: `unix:${sockets.dataplane}`,
      PODWIRE_NODE_IPAM_ADDRESS: `unix:${sockets.ipam}`,
      PODWIRE_NODE_NAME: NODE_NAME,
      PODWIRE_NODE_IPV4: `${NODE_ADDRESS}/32`,
      PODWIRE_NODE_RECORDS_DIRECTORY: join(folder, 'attachments'),
      PODWIRE_NODE_STATE_DIRECTORY: join(folder, 'journal'),
    },
  };
}

const MAIN = {
  ipam: 'services/ipam/dist/main.js',
  node: 'services/node/dist/main.js',
};

/** The demonstration's environment, without PODWIRE settings exported in the user's shell. */
function cleanEnvironment() {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(PODWIRE|OTEL)_/.test(name)));
}

async function untilAnswered(path, processes) {
  const deadlineMs = Date.now() + START_TIMEOUT_MS;
  const answers = () =>
    new Promise((resolve) => {
      const socket = connect(path);
      socket.once('connect', () => resolve(true)).once('error', () => resolve(false));
      socket.once('connect', () => socket.destroy());
    });
  while (!(await answers())) {
    if (Date.now() > deadlineMs) throw new Error(`nothing answers at ${path} after ${START_TIMEOUT_MS} ms`);
    await Promise.race([sleep(20), processes.unexpectedEnd()]);
  }
}

/** Calls a method through the service's own reflection, as an operator would. @throws Error with the tool's message */
function rpc(socket, method) {
  const command = join(ROOT, 'node_modules', '.bin', 'buf');
  const args = ['curl', '--protocol', 'grpc', '--http2-prior-knowledge', '--unix-socket', socket, '-d', '{}'];
  const { status, stdout, stderr } = spawnSync(command, [...args, `http://localhost/${method}`], { encoding: 'utf8' });
  if (status !== 0) throw new Error(`${method}: ${stderr.trim()}`);
  return JSON.parse(stdout);
}

/** Settings of both processes, which only serve their metrics without a collector. */
function telemetrySettings(collectorUrl) {
  if (collectorUrl === undefined) return {};
  return { OTEL_EXPORTER_OTLP_ENDPOINT: collectorUrl, OTEL_METRIC_EXPORT_INTERVAL: METRICS_INTERVAL_MS };
}

/**
 * Starts both processes and waits until they answer.
 * @param options - collectorUrl: where they send traces and metrics by OTLP/HTTP; undefined for nowhere
 */
export async function startPodwire({ folder, processes, collectorUrl }) {
  const startMs = Date.now();
  const sockets = Object.fromEntries(
    ['ipam', 'dataplane', 'cni'].map((name) => [name, join(folder, 'run', `${name}.sock`)]),
  );
  const logFolder = join(folder, 'log');
  for (const [name, variables] of Object.entries(settings(sockets, folder))) {
    const env = { ...cleanEnvironment(), ...telemetrySettings(collectorUrl), ...variables };
    const command = [process.execPath, join(ROOT, MAIN[name])];
    processes.start({ name: `podwire-${name}`, command, env, logFile: join(logFolder, `${name}.log`) });
  }
  for (const path of Object.values(sockets)) await untilAnswered(path, processes);
  process.stdout.write(`  podwire-ipam and podwire-node are up after ${Date.now() - startMs} ms\n`);
  return {
    shim: join(ROOT, 'plugin', 'shim', 'build', 'podwire'),
    sockets,
    logFolder,
    rpc: (service, method) => Promise.resolve(rpc(sockets[service], method)),
  };
}
