import { FILES, isGenerated } from './tree.js';

/** Phrases that hide the actor, the object or the field's word, each with what to write instead. */
const DIALECT: readonly (readonly [phrase: RegExp, instead: string])[] = [
  [/\b(nobody|somebody|whoever)\b/i, 'name the actor: the plugin, an operator, another process'],
  [/\bwho (is|has|says|asks|wants|waits|looks)\b/i, 'name the actor'],
  [/\b(is|are|was|were) told\b/i, 'is reported, is logged, is notified'],
  [/\btells?\b/i, 'reports, returns, names, notifies'],
  [/\bcomes? again\b/i, 'is retried'],
  [/\bgoes on\b/i, 'continues'],
  [/\b(is|are) away\b/i, 'is down, is unreachable'],
  [/\banew\b/i, 'again'],
  [/\bfor good\b/i, 'permanently'],
  [/\bthereby\b/i, 'so'],
  [/\bso long (a|as it)\b/i, 'grace period, while'],
  [/\bmend(s|ed|ing)?\b/i, 'repair'],
  [/\bis no (text|setting|value)\b/i, 'must be a string, unknown setting, not a valid value'],
  [/\bwhat of it\b/i, 'name the thing'],
  [/\bheeds?\b/i, 'obeys, respects'],
  [/(?<!-)\bothers\b/i, 'name the thing: the other nodes, the remaining fields'],
  [/\bthose (of|that|which|in|with|from)\b/i, 'repeat the noun: addresses of, nodes that'],
  [/\bwhat (is|are|was|were)\b/i, 'name the thing: the missing file, unlisted addresses'],
  [/(\/\*\*|\/\/|^\s*\*) (Of|By|What|Undefined (for|if|until|when))\b/, 'begin with the noun: Name of the pod'],
  [/^\s*(<{7}|(> ?){7})/, 'resolve the conflict of the merge'],
];

/** The phrases in a file's text, each with its line and replacement. */
export function phrasesIn(file: string, text: string): string[] {
  return text.split('\n').flatMap((content, index) =>
    DIALECT.flatMap(([phrase, instead]) => {
      const found = phrase.exec(content);
      return found ? [`${file}:${index + 1}: "${found[0]}": write ${instead}`] : [];
    }),
  );
}

/** Files that have to contain the phrases: the word list and its test. */
const EXEMPT = ['CHANGELOG.md', 'test/architecture/dialect.ts', 'test/documents.test.ts'];

/** Documents, sources and tests that are written by hand. */
export const PROSE = FILES.filter(
  (file) => /\.(md|ts|mjs|cc|c|h|go|proto)$/.test(file) && !isGenerated(file) && !EXEMPT.includes(file),
);
