import { FILES, isGenerated, isTest, read, workspaceOf } from './tree.js';

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

/** A line with a phrase of the dialect. */
interface Hit {
  readonly file: string;
  readonly line: number;
  readonly phrase: string;
  readonly instead: string;
}

export function hitsIn(file: string, text: string): Hit[] {
  return text.split('\n').flatMap((content, index) => {
    const found = DIALECT.map(([phrase, instead]) => [phrase.exec(content)?.[0], instead] as const);
    return found.flatMap(([phrase, instead]) =>
      phrase === undefined ? [] : [{ file, line: index + 1, phrase, instead }],
    );
  });
}

/** Files that have to contain the phrases: the word list and its test. */
const EXEMPT = ['CHANGELOG.md', 'LICENSE', 'test/architecture/dialect.ts', 'test/documents.test.ts'];

/** Where a file is counted: documents together, sources and tests by workspace. Undefined for a file without prose. */
export function areaOf(file: string): string | undefined {
  if (EXEMPT.includes(file) || isGenerated(file)) return undefined;
  if (file.endsWith('.md')) return 'documents';
  if (!/\.(ts|mjs|cc|c|h|go|proto)$/.test(file)) return undefined;
  return isTest(file) ? `tests of ${workspaceOf(file)}` : workspaceOf(file);
}

/** All hits of the repository, by area. */
export function hitsByArea(): ReadonlyMap<string, readonly Hit[]> {
  const areas = new Map<string, Hit[]>();
  for (const file of FILES) {
    const area = areaOf(file);
    if (area === undefined) continue;
    areas.set(area, [...(areas.get(area) ?? []), ...hitsIn(file, read(file))]);
  }
  return areas;
}
