import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';

import { dryRunOf } from '../clients/dry-run.js';
import type { Context } from '../clients/services.js';
import { GIVEN_KIND, text, type Form } from '../command-line/forms.js';
import {
  DELETION_FLAGS,
  FORCE,
  FORCED_TIMEOUT_MS,
  RESOURCE_VERSION,
  previewReport,
  YES,
} from '../command-line/options.js';
import { argument, flag, type Flag, type Input, type Option, type Verb } from '../command-line/verb.js';
import {
  DONE,
  exitCodeOf,
  FAILED,
  NOT_FOUND,
  PROBLEM_FOUND,
  sentence,
  type Report,
  type Section,
} from '../output/report.js';
import { failureLine } from '../output/words.js';
import { FILE, FILE_ARGUMENTS, manifestsOf, RECURSIVE, requireKind, SKIP_EMPTY } from './manifest-files.js';
import {
  exported,
  NO_FILTER,
  plain,
  type Manifest,
  type ManifestObject,
  type Resource,
  type ResourceObject,
  type WantedObject,
} from './resource.js';
import { KIND, KINDS_TEXT, loadResource } from './table.js';

const DRY_RUN = flag('--dry-run', 'store nothing: podwire-ipam decides about each object as if it were the only one');
const SKIP_EXISTS = flag('--skip-exists', 'skip objects that exist');
const SKIP_NOT_EXISTS: Flag = { name: '--skip-not-exists', short: '-s', about: 'skip objects that do not exist' };

interface Field {
  readonly name: string;
  /** YAML. */
  readonly text: string;
}

const FIELD: Form<Field> = {
  placeholder: 'FIELD=VALUE',
  read: (input) => {
    const at = input.indexOf('=');
    if (at < 1) return { ok: false, fault: 'is not FIELD=VALUE' };
    return { ok: true, value: { name: input.slice(0, at), text: input.slice(at + 1) } };
  },
};

const KIND_ARGUMENT = argument(KIND, 'a kind, unless -f has manifests', 'optional');
const NAME_ARGUMENT = argument(text('NAME'), 'name of the object', 'optional');
const FIELDS = argument(
  FIELD,
  'fields of its spec, with values in YAML: natOutgoing=true, reservedCIDRs=[10.65.0.0/28]',
  'any',
);

/** A manifest with its kind, validated. */
interface Work {
  readonly resource: Resource;
  readonly manifest: Manifest;
  readonly wanted: WantedObject;
  readonly isDryRun: boolean;
}

/** All objects are validated before the first is stored. @throws Failure INVALID_REQUEST */
async function workOf(input: Input, context: Context): Promise<Work[]> {
  const manifests = await manifestsOf(input, context);
  return Promise.all(
    manifests.map(async (manifest) => workWith(await loadResource(requireKind(manifest)), manifest, input)),
  );
}

async function workWith(resource: Resource, manifest: Manifest, input: Input): Promise<Work> {
  return { resource, manifest, wanted: await resource.parse(manifest), isDryRun: input.has(DRY_RUN) };
}

const storing = (input: Input, context: Context): Context => (input.has(DRY_RUN) ? dryRunOf(context) : context);

/** One object's result, or the failure that ended the command. */
interface Step {
  readonly sections: readonly Section[];
  readonly names: readonly string[];
  readonly data: () => ReturnType<Report['data']>;
  readonly errors?: readonly string[] | undefined;
  readonly hints?: readonly string[] | undefined;
  readonly exitCode?: number | undefined;
}

/** Executes a change of each object in turn. The first failure ends the command; earlier changes are reported. */
async function eachInTurn<Item>(items: readonly Item[], change: (item: Item) => Promise<Step>): Promise<Report> {
  const steps: Step[] = [];
  let failedWith: number | undefined;
  for (const item of items) {
    try {
      steps.push(await change(item));
    } catch (error) {
      if (!(error instanceof Failure) || steps.length === 0) throw error;
      const message = `failed: ${failureLine(error)}; not executed: ${formatCount(items.length - steps.length - 1, 'object')}`;
      const data = () => ({ failure: failureLine(error) });
      steps.push({ sections: [], errors: [message], names: [], data });
      failedWith = exitCodeOf(error.code);
      break;
    }
  }
  const [only, ...rest] = steps;
  return {
    sections: steps.flatMap(({ sections }) => sections),
    names: steps.flatMap(({ names }) => names),
    errors: steps.flatMap(({ errors = [] }) => errors),
    hints: steps.flatMap(({ hints = [] }) => hints),
    data: () => (only && rest.length === 0 ? only.data() : steps.map(({ data }) => data())),
    exitCode: failedWith ?? Math.max(DONE, ...steps.map(({ exitCode = DONE }) => exitCode)),
  };
}

