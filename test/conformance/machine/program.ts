import { spawn, spawnSync } from 'node:child_process';

/** The input of a process, and its result. */
export interface Outcome {
  readonly command: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly stdin: string;
  readonly stdout: string;
  readonly stderr: string;
  /** null after a signal. */
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly durationMs: number;
}

export interface Execution {
  readonly command: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly stdin: string;
  /** Time until it is killed with SIGKILL, in milliseconds. */
  readonly killAfterMs: number;
}

/** Runs a program to its end, without waiting for its child processes. */
export async function execute({ command, env, stdin, killAfterMs }: Execution): Promise<Outcome> {
  const [program = '', ...args] = command;
  const startMs = performance.now();
  const child = spawn(program, args, { env, stdio: 'pipe' });
  const [stdout, stderr] = [collect(child.stdout), collect(child.stderr)];
  // A plugin need not read its whole input.
  child.stdin.on('error', () => undefined).end(stdin);
  const timer = setTimeout(() => child.kill('SIGKILL'), killAfterMs);
  const end = await new Promise<{ exitCode: number | null; signal: string | null }>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (exitCode, signal) => resolve({ exitCode, signal }));
    // A grandchild that survives a killed plugin holds its pipes open.
    child.once('exit', (exitCode, signal) => {
      if (signal === null) return;
      child.stdout.destroy();
      child.stderr.destroy();
      resolve({ exitCode, signal });
    });
  });
  clearTimeout(timer);
  return { command, env, stdin, stdout: stdout(), stderr: stderr(), ...end, durationMs: performance.now() - startMs };
}

function collect(stream: NodeJS.ReadableStream): () => string {
  let text = '';
  stream.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
  return () => text;
}

/** Runs a program of the machine. @throws Error with its standard error when it fails */
export function run(program: string, ...args: readonly string[]): string {
  const { status, stdout, stderr, error } = spawnSync(program, args, { encoding: 'utf8', maxBuffer: 64 * 1024 * 1024 });
  if (status === 0) return stdout;
  throw new Error(`${[program, ...args].join(' ')}: ${error?.message ?? stderr.trim()}`);
}

/** Whether a program exists and exits with status 0. */
export function succeeds(program: string, ...args: readonly string[]): boolean {
  return spawnSync(program, args, { stdio: 'ignore' }).status === 0;
}
