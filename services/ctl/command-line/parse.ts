import type { Form } from './forms.js';
import { GLOBAL_FLAGS, GLOBAL_OPTIONS, HELP, VERSION } from './global-options.js';
import { Input, type Option, type Verb } from './verb.js';

/** The parsed command line. */
export type Command =
  | { readonly kind: 'help'; /** The words that the help is asked of. */ readonly words: readonly string[] }
  | { readonly kind: 'version' }
  | { readonly kind: 'wrong'; readonly reason: string; readonly words: readonly string[] }
  | { readonly kind: 'run'; readonly verb: Verb; readonly input: Input; readonly globals: Input };

const SHORT: Readonly<Record<string, string>> = { '-o': '--output', '-h': '--help' };

/** As a command it asks for the help of what stands behind it. */
const HELP_WORD = 'help';

/** What a noun alone means: the first of them that it has. */
const USUAL_SECONDS = ['list', 'get', 'status'];

/** What was typed, sorted. */
interface Sorted {
  readonly words: string[];
  /** Whether the first word was {@link HELP_WORD}, which stands for the option. */
  asksForHelp: boolean;
  verb: Verb | undefined;
  readonly positionals: string[];
  readonly options: Map<string, string[]>;
  readonly globals: Map<string, string[]>;
}

function nothingSorted(): Sorted {
  const [options, globals] = [new Map<string, string[]>(), new Map<string, string[]>()];
  return { words: [], asksForHelp: false, verb: undefined, positionals: [], options, globals };
}

/**
 * Reads a command line: words that name a verb, then its arguments; options of podwirectl itself anywhere.
 * @param args - what stands behind the program's name
 */
export function parseCommandLine(args: readonly string[], verbs: readonly Verb[]): Command {
  const sorted = nothingSorted();
  const fault = sort([...args], sorted, verbs);
  const { words, globals, options, positionals } = sorted;
  if (sorted.asksForHelp && fault === undefined) return { kind: 'help', words };
  if (globals.has(HELP.name)) return { kind: 'help', words };
  if (fault !== undefined) return { kind: 'wrong', reason: fault, words };
  if (globals.has(VERSION.name)) return { kind: 'version' };
  if (words.length === 0) return { kind: 'wrong', reason: 'there is no command', words };
  const verb = sorted.verb ?? usualVerb(words, verbs);
  if (!verb)
    return { kind: 'wrong', reason: `"${words.join(' ')}" is no whole command; ${itsCommands(words, verbs)}`, words };
  const missing = positionalFault(verb, positionals);
  if (missing !== undefined) return { kind: 'wrong', reason: missing, words: verb.name.split(' ') };
  return { kind: 'run', verb, input: new Input(verb, options, positionals), globals: new Input(verb, globals, []) };
}

/** @returns the error; a later `--help` is still found */
function sort(args: string[], sorted: Sorted, verbs: readonly Verb[]): string | undefined {
  let fault: string | undefined;
  let onlyPositionals = false;
  for (let arg = args.shift(); arg !== undefined; arg = args.shift()) {
    if (arg === '--' && !onlyPositionals) {
      onlyPositionals = true;
      continue;
    }
    const isOption = arg.startsWith('-') && arg !== '-' && !onlyPositionals;
    const found = isOption ? takeOption(arg, args, { sorted, verbs }) : takeWord(arg, sorted, verbs);
    fault ??= found;
  }
  return fault;
}

function takeWord(word: string, sorted: Sorted, verbs: readonly Verb[]): string | undefined {
  if (word === HELP_WORD && sorted.words.length === 0 && !sorted.asksForHelp) {
    sorted.asksForHelp = true;
    return undefined;
  }
  if (sorted.verb) {
    sorted.positionals.push(word);
    return undefined;
  }
  sorted.words.push(word);
  const name = sorted.words.join(' ');
  sorted.verb = verbs.find((verb) => verb.name === name);
  const goesOn = verbs.filter((verb) => verb.name.startsWith(`${name} `));
  if (sorted.verb || goesOn.length > 0) return undefined;
  sorted.words.pop();
  const [noun] = sorted.words;
  if (noun === undefined) {
    const firsts = new Set([...verbs.map(({ name }) => name.split(' ')[0] ?? ''), HELP_WORD]);
    return `there is no command "${word}"${didYouMean(word, [...firsts])}`;
  }
  const meant = didYouMean(word, endsOf([noun], verbs));
  return `"${noun}" has no command "${word}"${meant === '' ? `; ${itsCommands([noun], verbs)}` : meant}`;
}