function stored({ resource, wanted, isDryRun }: Work, outcome: string, object: ResourceObject | undefined): Step {
  const name = `${resource.names[0]}/${wanted.name}`;
  const data = () => (object ? plain(object.manifest) : { kind: resource.kind, name: wanted.name });
  return { sections: [sentence(`${name} ${outcome}${isDryRun ? ' (dry run)' : ''}`)], names: [name], data };
}

const isMissing = (error: unknown): boolean => error instanceof Failure && exitCodeOf(error.code) === NOT_FOUND;

/** Codes of an object that exists. */
const EXISTS = ['POOL_EXISTS', 'RESERVATION_EXISTS', 'REQUEST_POLICY_EXISTS'];

/** @returns undefined where it does not exist */
async function findOptional(resource: Resource, name: string, context: Context): Promise<ResourceObject | undefined> {
  try {
    return await resource.find(name, NO_FILTER, context);
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw error;
  }
}

export const create: Verb = {
  name: 'create',
  about: 'create objects from manifests, or one from its fields',
  details: `Fails where an object exists. Kinds, with their other names:\n${KINDS_TEXT}`,
  positionals: [KIND_ARGUMENT, NAME_ARGUMENT, FIELDS],
  options: [FILE],
  flags: [RECURSIVE, SKIP_EMPTY, SKIP_EXISTS, DRY_RUN],
  hasNames: true,
  examples: [
    'create -f pools.yaml',
    'create ippool pods cidr=10.65.0.0/16 natOutgoing=true',
    'create ipreservation routers reservedCIDRs=[10.65.0.0/28,10.65.0.99]',
    'create policy closed pools={}',
  ],
  run: async (input, context) => {
    const [kind] = input.rest(KIND_ARGUMENT);
    const work = kind ? [await fieldWork(await loadResource(kind), input)] : await workOf(input, context);
    return eachInTurn(work, async (each) => {
      try {
        return stored(each, 'created', await each.wanted.create(storing(input, context)));
      } catch (error) {
        const isSkipped = input.has(SKIP_EXISTS) && error instanceof Failure && EXISTS.includes(error.code);
        if (!isSkipped) throw error;
        return stored(each, 'skipped: it exists', undefined);
      }
    });
  },
};

async function fieldWork(resource: Resource, input: Input): Promise<Work> {
  const [name] = input.rest(NAME_ARGUMENT);
  if (name === undefined || input.get(FILE) !== undefined)
    throw new Failure('INVALID_REQUEST', 'KIND: requires NAME, and no --filename; see "podwirectl create --help"');
  const { apiVersion, kind } = resource;
  return workWith(resource, { apiVersion, kind, metadata: { name }, spec: await specOf(input) }, input);
}

async function specOf(input: Input): Promise<ManifestObject> {
  const { fieldValue } = await import('./manifest.js');
  return Object.fromEntries(input.rest(FIELDS).map((field) => [field.name, fieldValue(field.text)]));
}

/** `unchanged` where the service stored nothing. */
function outcomeOf(before: ResourceObject, after: ResourceObject | undefined): string {
  const isSame = before.resourceVersion !== '' && before.resourceVersion === after?.resourceVersion;
  return isSame ? 'unchanged' : 'configured';
}

export const apply: Verb = {
  name: 'apply',
  about: 'create the objects of manifests, or replace existing objects',
  details:
    'A field that a manifest omits gets its default. An object with a resourceVersion is only replaced while it has this version.',
  ...FILE_ARGUMENTS,
  flags: [...(FILE_ARGUMENTS.flags ?? []), DRY_RUN],
  hasNames: true,
  examples: ['apply -f pools.yaml'],
  run: async (input, context) =>
    eachInTurn(await workOf(input, context), async (each) => {
      const before = await findOptional(each.resource, each.wanted.name, context);
      if (!before) return stored(each, 'created', await each.wanted.create(storing(input, context)));
      const after = await each.wanted.update(storing(input, context));
      return stored(each, outcomeOf(before, after), after);
    }),
};

