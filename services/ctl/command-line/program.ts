import { Argument, Command, CommanderError, Help, InvalidArgumentError, Option as ProgramOption } from 'commander';

import { DONE, EXIT_CODES, INVALID_USAGE } from '../output/report.js';
import { plainWords } from './completion.js';
import type { Form } from './forms.js';
import { GLOBAL_FLAGS, GLOBAL_OPTIONS, OUTPUT } from './global-options.js';
import { Input, type Flag, type Option, type Positional, type Verb, type VerbTable } from './verb.js';

/** A parsed command line: a command to run; or the text of a help, a version or a usage error. */
export type CommandLine =
  | { readonly kind: 'run'; readonly verb: Verb; readonly input: Input; readonly globals: Input }
  | { readonly kind: 'text'; readonly stdout: string; readonly stderr: string; readonly exitCode: number };

const NAME = 'podwirectl';
const EVERY_COMMAND = 'options of every command:';

/** Verb of a noun without a verb: the first of these that the noun has. */
const DEFAULT_SUBCOMMANDS = ['list', 'get', 'status'];

const HELP_WORD = 'help';

/** Columns of the help, which follows the terminal within them. */
const MIN_HELP_WIDTH = 80;
const MAX_HELP_WIDTH = 120;

/** Loads the commands with the first word of a command line, which are the ones that it may mean; all where none has it. */
export async function loadVerbs(args: readonly string[], verbs: VerbTable): Promise<Verb[]> {
  const noun = plainWords(args, GLOBAL_OPTIONS).find((word) => word !== HELP_WORD);
  const all = Object.entries(verbs);
  const own = all.filter(([name]) => name.split(' ')[0] === noun);
  return Promise.all((own.length > 0 ? own : all).map(([, load]) => load()));
}

/**
 * Parses a command line with commander. The options of every command may be anywhere.
 * @param args - the arguments behind the program's name
 * @param version - of podwirectl, for --version
 * @param columns - of the terminal
 */