function didYouMean(word: string, known: readonly string[]): string {
  const near = nearest(word, known);
  return near === undefined ? '' : `; did you mean "${near}"?`;
}

function itsCommands(words: readonly string[], verbs: readonly Verb[]): string {
  return `it has ${endsOf(words, verbs).join(', ')}`;
}

/** What may stand behind the words. */
function endsOf(words: readonly string[], verbs: readonly Verb[]): string[] {
  const beginning = `${words.join(' ')} `;
  return verbs.filter(({ name }) => name.startsWith(beginning)).map(({ name }) => name.slice(beginning.length));
}

interface Reading {
  readonly sorted: Sorted;
  readonly verbs: readonly Verb[];
}

function takeOption(arg: string, rest: string[], { sorted, verbs }: Reading): string | undefined {
  const [typed = '', ...values] = arg.split('=');
  const name = SHORT[typed] ?? typed;
  const inline = values.length > 0 ? values.join('=') : undefined;
  if (GLOBAL_FLAGS.some((flag) => flag.name === name)) return takeFlag(name, inline, sorted.globals);
  const global = GLOBAL_OPTIONS.find((option) => option.name === name);
  if (global) return takeValue(global, inline ?? rest.shift(), sorted.globals);
  const verb = (sorted.verb ??= usualVerb(sorted.words, verbs));
  if (!verb) return `there is no option "${name}" before a command`;
  if (verb.flags?.some((flag) => flag.name === name)) return takeFlag(name, inline, sorted.options);
  const option = verb.options?.find((each) => each.name === name);
  if (option) return takeValue(option, inline ?? rest.shift(), sorted.options);
  const known = [...(verb.options ?? []), ...(verb.flags ?? []), ...GLOBAL_OPTIONS, ...GLOBAL_FLAGS];
  return `"${verb.name}" has no option "${name}"${didYouMean(name, namesOf(known))}`;
}

const namesOf = (options: readonly { readonly name: string }[]): string[] => options.map(({ name }) => name);

function takeFlag(name: string, value: string | undefined, into: Map<string, string[]>): string | undefined {
  if (value !== undefined) return `${name} takes no value`;
  into.set(name, []);
  return undefined;
}

function takeValue(
  { name, form, repeated }: Option<unknown>,
  value: string | undefined,
  into: Map<string, string[]>,
): string | undefined {
  if (value === undefined) return `${name} needs a value: ${name} ${form.placeholder}`;
  const before = into.get(name) ?? [];
  if (before.length > 0 && !repeated) return `${name} is given twice`;
  into.set(name, [...before, value]);
  return faultOf(name, form, value);
}

function faultOf(what: string, form: Form<unknown>, given: string): string | undefined {
  const read = form.read(given);
  return read.ok ? undefined : `${what} "${given}" ${read.fault}`;
}

function usualVerb(words: readonly string[], verbs: readonly Verb[]): Verb | undefined {
  const [noun, ...others] = words;
  if (noun === undefined || others.length > 0) return undefined;
  const names = USUAL_SECONDS.map((second) => `${noun} ${second}`);
  return verbs.find(({ name }) => names.includes(name));
}

function positionalFault({ name, positionals = [] }: Verb, given: readonly string[]): string | undefined {
  const endless = positionals.at(-1)?.presence === 'repeated';
  const [surplus] = endless ? [] : given.slice(positionals.length);
  if (surplus !== undefined) return `"${name}" does not take "${surplus}"`;
  for (const [place, { form, presence, about }] of positionals.entries()) {
    const here = presence === 'repeated' ? given.slice(place) : given.slice(place, place + 1);
    if (here.length === 0 && presence !== 'optional') return `"${name}" needs ${form.placeholder}: ${about}`;
    const fault = here.map((each) => faultOf(form.placeholder, form, each)).find((each) => each !== undefined);
    if (fault !== undefined) return fault;
  }
  return undefined;
}

/** A word may be wrong in a third of its letters, and be meant still. */
const LETTERS_PER_FAULT = 3;

/**
 * The known word closest to a misspelled one.
 * @returns undefined if none is close
 */
export function nearest(word: string, known: readonly string[]): string | undefined {
  const near = known
    .map((each) => ({ each, faults: faultsBetween(word, each) }))
    .filter(({ each, faults }) => faults <= Math.ceil(Math.max(word.length, each.length) / LETTERS_PER_FAULT))
    .sort((a, b) => a.faults - b.faults);
  return near[0]?.each ?? known.find((each) => word.length > 1 && each.startsWith(word));
}

/** How many letters are missing, too many, wrong or swapped with their neighbour (the optimal string alignment). */
function faultsBetween(a: string, b: string): number {
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
