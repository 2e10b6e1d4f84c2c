// Acts as a container runtime: makes the pod's network namespace, and execs the CNI plugin with environment and stdin.
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { run } from './node.mjs';

export const NAMESPACE = 'demo';

/** Makes a network namespace for a pod, kept alive by a file, and gives that file's path. */
export function makePod(folder, name) {
  const netns = join(folder, 'netns', name);
  writeFileSync(netns, '');
  run('unshare', `--net=${netns}`, 'true');
  return netns;
}

function environment({ command, name, netns, args: requested }) {
  const containerId = createHash('sha256').update(name).digest('hex');
  const args = {
    IgnoreUnknown: '1',
    K8S_POD_NAMESPACE: NAMESPACE,
    K8S_POD_NAME: name,
    K8S_POD_INFRA_CONTAINER_ID: containerId,
    ...requested,
  };
  return {
    ...process.env,
    CNI_COMMAND: command,
    CNI_CONTAINERID: containerId,
    CNI_NETNS: netns,
    CNI_IFNAME: 'eth0',
    CNI_PATH: '/opt/cni/bin',
    CNI_ARGS: Object.entries(args)
      .map(([key, value]) => `${key}=${value}`)
      .join(';'),
  };
}

function configuration(socket) {
  return JSON.stringify({
    cniVersion: '1.0.0',
    name: 'podwire-demo',
    type: 'podwire',
    socket,
    ipam: { type: 'podwire-ipam' },
  });
}

/** Execs the program and waits for its end; the clock runs from the exec to the exit, as for a runtime. */
function execute(program, { env, input }) {
  return new Promise((resolve, reject) => {
    const start = process.hrtime.bigint();
    const child = spawn(program, [], { env, stdio: ['pipe', 'pipe', 'inherit'] });
    let stdout = '';
    child.stdout.setEncoding('utf8').on('data', (chunk) => (stdout += chunk));
    child.once('error', reject);
    let elapsedMs = 0;
    child.once('exit', () => (elapsedMs = Number(process.hrtime.bigint() - start) / 1e6));
    child.once('close', (exitCode) => resolve({ exitCode, stdout, elapsedMs }));
    // A program that Ctrl-C has ended reads nothing; its exit code reports the end.
    child.stdin.once('error', () => undefined).end(input);
  });
}

/**
 * Runs one CNI command through the shim.
 * @param call - {command, name, netns, args}: args has further variables of CNI_ARGS
 * @returns the parsed result, and the time from exec to exit
 * @throws Error with the CNI error object's message
 */
export async function runShim({ shim, sockets }, call) {
  const { command, name } = call;
  const env = environment(call);
  const { exitCode, stdout, elapsedMs } = await execute(shim, { env, input: configuration(sockets.cni) });
  if (exitCode !== 0) throw new Error(`CNI ${command} of pod ${name}: ${stdout.trim()}`);
  return { result: stdout === '' ? undefined : JSON.parse(stdout), elapsedMs };
}
