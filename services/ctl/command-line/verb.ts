import type { Context } from '../clients/services.js';
import type { Report } from '../output/report.js';
import type { Form } from './forms.js';

/** An option with a value. */
export interface Option<Value> {
  /** With its dashes: `--pool`. */
  readonly name: string;
  readonly form: Form<Value>;
  /** Effect, default, and when it has no effect, for the help. */
  readonly about: string;
  /** Whether it may be given several times. */
  readonly repeated?: boolean;
}

/** An option without a value. */
export interface Flag {
  readonly name: string;
  readonly about: string;
}

/** A positional argument. */
export interface Positional<Value> {
  readonly form: Form<Value>;
  readonly about: string;
  /** Repeated ones come last, and are at least one. */
  readonly presence: 'required' | 'optional' | 'repeated';
}

/** A command of podwirectl. The parser and the help both read this, so that they cannot diverge. */
export interface Verb {
  /** One or two words: `pools list`. */
  readonly name: string;
  /** One line. */
  readonly about: string;
  readonly positionals?: readonly Positional<unknown>[];
  readonly options?: readonly Option<unknown>[];
  readonly flags?: readonly Flag[];
  /** What the help says besides, in lines of at most 120 characters. */
  readonly details?: string;
  /** What is typed behind the program's name. */
  readonly examples?: readonly string[];
  /** @throws Failure */
  readonly run: (input: Input, context: Context) => Promise<Report>;
}

/** What was typed for a verb, in its form already. */
export class Input {
  readonly #verb: Verb;
  readonly #options: ReadonlyMap<string, readonly string[]>;
  readonly #positionals: readonly string[];

  /** @param options - texts by the option's name; none for a flag */
  constructor(verb: Verb, options: ReadonlyMap<string, readonly string[]>, positionals: readonly string[]) {
    this.#verb = verb;
    this.#options = options;
    this.#positionals = positionals;
  }

  has(flag: Flag): boolean {
    return this.#options.has(flag.name);
  }

  /** @returns undefined where the option was not given */
  get<Value>(option: Option<Value>): Value | undefined {
    return this.all(option)[0];
  }

  all<Value>(option: Option<Value>): Value[] {
    return (this.#options.get(option.name) ?? []).map((given) => valueOf(option.form, given));
  }

  /**
   * What was typed, with its options and flags, to be typed again by a shell's user.
   * @param instead - what stands in the places of the arguments, and values of options
   */
  typed(
    instead: { readonly positionals?: readonly string[]; readonly options?: Readonly<Record<string, string>> } = {},
  ) {
    const options = new Map(this.#options);
    for (const [name, value] of Object.entries(instead.options ?? {})) options.set(name, [value]);
    const given = [...options].flatMap(([name, values]) =>
      values.length === 0 ? [name] : values.flatMap((value) => [name, value]),
    );
    const words = [...(instead.positionals ?? this.#positionals), ...given].map(quoted);
    return [this.#verb.name, ...words].join(' ');
  }

  /** What stands in the place; of one that is repeated the first. */
  at<Value>(positional: Positional<Value>): Value {
    const [value] = this.rest(positional);
    if (value === undefined) throw new Error(`"${this.#verb.name}" was let through without its ${positional.about}`);
    return value;
  }

  /** What stands in the place and, where it is repeated, behind it. */
  rest<Value>(positional: Positional<Value>): Value[] {
    const place = this.#verb.positionals?.indexOf(positional) ?? -1;
    if (place < 0) throw new Error(`"${this.#verb.name}" does not list one of its arguments`);
    const end = positional.presence === 'repeated' ? undefined : place + 1;
    return this.#positionals.slice(place, end).map((given) => valueOf(positional.form, given));
  }
}

/** A word as a shell reads it. */
function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`;
}

function valueOf<Value>(form: Form<Value>, given: string): Value {
  const read = form.read(given);
  if (!read.ok) throw new Error(`a ${form.placeholder} was let through that ${read.fault}`);
  return read.value;
}
