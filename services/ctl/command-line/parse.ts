import type { Form } from './forms.js';
import { GLOBAL_FLAGS, GLOBAL_OPTIONS, HELP, VERSION } from './global-options.js';
import { Input, type Option, type Verb } from './verb.js';

/** The parsed command line. */
export type Command =
  | { readonly kind: 'help'; /** The command to show help of. */ readonly words: readonly string[] }
  | { readonly kind: 'version' }
  | { readonly kind: 'invalid'; readonly reason: string; readonly words: readonly string[] }
  | { readonly kind: 'run'; readonly verb: Verb; readonly input: Input; readonly globals: Input };

const SHORT_OPTIONS: Readonly<Record<string, string>> = { '-o': '--output', '-h': '--help' };

/** The command that shows the help of the words after it. */
const HELP_WORD = 'help';

/** What a noun alone means: the first of these that the noun has. */
const DEFAULT_SUBCOMMANDS = ['list', 'get', 'status'];

/** The command line, as far as it was parsed. */
interface ParseState {
  readonly words: string[];
  /** Whether the first word was {@link HELP_WORD}, which has the effect of the option. */
  isHelpRequest: boolean;
  verb: Verb | undefined;
  readonly positionals: string[];
  readonly options: Map<string, string[]>;
  readonly globals: Map<string, string[]>;
}

function emptyState(): ParseState {
  const [options, globals] = [new Map<string, string[]>(), new Map<string, string[]>()];
  return { words: [], isHelpRequest: false, verb: undefined, positionals: [], options, globals };
}

/**
 * Parses a command line: words that name a verb, then its arguments. Global options may be anywhere.
 * @param args - the arguments behind the program's name
 */
export function parseCommandLine(args: readonly string[], verbs: readonly Verb[]): Command {
  const state = emptyState();
  const fault = parseArguments([...args], state, verbs);
  const { words, globals, options, positionals } = state;
  if (state.isHelpRequest && fault === undefined) return { kind: 'help', words };
  if (globals.has(HELP.name)) return { kind: 'help', words };
  if (fault !== undefined) return { kind: 'invalid', reason: fault, words };
  if (globals.has(VERSION.name)) return { kind: 'version' };
  if (words.length === 0) return { kind: 'invalid', reason: 'no command; "podwirectl help" lists them', words };
  const verb = state.verb ?? defaultVerb(words, verbs);
  if (!verb)
    return { kind: 'invalid', reason: `"${words.join(' ')}" is incomplete; ${subcommandText(words, verbs)}`, words };
  const missing = positionalFault(verb, positionals);
  if (missing !== undefined) return { kind: 'invalid', reason: missing, words: verb.name.split(' ') };
  return { kind: 'run', verb, input: new Input(verb, options, positionals), globals: new Input(verb, globals, []) };
}

/** @returns the first error; parsing continues after it, so that a later `--help` is found */
function parseArguments(args: string[], state: ParseState, verbs: readonly Verb[]): string | undefined {
  let fault: string | undefined;
  let onlyPositionals = false;
  for (let arg = args.shift(); arg !== undefined; arg = args.shift()) {
    if (arg === '--' && !onlyPositionals) {
      onlyPositionals = true;
      continue;
    }
    const isOption = arg.startsWith('-') && arg !== '-' && !onlyPositionals;
    const argFault = isOption ? parseOption(arg, args, { state, verbs }) : parseWord(arg, state, verbs);
    fault ??= argFault;
  }
  return fault;
}

function parseWord(word: string, state: ParseState, verbs: readonly Verb[]): string | undefined {
  if (word === HELP_WORD && state.words.length === 0 && !state.isHelpRequest) {
    state.isHelpRequest = true;
    return undefined;
  }
  if (state.verb) {
    state.positionals.push(word);
    return undefined;
  }
  state.words.push(word);
  const name = state.words.join(' ');
  state.verb = verbs.find((verb) => verb.name === name);
  const continuations = verbs.filter((verb) => verb.name.startsWith(`${name} `));
  if (state.verb || continuations.length > 0) return undefined;
  state.words.pop();
  const [noun] = state.words;
  if (noun === undefined) {
    const firsts = new Set([...verbs.map(({ name }) => name.split(' ')[0] ?? ''), HELP_WORD]);
    return `unknown command "${word}"${didYouMean(word, [...firsts])}`;
  }
  const meant = didYouMean(word, subcommandsOf([noun], verbs));
  return `"${noun}" has no command "${word}"${meant === '' ? `; ${subcommandText([noun], verbs)}` : meant}`;
}

function didYouMean(word: string, known: readonly string[]): string {
  const near = closestWord(word, known);
  return near === undefined ? '' : `; did you mean "${near}"?`;
}

function subcommandText(words: readonly string[], verbs: readonly Verb[]): string {
  return `its commands: ${subcommandsOf(words, verbs).join(', ')}`;
}

