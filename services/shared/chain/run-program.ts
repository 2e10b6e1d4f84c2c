import { execFile } from 'node:child_process';

import { codeOf } from '../failure/thrown.js';

/** Signal that ends a program after its timeout. */
export const KILL_SIGNAL = 'SIGKILL';

export interface ProgramRun {
  readonly path: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly stdin: string;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

export interface ProgramOutcome {
  /** Exit code, errno of the failed start, or the signal that ended the program. */
  readonly code: number | string;
  readonly stdout: string;
}

/** Runs a CNI program as a container runtime does. Never rejects. */
export function runProgram({ path, environment, stdin, timeoutMs, signal }: ProgramRun): Promise<ProgramOutcome> {
  return new Promise((resolve) => {
    const options = { env: environment, timeout: timeoutMs, killSignal: KILL_SIGNAL, signal } as const;
    try {
      const child = execFile(path, options, (error, stdout) => {
        resolve({ code: error === null ? 0 : (error.code ?? error.signal ?? 'unknown'), stdout });
      });
      // The program may end before it has read its whole input.
      child.stdin?.on('error', () => undefined).end(stdin);
    } catch (error) {
      // Node.js reports some execve errors synchronously, and some later.
      resolve({ code: codeOf(error) ?? 'unknown', stdout: '' });
    }
  });
}

const MAX_SHOWN_CHARACTERS = 200;

/** Text about the end of a program. */
export function describeOutcome({ code, stdout }: ProgramOutcome): string {
  const how = typeof code === 'number' ? `exit code ${code}` : code;
  return stdout === '' ? how : `${how}, ${JSON.stringify(stdout.slice(0, MAX_SHOWN_CHARACTERS))}`;
}