export const diff: Verb = {
  name: 'diff',
  about: 'show what apply would change, as a unified diff of manifests in YAML',
  details:
    'podwire-ipam decides about each object as with apply --dry-run. Version, UID and time are left out.\n' +
    `Exit code: ${DONE} without differences, ${PROBLEM_FOUND} with differences, any other for errors.`,
  ...FILE_ARGUMENTS,
  examples: ['diff -f pools.yaml'],
  run: async (input, context) =>
    eachInTurn(await workOf(input, context), async ({ resource, wanted, manifest }) => {
      const before = await findOptional(resource, wanted.name, context);
      const dryRun = dryRunOf(context);
      const after = before ? await wanted.update(dryRun) : await wanted.create(dryRun);
      const name = `${resource.names[0]}/${wanted.name}`;
      const changes = await unifiedDiff(name, before?.manifest, after?.manifest ?? manifest);
      const data = () => ({ kind: resource.kind, name: wanted.name, diff: changes });
      if (changes === '') return { sections: [], names: [], data };
      return { sections: [{ kind: 'text', text: changes }], names: [], data, exitCode: PROBLEM_FOUND };
    }),
};

/** @returns an empty text without differences */
async function unifiedDiff(name: string, before: Manifest | undefined, after: Manifest): Promise<string> {
  const [{ createTwoFilesPatch, FILE_HEADERS_ONLY }, { stringify }] = await Promise.all([
    import('diff'),
    import('yaml'),
  ]);
  const textOf = (manifest: Manifest): string =>
    stringify(plain(exported(manifest)), { sortMapEntries: true, lineWidth: 0 });
  const [from, to] = [before ? textOf(before) : '', textOf(after)];
  if (from === to) return '';
  const names = [before ? name : '/dev/null', name] as const;
  return createTwoFilesPatch(...names, from, to, undefined, undefined, { headerOptions: FILE_HEADERS_ONLY });
}

export const replace: Verb = {
  name: 'replace',
  about: 'replace existing objects with the objects of manifests',
  details: 'Fails where an object does not exist. A field that a manifest omits gets its default.',
  ...FILE_ARGUMENTS,
  flags: [...(FILE_ARGUMENTS.flags ?? []), DRY_RUN],
  hasNames: true,
  examples: ['replace -f pools.yaml'],
  run: async (input, context) =>
    eachInTurn(await workOf(input, context), async (each) => {
      const before = await each.resource.find(each.wanted.name, NO_FILTER, context);
      const after = await each.wanted.update(storing(input, context));
      return stored(each, outcomeOf(before, after).replace('configured', 'replaced'), after);
    }),
};

export const validate: Verb = {
  name: 'validate',
  about: 'check manifests without storing them',
  ...FILE_ARGUMENTS,
  hasNames: true,
  examples: ['validate -f pools.yaml'],
  run: async (input, context) =>
    eachInTurn(await workOf(input, context), (each) => Promise.resolve(stored(each, 'valid', undefined))),
};

const REQUIRED_KIND = argument(KIND, 'a kind, as "get" lists them', 'required');
const REQUIRED_NAME = argument(text('NAME', GIVEN_KIND), 'name of the object', 'required');

const PATCH: Option<string> = {
  ...{ name: '--patch', short: '-p', form: text('PATCH') },
  about: 'changes of the manifest as a merge patch (RFC 7396), in JSON or YAML: null removes a field',
};
const PATCH_TYPE: Option<string> = {
  ...{ name: '--type', short: '-t' },
  form: {
    placeholder: 'strategic|merge',
    read: (input) =>
      ['strategic', 'merge'].includes(input)
        ? { ok: true, value: input }
        : { ok: false, fault: 'is not strategic or merge, which are the same here' },
  },
  about: 'kind of the patch; lists are replaced with both (strategic)',
};

export const patch: Verb = {
  name: 'patch',
  about: 'change fields of an object; the remaining fields stay unchanged',
  positionals: [REQUIRED_KIND, REQUIRED_NAME, FIELDS],
  options: [PATCH, PATCH_TYPE],
  flags: [DRY_RUN],
  hasNames: true,
  examples: [
    'patch ippool default-ipv4-ippool disabled=true',
    `patch ippool default-ipv4-ippool --patch '{"spec":{"natOutgoing":true}}'`,
  ],
  run: async (input, context) => {
    const spec = await specOf(input);
    const hasFields = Object.keys(spec).length > 0;
    const changes = [...(hasFields ? [{ spec }] : []), ...(await patchesOf(input))];
    if (changes.length === 0) throw new Failure('INVALID_REQUEST', 'no field to change; see "podwirectl patch --help"');
    return changeObject(input, changes, context);
  },
};

/** @throws Failure INVALID_REQUEST for a patch that is not an object */
async function patchesOf(input: Input): Promise<ManifestObject[string][]> {
  const { fieldValue } = await import('./manifest.js');
  return input.all(PATCH).map((text) => {
    const value = fieldValue(text);
    if (typeof value === 'object' && !Array.isArray(value)) return value;
    throw new Failure('INVALID_REQUEST', `--patch: "${text}" is not an object in JSON or YAML`);
  });
}

