import type { Report } from '../output/report.js';
import { GIVEN_KIND, oneOf, type Form } from './forms.js';
import { GLOBAL_FLAGS, GLOBAL_OPTIONS, SERVICE_OPTIONS } from './global-options.js';
import { argument, type Option, type Verb, type VerbTable } from './verb.js';

/** The first word of a command line whose output is {@link candidates} of the words after it. */
export const COMPLETE = '__complete';

/** Where no word is known, the shells complete files. bash splits words at `=`, so its candidates have only the value. */
const SCRIPTS = {
  bash: `_podwirectl() {
  local IFS=$'\\n'
  COMPREPLY=($(podwirectl ${COMPLETE} "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  COMPREPLY=("\${COMPREPLY[@]#*=}")
}
complete -o default -F _podwirectl podwirectl
`,
  zsh: `#compdef podwirectl
_podwirectl() {
  local -a found
  found=(\${(f)"$(podwirectl ${COMPLETE} "\${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( $#found )); then compadd -a found; else _files; fi
}
if [[ $funcstack[1] == _podwirectl ]]; then _podwirectl; else compdef _podwirectl podwirectl; fi
`,
  fish: `function __podwirectl_complete
  set -l found (podwirectl ${COMPLETE} (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)
  if test (count $found) -gt 0
    printf '%s\\n' $found
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c podwirectl -f -a '(__podwirectl_complete)'
`,
} as const;

const SHELL = argument(oneOf<string>(SCRIPTS), 'the shell', 'required');

export const completion: Verb = {
  name: 'completion',
  about: 'print the script that completes command lines in a shell',
  details:
    'bash: source <(podwirectl completion bash)\n' +
    'zsh, after compinit: source <(podwirectl completion zsh); or save it as _podwirectl in a directory of $fpath\n' +
    'fish: podwirectl completion fish | source',
  positionals: [SHELL],
  examples: ['completion bash'],
  run: (input): Promise<Report> => {
    const script = input.at(SHELL);
    return Promise.resolve({ sections: [{ kind: 'text', text: script }], data: () => script });
  },
};

/** @param options - the options of the command line that lead to services. @returns none where no service answers soon */
export type NamesOf = (objects: string, options: readonly string[]) => Promise<readonly string[]>;

/**
 * Candidates for the last word of a command line.
 * @param words - the words behind the program's name; the last is the one to complete, which may be empty
 * @param namesOf - the names of the objects of a kind
 */
export async function candidates(words: readonly string[], verbs: VerbTable, namesOf: NamesOf): Promise<string[]> {
  const before = joinedAtEquals(words);
  const current = before.pop() ?? '';
  const verbWords = plainWords(before, GLOBAL_OPTIONS);
  const names = Object.keys(verbs);
  const name = names.find((each) => `${verbWords.join(' ')} `.startsWith(`${each} `)) ?? '';
  const place = { before, current, verb: await verbs[name]?.(), namesOf };
  const all = await wordsAfter(place, names);
  return [...new Set(all)].filter((word) => word.startsWith(current)).sort();
}

/** Joins an option with its value where bash has split them: `--output`, `=`, `json`. */
function joinedAtEquals(words: readonly string[]): string[] {
  const joined: string[] = [];
  for (const word of words) {
    const last = joined.at(-1) ?? '';
    const isSplit = last.startsWith('--') && (word === '=' || last.endsWith('='));
    if (isSplit) joined.pop();
    joined.push(isSplit ? last + word : word);
  }
  return joined;
}

/** The words that are neither options nor values of options. */
export function plainWords(words: readonly string[], options: readonly Option<unknown>[]): string[] {
  return words.filter((word, at) => !word.startsWith('-') && !optionNamed(words[at - 1], options));
}

function optionNamed(word: string | undefined, options: readonly Option<unknown>[]): Option<unknown> | undefined {
  return options.find(({ name, short }) => word !== undefined && (word === name || word === short));
}

interface Place {
  readonly before: readonly string[];
  readonly current: string;
  readonly verb: Verb | undefined;
  readonly namesOf: NamesOf;
}

async function wordsAfter(place: Place, verbNames: readonly string[]): Promise<readonly string[]> {
  const { before, current, verb } = place;
  const options = [...(verb?.options ?? []), ...GLOBAL_OPTIONS];
  const valued = optionNamed(before.at(-1), options);
  if (valued) return wordsOf(valued.form, place, options);
  const [assigned] = current.startsWith('--') ? current.split(/(?<==)/) : [];
  if (assigned?.endsWith('=')) {
    const option = optionNamed(assigned.slice(0, -1), options);
    const words = option ? await wordsOf(option.form, place, options) : [];
    return words.map((word) => assigned + word);
  }
  if (current.startsWith('-')) return [...options, ...(verb?.flags ?? []), ...GLOBAL_FLAGS].map(({ name }) => name);
  const plain = plainWords(before, options);
  if (!verb) {
    const names = verbNames.map((name) => name.split(' '));
    const matching = names.filter((name) => plain.every((word, at) => name[at] === word));
    return matching.flatMap((name) => name[plain.length] ?? []);
  }
  const { positionals = [] } = verb;
  const at = plain.length - verb.name.split(' ').length;
  const positional = positionals[Math.min(at, positionals.length - 1)];
  return positional ? wordsOf(positional.form, place, options) : [];
}

async function wordsOf(
  { words, objects = '' }: Form<unknown>,
  { before, verb, namesOf }: Place,
  options: readonly Option<unknown>[],
): Promise<readonly string[]> {
  if (words || objects === '') return words ?? [];
  const kind = plainWords(before, options)[verb?.name.split(' ').length ?? 0] ?? '';
  return namesOf(objects === GIVEN_KIND ? kind : objects, optionsIn(before, SERVICE_OPTIONS));
}

/** The options among the words, with their values. */
function optionsIn(words: readonly string[], options: readonly Option<unknown>[]): string[] {
  return words.filter((word, at) => optionNamed(word.split('=')[0], options) ?? optionNamed(words[at - 1], options));
}
