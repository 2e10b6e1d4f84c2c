import { Failure } from '@podwire/shared/failure/failure';
import { suggestion } from '@podwire/shared/words/closest';

import type { Context } from '../clients/services.js';
import { text } from '../command-line/forms.js';
import { flag, type Flag, type Input, type Option, type Verb } from '../command-line/verb.js';
import type { Manifest } from './resource.js';
import { KINDS, type KindEntry } from './table.js';

export const FILE: Option<string> = {
  ...{ name: '--filename', short: '-f', form: text('FILE') },
  about: 'manifests in YAML or JSON; - is the standard input, a directory all its .yaml, .yml and .json files',
};
export const RECURSIVE: Flag = { name: '--recursive', short: '-R', about: 'with a directory: its folders too' };
export const SKIP_EMPTY = flag('--skip-empty', 'succeed where the files have no object');
export const FILE_ARGUMENTS: Pick<Verb, 'options' | 'flags'> = { options: [FILE], flags: [RECURSIVE, SKIP_EMPTY] };

/** The manifests of the files that `-f` names. @throws Failure INVALID_REQUEST */
export async function manifestsOf(input: Input, context: Context): Promise<Manifest[]> {
  const path = input.get(FILE);
  if (path === undefined)
    throw new Failure('INVALID_REQUEST', '--filename: is missing; name a file, or - for the standard input');
  const [{ readTexts }, { parseManifests }] = await Promise.all([
    import('../clients/terminal.js'),
    import('./manifest.js'),
  ]);
  const texts = await readTexts(path, input.has(RECURSIVE), context.stdin);
  const manifests = texts.flatMap((each) => parseManifests(each.text, each.file));
  if (manifests.length === 0 && !input.has(SKIP_EMPTY))
    throw new Failure('INVALID_REQUEST', `${path}: has no object; add one, or --skip-empty`);
  return manifests;
}

/** @throws Failure INVALID_REQUEST for another kind */
export function requireKind({ kind, apiVersion }: Pick<Manifest, 'kind' | 'apiVersion'>): KindEntry {
  const entry = KINDS.find((each) => each.kind === kind && each.apiVersion === apiVersion);
  if (entry) return entry;
  const known = KINDS.map((each) => `${each.kind} of ${each.apiVersion}`).join(', ');
  const meant = suggestion(
    kind,
    KINDS.map((each) => each.kind),
  );
  throw new Failure('INVALID_REQUEST', `${kind} of ${apiVersion}: is not known${meant}; Podwire stores ${known}`);
}
