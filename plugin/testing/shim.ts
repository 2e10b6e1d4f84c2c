// Builds the shim, runs it as a container runtime does, and fakes the resident plugin at its socket.
import { execFileSync, spawn, type StdioOptions } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer as createHttpServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import { createServer as createRawServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, afterEach, beforeAll, expect } from 'vitest';

const SOURCE = join(import.meta.dirname, '..', 'shim');

/** The limits of a test build: the shipped program's code with shorter times. */
export interface Limits {
  connectWindowMs: number;
  overallDeadlineMs: number;
  silenceMs: number;
}

/** Longer than a busy machine takes for the steps before. */
export const PATIENT: Limits = { connectWindowMs: 20_000, overallDeadlineMs: 25_000, silenceMs: 20_000 };

/** Limits for tests that wait until the shim gives up. */
export const HASTY: Limits = { connectWindowMs: 400, overallDeadlineMs: 1500, silenceMs: 700 };

export interface Build {
  folder: string;
  shim: string;
  defaultSocket: string;
}

export function make(...options: string[]): string {
  return execFileSync('make', ['-C', SOURCE, ...options], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
}

/** Compiles the shim with time limits and a default socket of its own into a temporary folder. */
export function buildShim({ connectWindowMs, overallDeadlineMs, silenceMs }: Limits): Build {
  const folder = mkdtempSync(join(tmpdir(), 'shim-'));
  const defaultSocket = join(folder, 'default.sock');
  const defines = [
    `-DPODWIRE_DEFAULT_SOCKET='"${defaultSocket}"'`,
    `-DPODWIRE_CONNECT_WINDOW_MS=${connectWindowMs}`,
    `-DPODWIRE_DEL_WINDOW_MS=${connectWindowMs}`,
    `-DPODWIRE_OVERALL_DEADLINE_MS=${overallDeadlineMs}`,
    `-DPODWIRE_SILENCE_MS=${silenceMs}`,
  ];
  make('-j2', `BUILD=${folder}`, `DEFINES=${defines.join(' ')}`);
  return { folder, shim: join(folder, 'podwire'), defaultSocket };
}

export function removeBuild(build: Build): void {
  rmSync(build.folder, { recursive: true });
}

export interface Run {
  program: string;
  environment?: Record<string, string>;
  /** Input on stdin; `closed` runs the program without a stdin, `open` never ends it. */
  stdin?: string | Buffer | { kind: 'closed' } | { kind: 'open' };
}

export interface Outcome {
  exitCode: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
}

/** Runs the shim to its end. Node has no way to close a child's descriptor, so a shell does it. */
export function run({ program, environment = {}, stdin = '' }: Run): Promise<Outcome> {
  const isClosed = typeof stdin === 'object' && 'kind' in stdin && stdin.kind === 'closed';
  const stdio: StdioOptions = ['pipe', 'pipe', 'pipe'];
  const child = isClosed
    ? spawn('/bin/sh', ['-c', 'exec "$0" <&-', program], { env: environment, stdio })
    : spawn(program, [], { env: environment, stdio });
  const output = { stdout: '', stderr: '' };
  child.stdout?.setEncoding('utf8').on('data', (text: string) => (output.stdout += text));
  child.stderr?.setEncoding('utf8').on('data', (text: string) => (output.stderr += text));
  // The shim may refuse a configuration before it has read all of it.
  child.stdin?.on('error', () => undefined);
  if (typeof stdin === 'string' || Buffer.isBuffer(stdin)) child.stdin?.end(stdin);
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (exitCode, signal) => {
      resolve({ exitCode, signal, ...output });
    });
  });
}

interface SeenRequest {
  method: string | undefined;
  url: string | undefined;
  httpVersion: string;
  headers: IncomingHttpHeaders;
  rawHeaders: string[];
  body: Buffer;
}

/** A server and how to stop it together with every connection it still has. */
export interface Listening {
  close(): Promise<void>;
}

function listen(server: Server, path: string): Promise<Listening> {
  const connections = new Set<Socket>();
  server.on('connection', (connection: Socket) => {
    connections.add(connection);
    connection.on('error', () => undefined).on('close', () => connections.delete(connection));
  });
  const close = () =>
    new Promise<void>((resolve) => {
      for (const connection of connections) connection.destroy();
      server.close(() => resolve());
    });
  return new Promise((resolve, reject) => {
    server.on('error', reject).listen(path, () => resolve({ close }));
  });
}

export interface Resident extends Listening {
  requests: SeenRequest[];
}

/** A resident plugin that records each request and returns the given answer. */
export async function startResident(
  path: string,
  answer: (response: ServerResponse, request: SeenRequest) => void,
): Promise<Resident> {
  const requests: SeenRequest[] = [];
  const server = createHttpServer((message, response) => {
    const chunks: Buffer[] = [];
    message.on('data', (chunk: Buffer) => chunks.push(chunk));
    message.on('end', () => {
      const { method, url, httpVersion, headers, rawHeaders } = message;
      const request = { method, url, httpVersion, headers, rawHeaders, body: Buffer.concat(chunks) };
      requests.push(request);
      answer(response, request);
    });
  });
  return { requests, ...(await listen(server, path)) };
}

type Speak = (connection: Socket, received: Buffer) => void;

/** A peer that sends any bytes, from the first byte it receives. */
function startRawPeer(path: string, speak: Speak): Promise<Listening> {
  const server = createRawServer((connection) => {
    connection.once('data', (received) => speak(connection, received));
  });
  return listen(server, path);
}

export const CONFIGURATION = '{"cniVersion":"0.4.0","name":"net","type":"podwire"}';

export class ShimUnderTest {
  #build: Build | undefined;
  readonly #listening: Listening[] = [];

  /** Called at the top of a file. */
  constructor(limits: Limits) {
    beforeAll(() => {
      this.#build = buildShim(limits);
    }, 120_000);
    afterAll(() => removeBuild(this.build));
    afterEach(async () => {
      await Promise.all(this.#listening.splice(0).map((server) => server.close()));
    });
  }

  get build(): Build {
    if (!this.#build) throw new Error('the shim is built before the first test');
    return this.#build;
  }

  async resident(
    answer: Parameters<typeof startResident>[1],
    path: string = this.build.defaultSocket,
  ): Promise<Resident> {
    const started = await startResident(path, answer);
    this.#listening.push(started);
    return started;
  }

  async rawPeer(speak: Speak): Promise<Listening> {
    const started = await startRawPeer(this.build.defaultSocket, speak);
    this.#listening.push(started);
    return started;
  }
}

/** The CNI error document on stdout, after checking what holds for every one of them. */
export function errorOf(outcome: Outcome): Record<string, unknown> {
  expect({ exitCode: outcome.exitCode, signal: outcome.signal, stderr: outcome.stderr }).toEqual({
    exitCode: 1,
    signal: null,
    stderr: '',
  });
  const document: unknown = JSON.parse(outcome.stdout);
  expect(document).toEqual({
    cniVersion: expect.any(String),
    code: expect.any(Number),
    msg: expect.stringMatching(/./),
    details: expect.stringMatching(/./),
  });
  // containerd takes a DEL whose error has one of these phrases for done.
  expect(outcome.stdout).not.toMatch(/not found|no such file or directory/i);
  return Object.fromEntries(Object.entries(document ?? {}));
}