async function changeObject(input: Input, changes: readonly unknown[], context: Context): Promise<Report> {
  const { manifestOf, mergePatch } = await import('./manifest.js');
  return storeChange(input, context, (before, subject) =>
    manifestOf(
      changes.reduce((object, change) => mergePatch(object, change), before),
      subject,
    ),
  );
}

/** Stores what `change` makes of an object. */
async function storeChange(
  input: Input,
  context: Context,
  change: (before: Record<string, unknown>, subject: string) => Manifest | Promise<Manifest>,
): Promise<Report> {
  const [resource, name] = [await loadResource(input.at(REQUIRED_KIND)), input.at(REQUIRED_NAME)];
  const before = await resource.find(name, NO_FILTER, context);
  const manifest = await change(plain(before.manifest), `${resource.names[0]} ${name}`);
  if (manifest.metadata.name !== name || manifest.kind !== resource.kind)
    throw new Failure('INVALID_REQUEST', `${resource.names[0]} ${name}: name and kind cannot be changed`);
  const work = await workWith(resource, manifest, input);
  const after = await work.wanted.update(storing(input, context));
  const outcome = outcomeOf(before, after).replace('configured', 'patched');
  return eachInTurn([work], () => Promise.resolve(stored(work, outcome, after)));
}

export const edit: Verb = {
  name: 'edit',
  about: 'change an object in the editor of $EDITOR (vi), and store it',
  details:
    'The object is stored only if nothing has changed it meanwhile. A refused change stays in the file that is named.',
  positionals: [REQUIRED_KIND, REQUIRED_NAME],
  flags: [DRY_RUN],
  hasNames: true,
  examples: ['edit ippool default-ipv4-ippool'],
  run: async (input, context) => {
    const { editText, removeEdited } = await import('../clients/terminal.js');
    const [{ parseManifests }, { stringify }] = await Promise.all([import('./manifest.js'), import('yaml')]);
    let file = '';
    try {
      const report = await storeChange(input, context, async (before, subject) => {
        const edited = await editText(stringify(before), context.process.edit);
        file = edited.file;
        context.restartTimeout();
        const [manifest, ...more] = parseManifests(edited.text, subject);
        if (manifest && more.length === 0) return manifest;
        throw new Failure('INVALID_REQUEST', `${subject}: the edited text must be one object`);
      });
      await removeEdited(file);
      return report;
    } catch (error) {
      if (!(error instanceof Failure) || file === '') throw error;
      throw new Failure(error.code, `${error.message}; the edited text is in ${file}`, { cause: error });
    }
  },
};

const OVERWRITE = flag('--overwrite', 'replace labels that have another value');
const REMOVE = flag('--remove', 'remove the label; name its KEY alone');
const LABELS = argument(text('KEY=VALUE'), 'labels, or keys with --remove', 'repeated');

export const label: Verb = {
  name: 'label',
  about: 'change labels of a node, which node selectors of pools look at',
  positionals: [REQUIRED_KIND, REQUIRED_NAME, LABELS],
  flags: [OVERWRITE, REMOVE],
  hasNames: true,
  examples: ['label nodes node-1 zone=a', 'label nodes node-1 zone --remove'],
  run: async (input, context) => {
    const resource = await loadResource(input.at(REQUIRED_KIND));
    if (!resource.hasLabels)
      throw new Failure('INVALID_REQUEST', `${resource.names[1]}: have no labels; only nodes have`);
    const { manifest } = await resource.find(input.at(REQUIRED_NAME), NO_FILTER, context);
    const labels = Object.fromEntries(input.rest(LABELS).map((each) => labelOf(each, input, manifest)));
    return changeObject(input, [{ metadata: { labels } }], context);
  },
};

function labelOf(each: string, input: Input, { metadata }: Manifest): [string, string | null] {
  const at = each.indexOf('=');
  if (input.has(REMOVE)) return [each, null];
  if (at < 1) throw new Failure('INVALID_REQUEST', `${each}: is not KEY=VALUE; to remove the label, add --remove`);
  const [key, value] = [each.slice(0, at), each.slice(at + 1)];
  const before = metadata.labels?.[key];
  if (before !== undefined && before !== value && !input.has(OVERWRITE))
    throw new Failure('INVALID_REQUEST', `${key}: is "${before}"; to replace it, add --overwrite`);
  return [key, value];
}

const NAMES = argument(text('NAME', GIVEN_KIND), 'names of objects', 'any');

