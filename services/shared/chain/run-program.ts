import { execFile } from 'node:child_process';

import { codeOf } from '../failure/thrown.js';

/** Ends a program that takes too long. */
export const KILL_SIGNAL = 'SIGKILL';

export interface ProgramRun {
  readonly path: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly stdin: string;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

export interface ProgramOutcome {
  /** Exit code, errno of what kept the program from running, or the signal that ended it. */
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
      // It may end before it has read everything.
      child.stdin?.on('error', () => undefined).end(stdin);
    } catch (error) {
      // Node.js reports some execve errors synchronously, and some later.
      resolve({ code: codeOf(error) ?? 'unknown', stdout: '' });
    }
  });
}

const MAX_SHOWN_CHARACTERS = 200;

/** How a program ended, for people. */
export function describeOutcome({ code, stdout }: ProgramOutcome): string {
  const how = typeof code === 'number' ? `exit code ${code}` : code;
  return stdout === '' ? how : `${how}, ${JSON.stringify(stdout.slice(0, MAX_SHOWN_CHARACTERS))}`;
}