export function parseCommandLine(
  args: readonly string[],
  verbs: readonly Verb[],
  { version = '', columns = MAX_HELP_WIDTH }: { readonly version?: string; readonly columns?: number | undefined } = {},
): CommandLine {
  const texts = { stdout: '', stderr: '' };
  let chosen: CommandLine | undefined;
  const helpWidth = Math.min(Math.max(columns, MIN_HELP_WIDTH), MAX_HELP_WIDTH);
  const program = programOf(
    verbs,
    helpWidth,
    (verb, command) => (chosen = { kind: 'run', verb, ...argumentsOf(verb, command) }),
  );
  program.version(`${NAME} ${version}`, '--version', 'release of podwirectl');
  for (const command of withSubcommands(program))
    command.configureOutput({
      writeOut: (text) => void (texts.stdout += text),
      writeErr: (text) => void (texts.stderr += text),
      outputError: (text, write) => write(`${NAME}: ${plainError(text)}`),
    });
  const [first, ...rest] = args;
  try {
    // Commander's own help command takes one word; the option works at any depth.
    program.parse(first === HELP_WORD ? [...rest, '--help'] : args, { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    return { kind: 'text', ...texts, exitCode: error.exitCode === 0 ? DONE : INVALID_USAGE };
  }
  return chosen ?? { kind: 'text', ...texts, exitCode: INVALID_USAGE };
}

/** Commander's error with the reason alone where a value is invalid. */
function plainError(text: string): string {
  return text
    .replace(/^error: /, '')
    .replace(/^option '(?:-., )?(--[\w-]+) .*?' argument '[^]*?' is invalid\. /, '$1 ')
    .replace(/^command-argument value '[^]*?' is invalid for argument '(.*?)'\. /, '$1 ');
}

/** The tree of all commands. */
export function programOf(
  verbs: readonly Verb[],
  helpWidth: number,
  run: (verb: Verb, command: Command) => void,
): Command {
  const exitCodes = `exit codes: ${EXIT_CODES.map(({ code, about }) => `${code} ${about}`).join(', ')}`;
  const program = new Command(NAME);
  program
    .description('podwirectl shows and changes the state of a running Podwire.')
    .exitOverride()
    .enablePositionalOptions()
    .configureHelp({
      helpWidth,
      minWidthToWrap: 20,
      subcommandTerm: wordsOf,
      visibleCommands: (command) => new Help().visibleCommands(command).flatMap((each) => listed(each, verbs)),
      styleTitle: (title) => title.toLowerCase(),
    })
    .showHelpAfterError(`try: ${NAME} --help`)
    .helpCommand(`${HELP_WORD} [COMMAND...]`, 'help of a command')
    .addHelpText('after', `\n${program.createHelp().boxWrap(exitCodes, helpWidth)}`);
  addGlobals(program);
  for (const verb of verbs) {
    const [first = '', second] = verb.name.split(' ');
    const command = second === undefined ? program.command(first) : addSubcommand(program, first, second, verbs);
    addVerb(command, verb, run);
  }
  return program;
}

/** The words of a command line that mean the command. */
function wordsOf(command: Command): string {
  const [, ...own] = withParents(command).map((each) => each.name());
  return own.length > 0 ? own.join(' ') : command.name();
}

/** Each command that runs, also the second words of a noun: a reader of the help looks for a task, not for a noun. */
function listed(command: Command, verbs: readonly Verb[]): Command[] {
  const runs = command.commands.length === 0 || verbs.some(({ name }) => name === wordsOf(command));
  return [...(runs ? [command] : []), ...command.commands.flatMap((each) => listed(each, verbs))];
}

function addSubcommand(program: Command, noun: string, name: string, verbs: readonly Verb[]): Command {
  const names = verbs.map((verb) => verb.name);
  const isDefault = name === DEFAULT_SUBCOMMANDS.find((each) => names.includes(`${noun} ${each}`));
  return nounOf(program, noun).command(name, { isDefault });
}

function nounOf(program: Command, noun: string): Command {
  const known = program.commands.find((command) => command.name() === noun);
  if (known) return known;
  const made = program.command(noun).helpCommand(false);
  made.showHelpAfterError(`try: ${NAME} ${noun} --help`);
  addGlobals(made);
  return made;
}

function addVerb(command: Command, verb: Verb, run: (verb: Verb, command: Command) => void): void {
  const { name, about, details, positionals = [], options = [], flags = [], examples = [] } = verb;
  command.description(details === undefined ? `${about}.` : `${about}.\n${details}`).summary(about);
  command.showHelpAfterError(`try: ${NAME} ${name} --help`);
  for (const positional of positionals) command.addArgument(argumentOf(positional));
  for (const option of options) command.addOption(optionOf(option));
  for (const flag of flags) command.addOption(flagOf(flag));
  addGlobals(command, options);
  if (examples.length > 0)
    command.addHelpText('after', `\nexamples:\n${examples.map((each) => `  ${NAME} ${each}`).join('\n')}`);
  command.action(() => run(verb, command));
}

/** @param own - options of the command, which replace options of every command with the same name */
function addGlobals(command: Command, own: readonly Option<unknown>[] = []): void {
  for (const option of GLOBAL_OPTIONS.filter(({ name }) => own.every((each) => each.name !== name)))
    command.addOption(optionOf(option).helpGroup(EVERY_COMMAND));
  for (const flag of GLOBAL_FLAGS) command.addOption(flagOf(flag).helpGroup(EVERY_COMMAND));
  command.helpOption('-h, --help', 'help of a command');
}

function argumentOf({ form, about, presence }: Positional<unknown>): Argument {
  const isMany = presence === 'repeated' || presence === 'any';
  const name = isMany ? `${form.placeholder}...` : form.placeholder;
  const isOptional = presence === 'optional' || presence === 'any';
  const argument = new Argument(isOptional ? `[${name}]` : `<${name}>`, about);
  return argument.argParser((value: string, previous: unknown) => [...textsOf(previous), validated(form, value)]);
}

function optionOf({ name, short, form, about, repeated = false }: Option<unknown>): ProgramOption {
  const option = new ProgramOption(
    `${short === undefined ? '' : `${short}, `}${name} <${form.placeholder}>`,
    repeated ? `${about}; may be repeated` : about,
  );
  return option.argParser((value: string, previous: unknown) => {
    const before = textsOf(previous);
    if (before.length > 0 && !repeated) throw new InvalidArgumentError('is repeated; it may be used once');
    return [...before, validated(form, value)];
  });
}

function flagOf({ name, short, about }: Flag): ProgramOption {
  return new ProgramOption(short === undefined ? name : `${short}, ${name}`, about);
}

function validated(form: Form<unknown>, value: string): string {
  const read = form.read(value);
  if (!read.ok) throw new InvalidArgumentError(`"${value}" ${read.fault}`);
  return value;
}

function textsOf(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((each) => typeof each === 'string') : [];
}

function argumentsOf(verb: Verb, command: Command): { readonly input: Input; readonly globals: Input } {
  const { options = [], flags = [] } = verb;
  const own = valuesOf([command], [...options, ...flags]);
  const globals = valuesOf(withParents(command), [...GLOBAL_OPTIONS, ...GLOBAL_FLAGS]);
  // -o names a file where the command has such an option, unless it is a format.
  const file = own.get(OUTPUT.name)?.find((value) => !OUTPUT.form.read(value).ok);
  if (file === undefined) own.delete(OUTPUT.name);
  else globals.delete(OUTPUT.name);
  const positionals = command.processedArgs.map(textsOf);
  return { input: new Input(verb, own, positionals), globals: new Input(verb, globals, []) };
}

/** The values of the options that the command line has; none for a flag. */
function valuesOf(
  commands: readonly Command[],
  options: readonly { readonly name: string }[],
): Map<string, readonly string[]> {
  const values = new Map<string, readonly string[]>();
  for (const command of commands)
    for (const { name } of options) {
      const key = new ProgramOption(name).attributeName();
      if (command.getOptionValueSource(key) === 'cli') values.set(name, textsOf(command.getOptionValue(key)));
    }
  return values;
}

/** Outermost first, so that a value further right counts. */
function withParents(command: Command): Command[] {
  return command.parent ? [...withParents(command.parent), command] : [command];
}

function withSubcommands(command: Command): Command[] {
  return [command, ...command.commands.flatMap(withSubcommands)];
}
