import type { Bench, Call } from '../bench.js';
import type { Case, Level, Occasion } from '../case.js';
import type { Verb } from '../specification/versions.js';
import { newest } from './newest.js';

const SECTION = '2 Parameters';
const BAD_ENVIRONMENT = 4;

interface Fault {
  readonly id: string;
  readonly verb: Verb;
  readonly level?: Level;
  readonly title: string;
  readonly env: NonNullable<Call['env']>;
  /** Variables that the message has to name. */
  readonly names: readonly string[];
}

const REQUIRED = {
  ADD: ['CNI_CONTAINERID', 'CNI_NETNS', 'CNI_IFNAME'],
  CHECK: ['CNI_CONTAINERID', 'CNI_NETNS', 'CNI_IFNAME'],
  DEL: ['CNI_CONTAINERID', 'CNI_IFNAME'],
} as const;

const kebab = (variable: string) => variable.replace('CNI_', '').toLowerCase();

/** Faults of the environment: each is refused with code 4, by a message that names the variable, and changes nothing. */
export function environmentCases(occasion: Occasion): readonly Case[] {
  return [...missing(), ...several(), ...malformed()]
    .map((fault) => refusal(fault, occasion))
    .concat(commandCases(occasion));
}

function missing(): readonly Fault[] {
  return (['ADD', 'CHECK', 'DEL'] as const).flatMap((verb) =>
    REQUIRED[verb].flatMap((variable): readonly Fault[] => [
      {
        id: `env.missing.${verb.toLowerCase()}.${kebab(variable)}`,
        verb,
        title: `${verb} without ${variable} is refused`,
        env: { [variable]: undefined },
        names: [variable],
      },
      {
        id: `env.empty.${verb.toLowerCase()}.${kebab(variable)}`,
        verb,
        // Runtimes send variables that do not apply like this.
        level: 'SHOULD',
        title: `an empty ${variable} counts as absent for ${verb}`,
        env: { [variable]: '' },
        names: [variable],
      },
    ]),
  );
}

function several(): readonly Fault[] {
  return (['ADD', 'CHECK', 'DEL'] as const).map((verb) => ({
    id: `env.missing.${verb.toLowerCase()}.several`,
    verb,
    level: 'SHOULD',
    title: `${verb} names all missing variables at once`,
    env: Object.fromEntries(REQUIRED[verb].map((variable) => [variable, undefined])),
    names: REQUIRED[verb],
  }));
}

const BAD_CONTAINER_IDS = { slash: 'a/../b', dot: '.hidden', space: 'a b', dash: '-a' };
const BAD_NAMES = { dot: '.', dots: '..', slash: 'a/b', colon: 'a:b', space: 'a b', long: 'sixteen-letters-' };

function malformed(): readonly Fault[] {
  const ids = Object.entries(BAD_CONTAINER_IDS).map(([id, value]): Fault => ({
    id: `env.container-id.${id}`,
    verb: 'ADD',
    title: `container ID ${JSON.stringify(value)} is refused`,
    env: { CNI_CONTAINERID: value },
    names: [],
  }));
  const names = Object.entries(BAD_NAMES).map(([id, value]): Fault => ({
    id: `env.interface.${id}`,
    verb: 'ADD',
    title: `interface name ${JSON.stringify(value)} is refused`,
    env: { CNI_IFNAME: value },
    names: [],
  }));
  return [...ids, ...names];
}

function refusal({ id, verb, level = 'MUST', title, env, names }: Fault, occasion: Occasion): Case {
  return {
    id,
    section: SECTION,
    level,
    title,
    ask: async (bench) => {
      const version = newest(bench, verb === 'CHECK' ? '0.4.0' : '0.1.0');
      const pod = bench.pod();
      const before = await bench.holdings();
      const config = verb === 'CHECK' ? { prevResult: { cniVersion: version, interfaces: [], ips: [] } } : {};
      const outcome = await bench.call(verb, { pod, version, env, config });
      bench.expectError(verb, outcome, { codes: [BAD_ENVIRONMENT], names });
      if (occasion.subject.kind !== 'meta') bench.expectPodEmpty('the refused call', pod);
      await bench.expectNothingLeft('the refused call', before);
    },
  };
}

function commandCases(occasion: Occasion): readonly Case[] {
  return [
    {
      id: 'env.command.unknown',
      section: SECTION,
      level: 'MUST',
      title: 'an unknown CNI_COMMAND is refused',
      ask: async (bench) => {
        const outcome = await bench.call('ADD', {
          pod: bench.pod(),
          version: newest(bench),
          env: { CNI_COMMAND: 'FETCH' },
        });
        bench.expectError('FETCH', outcome, { codes: [BAD_ENVIRONMENT], names: ['CNI_COMMAND'] });
      },
    },
    {
      id: 'env.command.missing',
      section: SECTION,
      level: 'SHOULD',
      title: 'no CNI_COMMAND: nothing is done',
      ask: noCommand,
    },
    ...(occasion.versions.includes('1.1.0') ? [gcWithoutPath()] : []),
  ];
}

/** The reference implementation prints its name on standard error, and succeeds. */
async function noCommand(bench: Bench): Promise<void> {
  const pod = bench.pod();
  const outcome = await bench.call('ADD', { pod, version: newest(bench), env: { CNI_COMMAND: undefined } });
  if (outcome.exitCode === 0) bench.require(outcome.stdout === '', 'succeeds with something on standard output');
  else bench.expectError('no command', outcome, { codes: [BAD_ENVIRONMENT], names: ['CNI_COMMAND'] });
  bench.expectPodEmpty('no command', pod);
}

function gcWithoutPath(): Case {
  return {
    id: 'env.missing.gc.path',
    section: '2 GC',
    level: 'MUST',
    title: 'GC without CNI_PATH is refused',
    ask: async (bench) => {
      const outcome = await bench.call('GC', { version: '1.1.0', env: { CNI_PATH: undefined } });
      bench.expectError('GC', outcome, { codes: [BAD_ENVIRONMENT], names: ['CNI_PATH'] });
    },
  };
}
