import { EXIT_CODES } from '../output/report.js';
import { GLOBAL_FLAGS, GLOBAL_OPTIONS } from './global-options.js';
import type { Verb } from './verb.js';

const INTRODUCTION = `podwirectl shows and changes the state of a running Podwire.`;

/** Widest left column; a longer cell has its text on the next line. */
const MAX_LEFT = 34;

/**
 * The help of a verb, of all verbs of a noun, or of all commands.
 * @param words - the words of the command line that were recognized
 */
export function helpOf(words: readonly string[], verbs: readonly Verb[]): string {
  const name = words.join(' ');
  const verb = verbs.find((each) => each.name === name);
  if (verb) return verbHelp(verb);
  const some = verbs.filter((each) => each.name.startsWith(`${name} `));
  if (name !== '' && some.length > 0) return `usage: podwirectl ${name} COMMAND\n\n${list(some.map(summary))}`;
  return fullHelp(verbs);
}

/** The usage line of a verb, without its options. */
export function usageOf({ name, positionals = [] }: Verb): string {
  const places = positionals.map(({ form, presence }) => {
    if (presence === 'optional') return ` [${form.placeholder}]`;
    return presence === 'repeated' ? ` ${form.placeholder}…` : ` ${form.placeholder}`;
  });
  return name + places.join('');
}

function fullHelp(verbs: readonly Verb[]): string {
  return [
    `usage: podwirectl COMMAND [OPTIONS]\n\n${INTRODUCTION}\n\n`,
    list(verbs.map(summary)),
    '\noptions of every command:\n',
    options(GLOBAL_OPTIONS, GLOBAL_FLAGS),
    '\nexit codes: ',
    `${EXIT_CODES.map(({ code, about }) => `${code} ${about}`).join(', ')}\n`,
    '\n"podwirectl help COMMAND" or "podwirectl COMMAND --help" shows more. A noun alone lists or shows its objects.\n',
  ].join('');
}

function verbHelp(verb: Verb): string {
  const { positionals = [], about, details, examples = [] } = verb;
  const own = options(verb.options ?? [], verb.flags ?? []);
  return [
    `usage: podwirectl ${usageOf(verb)}${own === '' ? '' : ' [OPTIONS]'}\n\n${about}.\n`,
    details === undefined ? '' : `${details}\n`,
    positionals.length === 0 ? '' : `\n${list(positionals.map(({ form, about: text }) => [form.placeholder, text]))}`,
    own === '' ? '' : `\n${own}`,
    '\noptions of every command:\n',
    options(GLOBAL_OPTIONS, GLOBAL_FLAGS),
    examples.length === 0 ? '' : `\nexamples:\n${examples.map((each) => `  podwirectl ${each}\n`).join('')}`,
  ].join('');
}

const summary = (verb: Verb): [string, string] => [usageOf(verb), verb.about];

function options(valued: NonNullable<Verb['options']>, flags: NonNullable<Verb['flags']>): string {
  const rows = valued.map(({ name, form, about, repeated }): [string, string] => [
    `${name} ${form.placeholder}`,
    repeated ? `${about}; may be repeated` : about,
  ]);
  return list([...rows, ...flags.map(({ name, about }): [string, string] => [name, about])]);
}

function list(rows: readonly (readonly [string, string])[]): string {
  const width = Math.min(MAX_LEFT, Math.max(0, ...rows.map(([left]) => left.length)));
  const line = ([left, right]: readonly [string, string]): string =>
    left.length > width ? `  ${left}\n  ${' '.repeat(width)}  ${right}\n` : `  ${left.padEnd(width)}  ${right}\n`;
  return rows.map(line).join('');
}
