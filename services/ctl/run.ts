import { Writable, type Readable } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { readRelease } from '@podwire/shared/runtime/process-release';

import type { NodeRelay } from './clients/node-relay.js';
import { GrpcService, type CommandProcess, type Context } from './clients/services.js';
import { candidates, COMPLETE } from './command-line/completion.js';
import { NAMESPACES } from './command-line/forms.js';
import {
  DATAPLANE,
  IPAM,
  NO_HEADERS,
  OUTPUT,
  PLUGIN,
  TIMEOUT,
  DEFAULT_TIMEOUT_MS,
} from './command-line/global-options.js';
import { ON_NODE } from './command-line/options.js';
import { serviceOptionWords, serviceSettingsOf } from './command-line/service-settings.js';
import type { Input, Verb } from './command-line/verb.js';
import { render, type RenderOptions } from './output/render.js';
import { DONE, exitCodeOf, INVALID_USAGE, type OutputFormat, type Report } from './output/report.js';
import { failureLine } from './output/words.js';
import { VERBS } from './verbs.js';

/** Dependencies on the process that podwirectl runs in. */
export interface RunDeps extends CommandProcess {
  readonly process: {
    readonly env: Readonly<Record<string, string | undefined>>;
    readonly stdin: Readable & { readonly isTTY?: boolean };
    readonly stdout: Writable & { readonly isTTY?: boolean; readonly columns?: number };
    readonly stderr: Writable;
  };
  readonly clock: Clock;
}

const NAME = 'podwirectl';

/** Remedy where the role of a certificate does not permit a call. */
const ACCESS_HINT =
  'every command is permitted on the unix socket in the pod or on the host of podwire-ipam, and to an operator: --ipam-cert, --ipam-key';

/**
 * Runs a command line. Results go to the standard output, errors and hints to the standard error.
 * @param args - the arguments behind the program's name
 * @returns the exit code
 */
export async function run(args: readonly string[], deps: RunDeps): Promise<number> {
  const { stdout, stderr } = deps.process;
  if (args[0] === COMPLETE) {
    const words = await candidates(args.slice(1), VERBS, (kind, options) => namesOf(kind, options, deps));
    stdout.write(words.map((word) => `${word}\n`).join(''));
    return DONE;
  }
  const { loadVerbs, parseCommandLine } = await import('./command-line/program.js');
  const command = parseCommandLine(args, await loadVerbs(args, VERBS), {
    version: await readRelease(),
    columns: stdout.columns,
  });
  if (command.kind === 'run') return runVerb(command.verb, command, deps);
  stdout.write(command.stdout);
  stderr.write(command.stderr);
  return command.exitCode;
}

/** Timeout of the completion of names, which a person waits for. */
const NAMES_TIMEOUT = '500ms';

/** The names of a kind's objects, for completion; none where podwire-ipam does not answer. */
async function namesOf(kind: string, options: readonly string[], deps: RunDeps): Promise<string[]> {
  let text = '';
  const capture = (keep: (chunk: string) => void): Writable =>
    new Writable({
      write: (chunk, _, done) => {
        keep(String(chunk));
        done();
      },
    });
  const stdout = capture((chunk) => (text += chunk));
  const stderr = capture(() => undefined);
  const listed = kind === NAMESPACES ? 'workloadendpoints' : kind;
  const command = ['get', listed, '--all-namespaces', '--output', 'name', '--timeout', NAMES_TIMEOUT, ...options];
  await run(command, { ...deps, process: { ...deps.process, stdout, stderr } });
  const lines = text.split('\n').filter((line) => line !== '');
  const names = lines.map((line) => line.slice(line.indexOf('/') + 1));
  return kind === NAMESPACES ? names.map((name) => name.split('/')[0] ?? '') : names;
}

/** Reports for people do not call their `data`. */
const NO_JSON: Context['json'] = {
  of: () => {
    throw new Error('the contract is loaded for json and yaml only');
  },
};

interface ParsedArguments {
  readonly input: Input;
  readonly globals: Input;
}

async function runVerb(verb: Verb, { input, globals }: ParsedArguments, deps: RunDeps): Promise<number> {
  const { process, clock } = deps;
  const data = ['json', 'yaml'].includes(globals.get(OUTPUT) ?? '') ? await import('./output/data.js') : undefined;
  const output = new Output(globals, process, data?.renderData);
  const services: GrpcService[] = [];
  try {
    if (output.format === 'name' && !verb.hasNames)
      throw new Failure('INVALID_REQUEST', `-o name: ${verb.name} lists no objects; use another format`);
    const timeoutMs = globals.get(TIMEOUT);
    const { restartTimeout, deadlineMs } = commandTimeout(clock, timeoutMs);
    const context: Context = {
      ...(await openClients({ globals, nodeName: nodeNameOf(verb, input), deadlineMs, services }, deps)),
      clock,
      process: deps,
      env: process.env,
      ...{ stdin: process.stdin, stdout: process.stdout },
      output: output.format,
      print: (report, options) => output.print(report, options),
      note: (text) => void process.stderr.write(`${NAME}: ${text}\n`),
      restartTimeout,
      timeoutMs,
      json: data ? new data.ContractJson() : NO_JSON,
    };
    const report = await verb.run(input, context);
    if (!report.confirmation || !output.isInteractive) return output.print(report);
    output.print(report);
    const { askYes } = await import('./clients/terminal.js');
    if (!(await askYes('execute it? [y/N] ', process.stdin, process.stderr))) {
      process.stderr.write('nothing was changed\n');
      return INVALID_USAGE;
    }
    restartTimeout();
    return output.print(await report.confirmation.execute());
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    process.stderr.write(`${NAME}: ${verb.name} failed: ${failureLine(error)}\n`);
    if (error.code === 'ACCESS_DENIED') process.stderr.write(`hint: ${ACCESS_HINT}\n`);
    return exitCodeOf(error.code);
  } finally {
    for (const service of services) service.close();
  }
}

