import type { Report } from '../output/report.js';
import { oneOf } from './forms.js';
import { GLOBAL_FLAGS, GLOBAL_OPTIONS } from './global-options.js';
import type { Positional, Verb } from './verb.js';

/** The first word of a command line whose output is {@link candidates} of the words after it. */
export const COMPLETE = '__complete';

const SCRIPTS = {
  bash: `_podwirectl() {
  local IFS=$'\\n'
  COMPREPLY=($(podwirectl ${COMPLETE} "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _podwirectl podwirectl
`,
  zsh: `#compdef podwirectl
_podwirectl() {
  local -a found
  found=("\${(@f)$(podwirectl ${COMPLETE} "\${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compadd -a found
}
compdef _podwirectl podwirectl
`,
  fish: `function __podwirectl_complete
  podwirectl ${COMPLETE} (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null
end
complete -c podwirectl -f -a '(__podwirectl_complete)'
`,
} as const;

const SHELL: Positional<string> = {
  form: oneOf<string>(SCRIPTS),
  about: 'the shell',
  presence: 'required',
};

export const completion: Verb = {
  name: 'completion',
  about: 'print the script that completes command lines in a shell',
  details: 'bash: source <(podwirectl completion bash); zsh: the same; fish: podwirectl completion fish | source',
  positionals: [SHELL],
  examples: ['completion bash'],
  run: (input): Promise<Report> => {
    const script = input.at(SHELL);
    return Promise.resolve({ sections: [{ kind: 'text', text: script }], data: () => script });
  },
};

/**
 * What the last word of a command line may be.
 * @param words - the words behind the program's name; the last is the one to complete, which may be empty
 */
export function candidates(words: readonly string[], verbs: readonly Verb[]): string[] {
  const [current = '', previous = ''] = [words.at(-1), words.at(-2)];
  const before = words.slice(0, -1).filter((word) => !word.startsWith('-'));
  const verb = verbs.find(({ name }) => `${before.join(' ')} `.startsWith(`${name} `));
  const all = wordsAfter({ before, current, previous }, verb, verbs);
  return [...new Set(all)].filter((word) => word.startsWith(current)).sort();
}

interface Place {
  readonly before: readonly string[];
  readonly current: string;
  readonly previous: string;
}

function wordsAfter({ before, current, previous }: Place, verb: Verb | undefined, verbs: readonly Verb[]): string[] {
  const options = [...(verb?.options ?? []), ...GLOBAL_OPTIONS];
  const valued = options.find(({ name, short }) => previous !== '' && (name === previous || short === previous));
  if (valued) return [...(valued.form.words ?? [])];
  if (current.startsWith('-')) return [...options, ...(verb?.flags ?? []), ...GLOBAL_FLAGS].map(({ name }) => name);
  if (!verb) {
    const names = verbs.map(({ name }) => name.split(' '));
    const matching = names.filter((name) => before.every((word, place) => name[place] === word));
    return matching.flatMap((name) => name[before.length] ?? []);
  }
  const { positionals = [] } = verb;
  const place = before.length - verb.name.split(' ').length;
  return [...(positionals[Math.min(place, positionals.length - 1)]?.form.words ?? [])];
}
