import { programVersions, type ProgramVersions } from '@podwire/shared/chain/program-versions';
import { describeOutcome, KILL_SIGNAL, runProgram } from '@podwire/shared/chain/run-program';
import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import type { Clock } from '@podwire/shared/runtime/clock';
import { z } from 'zod';

/** Runs the shim and the other programs of the chain as a container runtime does. */
export interface ShimRunner {
  /**
   * Runs VERSION.
   * @throws Failure INSTALL_REFUSED when the file does not run here or is not a CNI plugin
   */
  version(path: string): Promise<void>;
  /** Runs VERSION of any program of a chain. */
  versions(path: string): Promise<ProgramVersions>;
  /** Runs STATUS. @returns why the plugin is not ready; undefined when it is */
  status(request: StatusRequest): Promise<string | undefined>;
}

export interface StatusRequest {
  /** Path of the shim. */
  readonly path: string;
  /** Value of `CNI_PATH`. */
  readonly binaryDirectory: string;
  readonly configuration: string;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

const errorAnswer = z.object({ code: z.number(), msg: z.string() });

export function systemShimRunner(clock: Clock): ShimRunner {
  const versions = (path: string) => programVersions(path, clock);
  const version = async (path: string): Promise<void> => {
    const answer = await versions(path);
    if (answer.kind === 'answered') return;
    const reason = answer.kind === 'missing' ? 'ENOENT' : answer.reason;
    throw new Failure(
      'INSTALL_REFUSED',
      `${path} does not answer VERSION like a CNI plugin (${reason}): check that it is built for this ` +
        'machine, and that its file system is not mounted with noexec',
    );
  };
  const status = async (request: StatusRequest): Promise<string | undefined> => {
    const { path, binaryDirectory, configuration: stdin, timeoutMs, signal } = request;
    const environment = { CNI_COMMAND: 'STATUS', CNI_PATH: binaryDirectory };
    const outcome = await runProgram({ path, environment, stdin, timeoutMs, signal });
    if (outcome.code === 0) return undefined;
    const error = errorAnswer.safeParse(parseJson(outcome.stdout)).data;
    if (outcome.code === KILL_SIGNAL) return `no answer within ${Math.ceil(timeoutMs)} ms`;
    return error === undefined ? describeOutcome(outcome) : `${error.msg} (CNI code ${error.code})`;
  };
  return { version, versions, status };
}
