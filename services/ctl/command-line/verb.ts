import type { Context } from '../clients/services.js';
import type { Report } from '../output/report.js';
import type { Form } from './forms.js';

/** An option with a value. */
export interface Option<Value> {
  /** Option name with its dashes: `--pool`. */
  readonly name: string;
  /** `-n`. */
  readonly short?: string;
  readonly form: Form<Value>;
  /** Effect, default, and when the option has no effect, for the help. */
  readonly about: string;
  /** Whether the option may be repeated. */
  readonly repeated?: boolean;
}

/** An option without a value. */
export interface Flag {
  readonly name: string;
  readonly short?: string;
  readonly about: string;
}

/** A positional argument. */
export interface Positional<Value> {
  readonly form: Form<Value>;
  readonly about: string;
  /** A repeated one, with at least one value, and one with any number of values are the last. */
  readonly presence: 'required' | 'optional' | 'repeated' | 'any';
}

export function option<Value>(name: string, form: Form<Value>, about: string): Option<Value> {
  return { name, form, about };
}

export function repeatedOption<Value>(name: string, form: Form<Value>, about: string): Option<Value> {
  return { name, form, about, repeated: true };
}

export function flag(name: string, about: string): Flag {
  return { name, about };
}

export function argument<Value>(
  form: Form<Value>,
  about: string,
  presence: Positional<Value>['presence'],
): Positional<Value> {
  return { form, about, presence };
}

/** A command of podwirectl: its arguments for the parser and the help, and its work. */
export interface Verb {
  /** One or two words: `pools list`. */
  readonly name: string;
  /** One line. */
  readonly about: string;
  readonly positionals?: readonly Positional<unknown>[];
  readonly options?: readonly Option<unknown>[];
  readonly flags?: readonly Flag[];
  /** Further text of the help, in lines of at most 120 characters. */
  readonly details?: string;
  /** Command lines without the program's name. */
  readonly examples?: readonly string[];
  /** Whether it prints `-o name`. */
  readonly hasNames?: boolean;
  /** @throws Failure */
  readonly run: (input: Input, context: Context) => Promise<Report>;
}

/** Commands by name, each with the function that loads its code. */
export type VerbTable = Readonly<Record<string, () => Promise<Verb>>>;

/** The arguments of a verb, already validated. */
export class Input {
  readonly #verb: Verb;
  readonly #options: ReadonlyMap<string, readonly string[]>;
  readonly #positionals: readonly (readonly string[])[];

  /**
   * @param options - values by the option's name; empty for a flag
   * @param positionals - values of each argument
   */
  constructor(
    verb: Verb,
    options: ReadonlyMap<string, readonly string[]>,
    positionals: readonly (readonly string[])[],
  ) {
    this.#verb = verb;
    this.#options = options;
    this.#positionals = positionals;
  }

  has(flag: Flag): boolean {
    return this.#options.has(flag.name);
  }

  /** @returns undefined where the option is absent */
  get<Value>(option: Option<Value>): Value | undefined {
    return this.all(option)[0];
  }

  all<Value>(option: Option<Value>): Value[] {
    return (this.#options.get(option.name) ?? []).map((value) => valueOf(option.form, value));
  }

  /**
   * The command line with its options and flags, quoted for a shell.
   * @param overrides - replaces the arguments, and values of options
   */
  toCommandLine(
    overrides: { readonly positionals?: readonly string[]; readonly options?: Readonly<Record<string, string>> } = {},
  ) {
    const options = new Map(this.#options);
    for (const [name, value] of Object.entries(overrides.options ?? {})) options.set(name, [value]);
    const optionWords = [...options].flatMap(([name, values]) =>
      values.length === 0 ? [name] : values.flatMap((value) => [name, value]),
    );
    const words = [...(overrides.positionals ?? this.#positionals.flat()), ...optionWords].map(quoteForShell);
    return [this.#verb.name, ...words].join(' ');
  }

  /** The value of an argument; the first value of a repeated one. */
  at<Value>(positional: Positional<Value>): Value {
    const [value] = this.rest(positional);
    if (value === undefined) throw new Error(`"${this.#verb.name}" was accepted without its ${positional.about}`);
    return value;
  }

  /** The values of an argument: several where it is repeated. */
  rest<Value>(positional: Positional<Value>): Value[] {
    const place = this.#verb.positionals?.indexOf(positional) ?? -1;
    if (place < 0) throw new Error(`"${this.#verb.name}" does not list one of its arguments`);
    return (this.#positionals[place] ?? []).map((value) => valueOf(positional.form, value));
  }
}

/** Quotes a word for a shell. */
export function quoteForShell(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`;
}

function valueOf<Value>(form: Form<Value>, value: string): Value {
  const read = form.read(value);
  if (!read.ok) throw new Error(`a ${form.placeholder} was accepted that ${read.fault}`);
  return read.value;
}
