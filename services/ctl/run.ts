import type { Writable } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { createLogger, type Logger } from '@podwire/shared/runtime/log';
import { readOwnPackage } from '@podwire/shared/runtime/own-package';
import { z } from 'zod';

import { PluginSocket } from './clients/plugin-socket.js';
import { GrpcService, type CommandProcess, type Context } from './clients/services.js';
import {
  DATAPLANE,
  IPAM,
  NO_HEADERS,
  OUTPUT,
  PLUGIN,
  TIMEOUT,
  DEFAULT_TIMEOUT_MS,
} from './command-line/global-options.js';
import { parseCommandLine } from './command-line/program.js';
import { serviceOptionWords, serviceSettingsOf } from './command-line/service-settings.js';
import type { Input, Verb } from './command-line/verb.js';
import { ContractJson, render } from './output/render.js';
import { DONE, exitCodeOf, type Report } from './output/report.js';
import { failureLine } from './output/words.js';
import { VERBS } from './verbs.js';

/** Dependencies on the process that podwirectl runs in. */
export interface RunDeps extends CommandProcess {
  readonly process: {
    readonly env: Readonly<Record<string, string | undefined>>;
    readonly stdout: Writable;
    readonly stderr: Writable;
  };
  readonly clock: Clock;
}

const NAME = 'podwirectl';

/** What to do where the role of a certificate does not permit a call. */
const ACCESS_HINT =
  'every command is permitted on the unix socket in the pod or on the host of podwire-ipam, and to an operator: --ipam-cert, --ipam-key';

/**
 * Runs a command line. Results go to the standard output, errors and hints to the standard error.
 * @param args - the arguments behind the program's name
 * @returns the exit code
 */
export async function run(args: readonly string[], deps: RunDeps): Promise<number> {
  const { stdout, stderr } = deps.process;
  const { version } = await readOwnPackage(import.meta.url, '@podwire/ctl');
  const command = parseCommandLine(args, VERBS, version);
  if (command.kind === 'run') return runVerb(command.verb, command, deps);
  stdout.write(command.stdout);
  stderr.write(command.stderr);
  return command.exitCode;
}

interface ParsedArguments {
  readonly input: Input;
  readonly globals: Input;
}

async function runVerb(verb: Verb, { input, globals }: ParsedArguments, deps: RunDeps): Promise<number> {
  const { process, clock } = deps;
  const services: GrpcService[] = [];
  try {
    const { ipam, dataplane, plugin, ipamTlsFiles } = serviceSettingsOf(globals, process.env);
    const timeoutMs = globals.get(TIMEOUT);
    const deadlineMs = clock.nowMs() + (timeoutMs ?? DEFAULT_TIMEOUT_MS);
    const log = plainLog(process.stderr);
    const grpc = (options: Pick<ConstructorParameters<typeof GrpcService>[0], GrpcOption>): GrpcService => {
      const service = new GrpcService({ ...options, log, clock, deadlineMs });
      services.push(service);
      return service;
    };
    const context: Context = {
      ipam: grpc({ name: 'podwire-ipam', address: ipam, option: IPAM.name, tlsFiles: ipamTlsFiles }),
      dataplane: grpc({ name: 'podwire-dataplane', address: dataplane, option: DATAPLANE.name }),
      plugin: new PluginSocket({ path: plugin, option: PLUGIN.name, clock, deadlineMs }),
      clock,
      process: deps,
      log,
      timeoutMs,
      json: new ContractJson(),
    };
    const report = await verb.run(input, context);
    const format = globals.get(OUTPUT) ?? 'table';
    const text = render(withServiceOptions(report, globals), { format, hasHeadings: !globals.has(NO_HEADERS) });
    process.stdout.write(text.stdout);
    process.stderr.write(text.stderr);
    return report.exitCode ?? DONE;
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    process.stderr.write(`${NAME}: ${verb.name} failed: ${failureLine(error)}\n`);
    if (error.code === 'ACCESS_DENIED') process.stderr.write(`hint: ${ACCESS_HINT}\n`);
    return exitCodeOf(error.code);
  } finally {
    for (const service of services) service.close();
  }
}

type GrpcOption = 'name' | 'address' | 'option' | 'tlsFiles';

const LOG_LINE = z.object({ msg: z.string() });

/** A log of plain lines, as the other output for people. */
function plainLog(stderr: Writable): Logger {
  const write = (line: string): void => void stderr.write(`${NAME}: ${LOG_LINE.parse(JSON.parse(line)).msg}\n`);
  return createLogger({ service: NAME, level: 'info', destination: { write } });
}

/** Adds the options of this command line that lead to services to the commands in hints. */
function withServiceOptions(report: Report, globals: Input): Report {
  const options = serviceOptionWords(globals);
  if (options.length === 0 || !report.hints) return report;
  const command = `${NAME} ${options.join(' ')} `;
  return { ...report, hints: report.hints.map((hint) => hint.replaceAll(`${NAME} `, command)) };
}
