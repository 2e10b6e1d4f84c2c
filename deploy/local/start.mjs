#!/usr/bin/env node
// `npm start`: from a fresh clone to two pods that reach each other. Installs and builds missing parts, then runs the
// demonstration (demo.mjs) as a node of its own: network, mount and process namespaces that nothing outside can see, and
// that the kernel takes away with the last process.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';
import process from 'node:process';
import { URL } from 'node:url';
import { parseArgs } from 'node:util';

import { prepare, ROOT, systemFault } from './prepare.mjs';
import { ensurePrograms, NAMESPACE_PROGRAMS } from './programs.mjs';

const USAGE = `usage: npm start [-- [--once] [--otlp URL]]
  --once       end after the demonstration: exit code 0 when everything worked
  --otlp URL   send traces and metrics to this collector by OTLP/HTTP, such as http://127.0.0.1:4318`;

/** Projects of TypeScript that the demonstration runs: the programs, and its own files. */
const PROJECTS = ['tsconfig.build.json', 'deploy/local'];

const NAMESPACES = ['--net', '--mount', '--propagation', 'private', '--pid', '--fork', '--kill-child', '--mount-proc'];

/** An abstract socket: one owner at a time, freed by the kernel when its process ends, however it ends. */
const LOCK = '\0podwire-local-demonstration';

/** A second Ctrl-C ends a demonstration that cannot end by itself. npm passes on each signal that the terminal has sent already. */
const REPEATED_MS = 1000;

function fail(message) {
  process.stderr.write(`\nnpm start: ${message}\n`);
  process.exit(1);
}

function readArguments(args) {
  try {
    const { values } = parseArgs({ args, options: { once: { type: 'boolean' }, otlp: { type: 'string' } } });
    return { once: values.once ?? false, collector: values.otlp === undefined ? undefined : collectorAt(values.otlp) };
  } catch (error) {
    return fail(`${error.message}\n${USAGE}`);
  }
}

/** @throws Error when the text is not a URL of HTTP */
function collectorAt(text) {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (/^https?:$/.test(url?.protocol ?? '')) return url;
  throw new Error(`--otlp ${text}: must be a URL such as http://127.0.0.1:4318`);
}

/** Holds the lock for as long as this process lives. */
function lock() {
  return new Promise((resolve) => {
    const server = createServer((connection) => connection.end());
    server.once('error', () => {
      fail('the demonstration runs already. Use that one, or end it with Ctrl-C in its terminal first.');
    });
    server.listen(LOCK, resolve).unref();
  });
}

function unshareFlags() {
  const works = (flags) => spawnSync('unshare', [...flags, 'true']).status === 0;
  if (works(NAMESPACES)) return NAMESPACES;
  const asUser = ['--user', '--map-root-user', ...NAMESPACES];
  if (works(asUser)) {
    process.stdout.write('not root: using a user namespace of our own, in which we are\n');
    return asUser;
  }
  return fail(
    'cannot make a network namespace. Run it as root (sudo npm start), or allow user namespaces: ' +
      'sysctl -w kernel.unprivileged_userns_clone=1 (Debian), sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu).',
  );
}

/** A socket at a free port of this machine's loopback, for the page. */
function loopbackSocket() {
  return new Promise((resolve) => {
    const socket = createServer();
    socket.listen(0, '127.0.0.1', () => resolve(socket));
  });
}

/** Serves a port of the demonstration, from whose network this machine's is out of reach. */
async function relayToCollector(socket, url) {
  // The build, which makes this file, has just ended.
  const { collectorRelay } = await import('./dist/collector-relay.js');
  const relay = collectorRelay({ url, report: (text) => process.stdout.write(`${text}\n`) });
  socket.on('connection', (connection) => relay.emit('connection', connection));
}

async function runDemonstration(flags, { once, collector }) {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-'));
  const script = join(ROOT, 'deploy', 'local', 'demo.mjs');
  const args = [...flags, process.execPath, script, folder];
  // unshare passes no signals on. The end of this channel is the word to stop, and comes also when this process is killed.
  const child = spawn('unshare', args, { stdio: ['inherit', 'inherit', 'inherit', 'ipc'] });
  let stoppedAtMs = 0;
  const stop = () => {
    if (child.connected) {
      child.disconnect();
      stoppedAtMs = performance.now();
    } else if (performance.now() - stoppedAtMs > REPEATED_MS) child.kill('SIGKILL');
  };
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, stop);
  child.on('exit', (code) => {
    // Processes that were killed may still write.
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
    process.exit(code ?? 1);
  });
  child.on('message', (_message, socket) => void relayToCollector(socket, collector));
  const pageSocket = once ? undefined : await loopbackSocket();
  // unshare itself is in the namespaces for network and mounts, and waits there for its child.
  const greeting = { namespacesPid: child.pid, hasCollector: collector !== undefined };
  child.send(greeting, pageSocket, () => pageSocket?.close());
}

async function main() {
  const options = readArguments(process.argv.slice(2));
  const fault = systemFault();
  if (fault) fail(fault);
  await lock();
  process.stdout.write('preparing; the first time this takes some minutes\n');
  try {
    await prepare(PROJECTS);
  } catch (error) {
    fail(error.message);
  }
  const missing = ensurePrograms(NAMESPACE_PROGRAMS);
  if (missing) fail(missing);
  await runDemonstration(unshareFlags(), options);
}

await main();
