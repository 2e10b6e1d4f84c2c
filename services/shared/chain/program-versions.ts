import { z } from 'zod';

import { parseJson } from '../json/parse.js';
import type { Clock } from '../runtime/clock.js';
import { describeOutcome, runProgram } from './run-program.js';

/** The versions of the specification that a CNI program supports. */
export type ProgramVersions =
  | { readonly kind: 'missing' }
  | { readonly kind: 'answered'; readonly versions: readonly string[] }
  /** The program does not run here, or does not answer like a CNI program. */
  | { readonly kind: 'failed'; readonly reason: string };

const TIMEOUT_MS = 10_000;

/** A file that was just written can be busy while a process that was forked meanwhile still has its descriptor. */
const BUSY_ATTEMPTS = 10;
const BUSY_PAUSE_MS = 50;

const ANSWER = z.object({ supportedVersions: z.array(z.string()).min(1) });

/** The environment that libcni sends with VERSION. Programs of early releases require the variables of the other commands. */
const ENVIRONMENT = {
  CNI_COMMAND: 'VERSION',
  CNI_CONTAINERID: 'dummy',
  CNI_NETNS: 'dummy',
  CNI_IFNAME: 'dummy',
  CNI_PATH: 'dummy',
};
const STDIN = '{"cniVersion":"1.0.0"}';

/** Runs VERSION of a program. Retries while the file is busy. */
export async function programVersions(path: string, clock: Clock): Promise<ProgramVersions> {
  const { signal } = new AbortController();
  for (let attempt = 1; ; attempt += 1) {
    const run = { path, environment: ENVIRONMENT, stdin: STDIN, timeoutMs: TIMEOUT_MS, signal };
    const outcome = await runProgram(run);
    if (outcome.code === 'ETXTBSY' && attempt < BUSY_ATTEMPTS) {
      await clock.sleep(BUSY_PAUSE_MS, signal);
      continue;
    }
    if (outcome.code === 'ENOENT') return { kind: 'missing' };
    const answer = ANSWER.safeParse(parseJson(outcome.stdout));
    if (outcome.code !== 0 || !answer.success) return { kind: 'failed', reason: describeOutcome(outcome) };
    return { kind: 'answered', versions: answer.data.supportedVersions };
  }
}
