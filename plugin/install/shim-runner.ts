import { execFile } from 'node:child_process';

import { Failure } from '@podwire/shared/failure/failure';
import { codeOf } from '@podwire/shared/failure/thrown';
import { parseJson } from '@podwire/shared/json/parse';
import type { Clock } from '@podwire/shared/runtime/clock';
import { z } from 'zod';

/** How the shim is tried out, as a container runtime runs it. */
export interface ShimRunner {
  /**
   * Runs VERSION.
   * @throws Failure INSTALL_REFUSED when the file does not run here, or does not answer as a CNI plugin
   */
  version(path: string): Promise<void>;
  /** Asks the resident plugin for its STATUS. @returns why it is not ready; undefined when it is */
  status(request: StatusRequest): Promise<string | undefined>;
}

export interface StatusRequest {
  /** Of the shim. */
  readonly path: string;
  /** For `CNI_PATH`. */
  readonly binaryDirectory: string;
  /** For the standard input. */
  readonly configuration: string;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

/** Ends a program that takes too long. */
const KILL_SIGNAL = 'SIGKILL';

const VERSION_TIMEOUT_MS = 10_000;

/** A file that was just written can be busy for as long as another process of this one has not yet got rid of its descriptors. */
const BUSY_ATTEMPTS = 10;
const BUSY_PAUSE_MS = 50;

const versionAnswer = z.object({ supportedVersions: z.array(z.string()).min(1) });
const errorAnswer = z.object({ code: z.number(), msg: z.string() });

export function systemShimRunner(clock: Clock): ShimRunner {
  const never = new AbortController().signal;
  const version = async (path: string): Promise<void> => {
    for (let attempt = 1; ; attempt += 1) {
      const environment = { CNI_COMMAND: 'VERSION' };
      const outcome = await run({ path, environment, stdin: '', timeoutMs: VERSION_TIMEOUT_MS, signal: never });
      if (outcome.code === 'ETXTBSY' && attempt < BUSY_ATTEMPTS) {
        await clock.sleep(BUSY_PAUSE_MS, never);
        continue;
      }
      if (outcome.code === 0 && versionAnswer.safeParse(parseJson(outcome.stdout)).success) return;
      throw new Failure(
        'INSTALL_REFUSED',
        `${path} does not answer VERSION as a CNI plugin does (${describe(outcome)}): check that it is built for this ` +
          'machine, and that its file system is not mounted with noexec',
      );
    }
  };
  const status = async (request: StatusRequest): Promise<string | undefined> => {
    const { path, binaryDirectory, configuration: stdin, timeoutMs, signal } = request;
    const environment = { CNI_COMMAND: 'STATUS', CNI_PATH: binaryDirectory };
    const outcome = await run({ path, environment, stdin, timeoutMs, signal });
    if (outcome.code === 0) return undefined;
    const error = errorAnswer.safeParse(parseJson(outcome.stdout)).data;
    if (outcome.code === KILL_SIGNAL) return `no answer within ${Math.ceil(timeoutMs)} ms`;
    return error === undefined ? describe(outcome) : `${error.msg} (CNI code ${error.code})`;
  };
  return { version, status };
}

interface Run {
  readonly path: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly stdin: string;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

interface Outcome {
  /** Exit code, errno of what kept the program from running, or the signal that ended it. */
  readonly code: number | string;
  readonly stdout: string;
}

function run({ path, environment, stdin, timeoutMs, signal }: Run): Promise<Outcome> {
  return new Promise((resolve) => {
    const options = { env: environment, timeout: timeoutMs, killSignal: KILL_SIGNAL, signal } as const;
    try {
      const child = execFile(path, options, (error, stdout) => {
        resolve({ code: error === null ? 0 : (error.code ?? error.signal ?? 'unknown'), stdout });
      });
      // It may end before it has read everything.
      child.stdin?.on('error', () => undefined).end(stdin);
    } catch (error) {
      // What the kernel refuses to run is told by some errors at once, and by others later.
      resolve({ code: codeOf(error) ?? 'unknown', stdout: '' });
    }
  });
}

const MAX_SHOWN_CHARACTERS = 200;

function describe({ code, stdout }: Outcome): string {
  const how = typeof code === 'number' ? `exit code ${code}` : code;
  return stdout === '' ? how : `${how}, ${JSON.stringify(stdout.slice(0, MAX_SHOWN_CHARACTERS))}`;
}