/** The rest of each command that begins with the words. */
function subcommandsOf(words: readonly string[], verbs: readonly Verb[]): string[] {
  const beginning = `${words.join(' ')} `;
  return verbs.filter(({ name }) => name.startsWith(beginning)).map(({ name }) => name.slice(beginning.length));
}

interface ParseContext {
  readonly state: ParseState;
  readonly verbs: readonly Verb[];
}

function parseOption(arg: string, rest: string[], { state, verbs }: ParseContext): string | undefined {
  const [typed = '', ...values] = arg.split('=');
  const name = SHORT_OPTIONS[typed] ?? typed;
  const inline = values.length > 0 ? values.join('=') : undefined;
  if (GLOBAL_FLAGS.some((flag) => flag.name === name)) return addFlag(name, inline, state.globals);
  const global = GLOBAL_OPTIONS.find((option) => option.name === name);
  if (global) return addValue(global, inline ?? rest.shift(), state.globals);
  const verb = (state.verb ??= defaultVerb(state.words, verbs));
  if (!verb) return `unknown option "${name}" before a command`;
  if (verb.flags?.some((flag) => flag.name === name)) return addFlag(name, inline, state.options);
  const option = verb.options?.find((each) => each.name === name);
  if (option) return addValue(option, inline ?? rest.shift(), state.options);
  const known = [...(verb.options ?? []), ...(verb.flags ?? []), ...GLOBAL_OPTIONS, ...GLOBAL_FLAGS];
  return `"${verb.name}" has no option "${name}"${didYouMean(name, namesOf(known))}`;
}

const namesOf = (options: readonly { readonly name: string }[]): string[] => options.map(({ name }) => name);

function addFlag(name: string, value: string | undefined, into: Map<string, string[]>): string | undefined {
  if (value !== undefined) return `${name} takes no value`;
  into.set(name, []);
  return undefined;
}

function addValue(
  { name, form, repeated }: Option<unknown>,
  value: string | undefined,
  into: Map<string, string[]>,
): string | undefined {
  if (value === undefined) return `${name} requires a value: ${name} ${form.placeholder}`;
  const before = into.get(name) ?? [];
  if (before.length > 0 && !repeated) return `${name} is repeated; it may be used once`;
  into.set(name, [...before, value]);
  return faultOf(name, form, value);
}

function faultOf(subject: string, form: Form<unknown>, input: string): string | undefined {
  const read = form.read(input);
  return read.ok ? undefined : `${subject} "${input}" ${read.fault}`;
}

function defaultVerb(words: readonly string[], verbs: readonly Verb[]): Verb | undefined {
  const [noun, ...others] = words;
  if (noun === undefined || others.length > 0) return undefined;
  const names = DEFAULT_SUBCOMMANDS.map((second) => `${noun} ${second}`);
  return verbs.find(({ name }) => names.includes(name));
}

function positionalFault({ name, positionals = [] }: Verb, values: readonly string[]): string | undefined {
  const isRepeated = positionals.at(-1)?.presence === 'repeated';
  const [surplus] = isRepeated ? [] : values.slice(positionals.length);
  if (surplus !== undefined) return `"${name}" does not take "${surplus}"`;
  for (const [index, { form, presence, about }] of positionals.entries()) {
    const own = presence === 'repeated' ? values.slice(index) : values.slice(index, index + 1);
    if (own.length === 0 && presence !== 'optional') return `"${name}" requires ${form.placeholder}: ${about}`;
    const fault = own.map((each) => faultOf(form.placeholder, form, each)).find((each) => each !== undefined);
    if (fault !== undefined) return fault;
  }
  return undefined;
}

/** A word with errors in up to a third of its letters is taken for a misspelling. */
const LETTERS_PER_FAULT = 3;

/**
 * The known word that is closest to a misspelled one.
 * @returns undefined if no word is close
 */
export function closestWord(word: string, known: readonly string[]): string | undefined {
  const near = known
    .map((each) => ({ each, faults: editDistance(word, each) }))
    .filter(({ each, faults }) => faults <= Math.ceil(Math.max(word.length, each.length) / LETTERS_PER_FAULT))
    .sort((a, b) => a.faults - b.faults);
  return near[0]?.each ?? known.find((each) => word.length > 1 && each.startsWith(word));
}

/** Number of missing, surplus, wrong or swapped letters (optimal string alignment distance). */
function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const isSame = a[i - 1] === b[j - 1];
      const isSwapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      const replaced = (previous[j - 1] ?? 0) + (isSame ? 0 : 1);
      const swapped = isSwapped ? (before[j - 2] ?? 0) + 1 : Infinity;
      row.push(Math.min((previous[j] ?? 0) + 1, (row[j - 1] ?? 0) + 1, replaced, swapped));
    }
    [before, previous] = [previous, row];
  }
  return previous[b.length] ?? 0;
}
