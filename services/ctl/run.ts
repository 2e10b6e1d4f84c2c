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
  USUAL_TIMEOUT_MS,
  type Place,
} from './command-line/global-options.js';
import { helpOf } from './command-line/help.js';
import { parseCommandLine } from './command-line/parse.js';
import type { Input, Verb } from './command-line/verb.js';
import { ContractJson, render } from './output/render.js';
import { DONE, exitCodeOf, NOT_UNDERSTOOD, type Report } from './output/report.js';
import { failureLine } from './output/words.js';
import { VERBS } from './verbs.js';

/** What podwirectl takes from the process it runs in. */
export interface Surroundings {
  readonly process: {
    readonly env: Readonly<Record<string, string | undefined>>;
    readonly stdout: Writable;
    readonly stderr: Writable;
  };
  readonly clock: Clock;
}

const NAME = 'podwirectl';

/**
 * Does what the arguments say: results on the standard output, everything else on the standard error.
 * @param args - what stands behind the program's name
 * @returns the exit code
 */
export async function run(args: readonly string[], around: Surroundings): Promise<number> {
  const { stdout, stderr } = around.process;
  const command = parseCommandLine(args, VERBS);
  switch (command.kind) {
    case 'help':
      stdout.write(helpOf(command.words, VERBS));
      return DONE;
    case 'version':
      stdout.write(`${NAME} ${(await readOwnPackage(import.meta.url, '@podwire/ctl')).version}\n`);
      return DONE;
    case 'wrong':
      stderr.write(`${NAME}: ${command.reason}\ntry: ${[NAME, ...command.words, '--help'].join(' ')}\n`);
      return NOT_UNDERSTOOD;
    case 'run':
      return runVerb(command.verb, command, around);
  }
}

interface Inputs {
  readonly input: Input;
  readonly globals: Input;
}

async function runVerb(verb: Verb, { input, globals }: Inputs, { process, clock }: Surroundings): Promise<number> {
  const services: GrpcService[] = [];
  try {
    const places = placesOf(globals, process.env);
    const deadlineMs = clock.nowMs() + (globals.get(TIMEOUT) ?? USUAL_TIMEOUT_MS);
    const grpc = (name: string, address: string, option: string): GrpcService => {
      const service = new GrpcService({ name, address, option, clock, deadlineMs });
      services.push(service);
      return service;
    };
    const context: Context = {
      ipam: grpc('podwire-ipam', places.ipam, IPAM.name),
      dataplane: grpc('podwire-dataplane', places.dataplane, DATAPLANE.name),
      plugin: new PluginSocket({ path: places.plugin, option: PLUGIN.name, clock, deadlineMs }),
      clock,
      json: new ContractJson(),
    };
    const report = await verb.run(input, context);
    const text = render(inReach(report, globals), globals.get(OUTPUT) ?? 'table');
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

/** A command that is proposed reaches the services where this one did. */
function inReach(report: Report, globals: Input): Report {
  const typed = [IPAM, DATAPLANE, PLUGIN].flatMap((place) => {
    const given = globals.get(place);
    return given === undefined ? [] : [`${place.name} ${given}`];
  });
  if (typed.length === 0 || !report.hints) return report;
  const command = `${NAME} ${typed.join(' ')} `;
  return { ...report, hints: report.hints.map((hint) => hint.replaceAll(`${NAME} `, command)) };
}

/** Where the services are. */
interface Places {
  readonly ipam: string;
  readonly dataplane: string;
  readonly plugin: string;
}

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Each service's place: by its option, else by the variable that Podwire's own processes know it by, else the usual one.
 * @throws Failure INVALID_SETTINGS that lists every nonsense variable
 */
function placesOf(globals: Input, env: Environment): Places {
  const violations: { readonly field: string; readonly reason: string }[] = [];
  const read = (place: Place): string => {
    const given = globals.get(place) ?? env[place.variable];
    const text = given === undefined || given === '' ? place.usual : given;
    const value = place.form.read(text);
    if (value.ok) return value.value;
    violations.push({ field: place.variable, reason: `is "${text}", which ${value.fault}` });
    return '';
  };
  const places = { ipam: read(IPAM), dataplane: read(DATAPLANE), plugin: read(PLUGIN) };
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return places;
}