interface Target {
  readonly resource: Resource;
  readonly name: string;
  readonly resourceVersion: string;
}

export const remove: Verb = {
  name: 'delete',
  about: 'delete objects by name, or the objects of manifests',
  details:
    'ippools: refused while addresses are in use; the error lists their nodes. --drain waits for their release. To stop allocation\n' +
    'and keep the pool: patch ippool NAME disabled=true.\n' +
    'nodes, handles, ippools with --release-addresses: refused while pods of nodes that run have the addresses.',
  positionals: [KIND_ARGUMENT, NAMES],
  options: [FILE, RESOURCE_VERSION],
  flags: [RECURSIVE, SKIP_EMPTY, SKIP_NOT_EXISTS, ...DELETION_FLAGS, DRY_RUN, YES],
  hasNames: true,
  examples: ['delete ippool old --drain', 'delete ipreservation routers --yes', 'delete -f pools.yaml'],
  run: async (input, context) => {
    const targets = await targetsOf(input, context);
    if (input.has(YES) && !input.has(DRY_RUN)) return deleteAll(targets, input, context);
    const found: { readonly target: Target; readonly object: ResourceObject; readonly kept: readonly Section[] }[] = [];
    for (const target of targets) {
      const { resource, name } = target;
      const skip = input.has(SKIP_NOT_EXISTS);
      const object = skip ? await findOptional(resource, name, context) : await resource.find(name, NO_FILTER, context);
      if (!object) continue;
      const outcome = await resource.deletion?.run(name, target.resourceVersion, input, dryRunOf(context));
      found.push({ target, object, kept: outcome?.exitCode === FAILED ? outcome.sections : [] });
    }
    const sections = await Promise.all(
      found.map(async ({ target, object, kept }) => [
        sentence(target.resource.deletion?.warning(input) ?? ''),
        ...(await object.details()),
        ...kept,
      ]),
    );
    const [only, ...rest] = found;
    const data = () => (only && rest.length === 0 ? only.object.data() : found.map(({ object }) => object.data()));
    const preview = { sections: sections.flat(), names: found.map(({ target }) => targetName(target)), data };
    if (input.has(DRY_RUN)) return { ...preview, exitCode: found.some(({ kept }) => kept.length > 0) ? FAILED : DONE };
    return previewReport(preview, input.toCommandLine(), () => deleteAll(targets, input, context));
  },
};

const targetName = ({ resource, name }: Target): string => `${resource.names[0]}/${name}`;

async function targetsOf(input: Input, context: Context): Promise<Target[]> {
  const [kind] = input.rest(KIND_ARGUMENT);
  const names = input.rest(NAMES);
  const version = input.get(RESOURCE_VERSION) ?? '';
  if (kind !== undefined && names.length === 0)
    throw new Failure('INVALID_REQUEST', 'NAME: is missing; name the objects to delete');
  if (version !== '' && names.length !== 1)
    throw new Failure('INVALID_REQUEST', `${RESOURCE_VERSION.name}: requires one name; delete the objects one by one`);
  const resource = kind && (await loadResource(kind));
  const targets = resource
    ? names.map((name) => ({ resource, name, resourceVersion: version }))
    : await Promise.all(
        (await manifestsOf(input, context)).map(async (manifest) => ({
          resource: await loadResource(requireKind(manifest)),
          name: manifest.metadata.name,
          resourceVersion: '',
        })),
      );
  for (const { resource } of targets)
    if (!resource.deletion)
      throw new Failure('INVALID_REQUEST', `${resource.names[1]}: cannot be deleted; ${resource.instead ?? ''}`);
  for (const flag of DELETION_FLAGS)
    if (input.has(flag) && !targets.every(({ resource }) => resource.deletion?.flags?.includes(flag)))
      throw new Failure('INVALID_REQUEST', `${flag.name}: is not an option of this kind; remove it`);
  return targets;
}

function deleteAll(targets: readonly Target[], input: Input, context: Context): Promise<Report> {
  return eachInTurn(targets, async (target) => {
    const { resource, name, resourceVersion } = target;
    if (input.has(FORCE)) context.restartTimeout(FORCED_TIMEOUT_MS);
    try {
      const report = await resource.deletion?.run(name, resourceVersion, input, context);
      return { ...(report ?? { sections: [], data: () => null }), names: [targetName(target)] };
    } catch (error) {
      if (!input.has(SKIP_NOT_EXISTS) || !isMissing(error)) throw error;
      const data = () => ({ kind: resource.kind, name, skipped: true });
      return { sections: [sentence(`${targetName(target)} skipped: it does not exist`)], names: [], data };
    }
  });
}