/** @param timeoutMs - of --timeout; undefined: a command's own */
function commandTimeout(clock: Clock, timeoutMs: number | undefined) {
  let atMs = 0;
  const restartTimeout = (defaultMs = DEFAULT_TIMEOUT_MS): void =>
    void (atMs = clock.nowMs() + (timeoutMs ?? defaultMs));
  restartTimeout();
  return { restartTimeout, deadlineMs: () => atMs };
}

interface ClientOptions {
  readonly globals: Input;
  /** The node that the command is about; undefined: this machine. */
  readonly nodeName: string | undefined;
  readonly deadlineMs: () => number;
  /** Receives the services, for their end. */
  readonly services: GrpcService[];
}

type Clients = Pick<Context, 'ipam' | 'dataplane' | 'plugin' | 'onNode'>;

async function openClients(
  { globals, nodeName, deadlineMs, services }: ClientOptions,
  deps: RunDeps,
): Promise<Clients> {
  const { process, clock, traceCommand } = deps;
  const { ipam: ipamAddress, dataplane, plugin, ipamProofs } = serviceSettingsOf(globals, process.env);
  const grpc = (options: Pick<ConstructorParameters<typeof GrpcService>[0], GrpcOption>): GrpcService => {
    const log = (): Promise<Logger> => plainLog(process.stderr);
    const service = new GrpcService({ ...options, traceCommand, log, clock, deadlineMs });
    services.push(service);
    return service;
  };
  const ipam = grpc({ name: 'podwire-ipam', address: ipamAddress, option: IPAM.name, proofs: ipamProofs });
  const onNode = (name: string, limitMs = Infinity): Promise<NodeRelay> => {
    const callDeadlineMs = (): number => Math.min(deadlineMs(), clock.nowMs() + limitMs);
    return relayTo({ nodeName: name, ipam, clock, deadlineMs: callDeadlineMs });
  };
  const relay = nodeName === undefined ? undefined : await onNode(nodeName);
  return {
    ipam,
    dataplane: relay ?? grpc({ name: 'podwire-node', address: dataplane, option: DATAPLANE.name }),
    plugin: async (of) => {
      const { PluginSocket } = await import('./clients/plugin-socket.js');
      const node = of ? await onNode(of.node, of.limitMs) : relay;
      return new PluginSocket({ path: plugin, option: PLUGIN.name, clock, deadlineMs, relay: node });
    },
    onNode,
  };
}

function nodeNameOf(verb: Verb, input: Input): string | undefined {
  return verb.options?.includes(ON_NODE) ? input.get(ON_NODE) : undefined;
}

async function relayTo(options: ConstructorParameters<typeof NodeRelay>[0]): Promise<NodeRelay> {
  const { NodeRelay: Relay } = await import('./clients/node-relay.js');
  return new Relay(options);
}

/** The output of one command line. */
class Output {
  readonly #globals: Input;
  readonly #process: RunDeps['process'];
  readonly format: OutputFormat;
  /** Whether an operator sees the output and can answer. */
  readonly isInteractive: boolean;

  readonly #renderData: RenderOptions['renderData'];

  constructor(globals: Input, process: RunDeps['process'], renderData: RenderOptions['renderData']) {
    this.#globals = globals;
    this.#process = process;
    this.#renderData = renderData;
    this.format = globals.get(OUTPUT) ?? 'table';
    const isForPeople = this.format === 'table' || this.format === 'wide';
    this.isInteractive = isForPeople && process.stdin.isTTY === true && process.stdout.isTTY === true;
  }

  /** @returns the exit code of the report */
  print(report: Report, { hasHeadings = true } = {}): number {
    const { stdout, stderr, env } = this.#process;
    if (report.isPrinted) return report.exitCode ?? DONE;
    const text = render(this.#withHints(report), {
      format: this.format,
      hasHeadings: hasHeadings && !this.#globals.has(NO_HEADERS),
      renderData: this.#renderData,
      isColoured: stdout.isTTY === true && (env.NO_COLOR ?? '') === '',
    });
    stdout.write(text.stdout);
    stderr.write(text.stderr);
    return report.exitCode ?? DONE;
  }

  /** The report with the command that confirms a preview, and with the options of this command line that lead to services. */
  #withHints(report: Report): Report {
    const { hints = [], confirmation } = report;
    const confirm =
      confirmation && !this.isInteractive
        ? [`nothing was changed; to execute it: ${NAME} ${confirmation.command}`]
        : [];
    const options = serviceOptionWords(this.#globals);
    const command = [NAME, ...options, ''].join(' ');
    return { ...report, hints: [...hints, ...confirm].map((hint) => hint.replaceAll(`${NAME} `, command)) };
  }
}

type GrpcOption = 'name' | 'address' | 'option' | 'proofs';

/** A log of plain lines, as the other output for people. */
async function plainLog(stderr: Writable): Promise<Logger> {
  const [{ createLogger }, { z }] = await Promise.all([import('@podwire/shared/runtime/log'), import('zod')]);
  const logLine = z.object({ msg: z.string() });
  const write = (line: string): void => void stderr.write(`${NAME}: ${logLine.parse(JSON.parse(line)).msg}\n`);
  return createLogger({ service: NAME, level: 'info', destination: { write } });
}
