import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';

import { ROOT } from './root.js';

/** Runs a program and returns its standard output. @throws Error with its standard error when it fails */
export function run(program: string, ...args: readonly string[]): string {
  return execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
}

/**
 * Whether one ping from a network namespace (the caller's own when undefined) is answered within two seconds.
 *
 * @throws Error where there is no program to ask with
 */
export function pings(address: string, netns?: string): boolean {
  const enter = netns === undefined ? [] : ['nsenter', `--net=${netns}`];
  const ping = ['ping', '-n', '-q', '-c', '1', '-W', '2', address];
  const { status, stderr } = spawnSync('env', [...enter, ...ping], { encoding: 'utf8' });
  if (status === 127) throw new Error(stderr);
  return status === 0;
}

/**
 * The data that a TCP server sends to a client in a network namespace; undefined when it cannot be reached, or has not
 * closed the connection within five seconds.
 */
export function readTcp(
  server: { readonly address: string; readonly port: number },
  netns: string,
): string | undefined {
  const script = `exec 3<>/dev/tcp/${server.address}/${server.port} && cat <&3`;
  const command = [`--net=${netns}`, 'timeout', '5', 'bash', '-c', script];
  const { status, stdout } = spawnSync('nsenter', command, { encoding: 'utf8' });
  return status === 0 ? stdout : undefined;
}

export interface BufAnswer {
  readonly ok: boolean;
  /** The answer's JSON, or the error's. */
  readonly text: string;
}

/**
 * The program itself, of the package for this machine. The one in `node_modules/.bin` starts a Node.js that only starts it,
 * and takes three times as long as the call.
 */
function bufProgram(): string {
  const packages = join(ROOT, 'node_modules', '@bufbuild');
  const own = join(packages, `buf-linux-${process.arch === 'arm64' ? 'aarch64' : process.arch}`, 'bin', 'buf');
  return existsSync(own) ? own : join(ROOT, 'node_modules', '.bin', 'buf');
}

/** Calls a gRPC server on a unix socket with `buf curl`, which reads the contract by reflection. */
export function bufCurl(socket: string, ...args: readonly string[]): BufAnswer {
  const base = ['curl', '--protocol', 'grpc', '--http2-prior-knowledge', '--unix-socket', socket];
  const { status, stdout, stderr } = spawnSync(bufProgram(), [...base, ...args], { encoding: 'utf8' });
  return { ok: status === 0, text: status === 0 ? stdout : stderr };
}

/** Calls one method and returns its answer. @throws Error with the server's own when it fails */
export function rpc(socket: string, method: string, request: object = {}): unknown {
  const answer = bufCurl(socket, '-d', JSON.stringify(request), `http://localhost/${method}`);
  if (!answer.ok) throw new Error(`${method}: ${answer.text}`);
  return JSON.parse(answer.text);
}
