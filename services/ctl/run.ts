import type { Writable } from 'node:stream';

import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { readOwnPackage } from '@podwire/shared/runtime/own-package';

import { PluginSocket } from './clients/plugin-socket.js';
import { GrpcService, type Context } from './clients/services.js';
import {
  DATAPLANE,
  IPAM,
  OUTPUT,
  PLUGIN,
  TIMEOUT,
  DEFAULT_TIMEOUT_MS,
  type ServiceAddress,
} from './command-line/global-options.js';
import { helpOf } from './command-line/help.js';
import { parseCommandLine } from './command-line/parse.js';
import type { Input, Verb } from './command-line/verb.js';
import { ContractJson, render } from './output/render.js';
import { DONE, exitCodeOf, INVALID_USAGE, type Report } from './output/report.js';
import { failureLine } from './output/words.js';
import { VERBS } from './verbs.js';

/** Dependencies on the process that podwirectl runs in. */
export interface RunDeps {
  readonly process: {
    readonly env: Readonly<Record<string, string | undefined>>;
    readonly stdout: Writable;
    readonly stderr: Writable;
  };
  readonly clock: Clock;
}

const NAME = 'podwirectl';

/**
 * Runs a command line. Results go to the standard output, errors and hints to the standard error.
 * @param args - the arguments behind the program's name
 * @returns the exit code
 */
export async function run(args: readonly string[], deps: RunDeps): Promise<number> {
  const { stdout, stderr } = deps.process;
  const command = parseCommandLine(args, VERBS);
  switch (command.kind) {
    case 'help':
      stdout.write(helpOf(command.words, VERBS));
      return DONE;
    case 'version':
      stdout.write(`${NAME} ${(await readOwnPackage(import.meta.url, '@podwire/ctl')).version}\n`);
      return DONE;
    case 'invalid':
      stderr.write(`${NAME}: ${command.reason}\ntry: ${[NAME, ...command.words, '--help'].join(' ')}\n`);
      return INVALID_USAGE;
    case 'run':
      return runVerb(command.verb, command, deps);
  }
}

interface ParsedArguments {
  readonly input: Input;
  readonly globals: Input;
}

async function runVerb(verb: Verb, { input, globals }: ParsedArguments, { process, clock }: RunDeps): Promise<number> {
  const services: GrpcService[] = [];
  try {
    const addresses = serviceAddressesOf(globals, process.env);
    const deadlineMs = clock.nowMs() + (globals.get(TIMEOUT) ?? DEFAULT_TIMEOUT_MS);
    const grpc = (name: string, address: string, option: string): GrpcService => {
      const service = new GrpcService({ name, address, option, clock, deadlineMs });
      services.push(service);
      return service;
    };
    const context: Context = {
      ipam: grpc('podwire-ipam', addresses.ipam, IPAM.name),
      dataplane: grpc('podwire-dataplane', addresses.dataplane, DATAPLANE.name),
      plugin: new PluginSocket({ path: addresses.plugin, option: PLUGIN.name, clock, deadlineMs }),
      clock,
      json: new ContractJson(),
    };
    const report = await verb.run(input, context);
    const text = render(withServiceOptions(report, globals), globals.get(OUTPUT) ?? 'table');
    process.stdout.write(text.stdout);
    process.stderr.write(text.stderr);
    return report.exitCode ?? DONE;
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    process.stderr.write(`${NAME}: ${verb.name} failed: ${failureLine(error)}\n`);
    return exitCodeOf(error.code);
  } finally {
    for (const service of services) service.close();
  }
}

/** Adds the service addresses of this command line to the commands in hints. */
function withServiceOptions(report: Report, globals: Input): Report {
  const options = [IPAM, DATAPLANE, PLUGIN].flatMap((option) => {
    const value = globals.get(option);
    return value === undefined ? [] : [`${option.name} ${value}`];
  });
  if (options.length === 0 || !report.hints) return report;
  const command = `${NAME} ${options.join(' ')} `;
  return { ...report, hints: report.hints.map((hint) => hint.replaceAll(`${NAME} `, command)) };
}

/** Addresses of the services. */
interface ServiceAddresses {
  readonly ipam: string;
  readonly dataplane: string;
  readonly plugin: string;
}

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * The address of each service: from its option, else from its variable, else the default.
 * @throws Failure INVALID_SETTINGS that lists every invalid variable
 */
function serviceAddressesOf(globals: Input, env: Environment): ServiceAddresses {
  const violations: { readonly field: string; readonly reason: string }[] = [];
  const read = (option: ServiceAddress): string => {
    const configured = globals.get(option) ?? env[option.variable] ?? '';
    const text = configured === '' ? option.defaultAddress : configured;
    const result = option.form.read(text);
    if (result.ok) return result.value;
    violations.push({ field: option.variable, reason: `is "${text}", which ${result.fault}` });
    return '';
  };
  const addresses = { ipam: read(IPAM), dataplane: read(DATAPLANE), plugin: read(PLUGIN) };
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return addresses;
}
