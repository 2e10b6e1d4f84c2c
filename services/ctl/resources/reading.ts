import { Failure } from '@podwire/shared/failure/failure';
import { suggestion } from '@podwire/shared/words/closest';

import type { Context } from '../clients/services.js';
import { GIVEN_KIND, NAMESPACES, POD_NAME, text, type Form } from '../command-line/forms.js';
import { argument, flag, option, type Flag, type Input, type Option, type Verb } from '../command-line/verb.js';
import { sentence, type Report, type Table } from '../output/report.js';
import { FILE, manifestsOf, RECURSIVE, requireKind } from './manifest-files.js';
import { exported, manifestData, plain, type Filter, type Resource, type ResourceObject } from './resource.js';
import { KIND, KINDS_TEXT, loadResource, type KindEntry } from './table.js';

export const NODE = option('--node', text('NAME', 'nodes'), 'only objects of this node (all)');
export const POOL = option('--pool', text('NAME', 'ippools'), 'only objects of this pool (all)');
export const NAMESPACE: Option<string> = {
  ...{ name: '--namespace', short: '-n', form: text('NAME', NAMESPACES) },
  about: 'namespace of workloadendpoints and pods (default), and of addresses (all)',
};
const POD = option('--pod', POD_NAME, 'workloadendpoints: only endpoints of this pod (all)');
const ALL_NAMESPACES: Flag = { name: '--all-namespaces', short: '-A', about: 'workloadendpoints: of every namespace' };
/** Alias that calicoctl has too. */
const ALL_NAMESPACES_ALIAS: Flag = { name: '--all-the-namespaces', short: '-a', about: 'as -A' };
const EXPORT = flag('--export', 'manifests without fields of this cluster: version, UID and time');
const WATCH: Flag = { name: '--watch', short: '-w', about: 'keep running, and print what changes' };

/** Objects of one kind: all, or the named ones. */
interface Wanted {
  readonly kind: KindEntry;
  readonly names: readonly string[];
}

/** `ippools`, `ippools,nodes`, or one object: `node/node-1`. */
const KINDS_FORM: Form<readonly Wanted[]> = {
  ...KIND,
  read: (input) => {
    const slash = input.indexOf('/');
    const names = slash < 0 ? [] : [input.slice(slash + 1)];
    const kinds = (slash < 0 ? input : input.slice(0, slash)).split(',').map((word) => KIND.read(word));
    const found = kinds.flatMap((kind) => (kind.ok ? [{ kind: kind.value, names }] : []));
    const refused = kinds.find((kind) => !kind.ok);
    return refused ?? { ok: true, value: found };
  },
};

const KIND_ARGUMENT = argument(
  KINDS_FORM,
  'kinds, listed above: KIND, KIND,KIND or KIND/NAME; none with -f',
  'optional',
);
const NAMES = argument(text('NAME', GIVEN_KIND), 'names of objects (all)', 'any');

/** A condition on a label, as kubectl writes it: `zone=a`, `zone!=a`, `zone`, `!zone`. */
type Condition = (labels: Readonly<Record<string, string>>) => boolean;

const SELECTOR: Option<readonly Condition[]> = {
  ...{ name: '--selector', short: '-l' },
  form: {
    placeholder: 'SELECTOR',
    read: (input) => {
      const conditions = input.split(',').map((part) => conditionOf(part.trim()));
      const known = conditions.filter((each) => each !== undefined);
      return known.length === conditions.length
        ? { ok: true, value: known }
        : { ok: false, fault: 'is not a selector, such as zone=a,rack!=1,gpu,!old' };
    },
  },
  about: 'only objects with these labels: zone=a,rack!=1,gpu,!old (all)',
};

function conditionOf(part: string): Condition | undefined {
  const [, not, key = '', operator, value = ''] = /^(!?)([\w./-]+)(?:(!=|==?)([\w.-]*))?$/.exec(part) ?? [];
  if (key === '' || (not === '!' && operator !== undefined)) return undefined;
  if (operator === undefined) return (labels) => Object.hasOwn(labels, key) !== (not === '!');
  return (labels) => (labels[key] === value) === (operator !== '!=');
}

const SORT_BY = option(
  '--sort-by',
  text('COLUMN|PATH'),
  'order by a column of -o wide, or by a path into the manifest: .spec.cidr',
);

const SELECTION: Pick<Verb, 'positionals' | 'options'> = {
  positionals: [KIND_ARGUMENT, NAMES],
  options: [NAMESPACE, NODE, POOL, POD, SELECTOR, SORT_BY, FILE],
};

interface Selection {
  readonly resource: Resource;
  readonly objects: readonly ResourceObject[];
  readonly hints: readonly string[];
}

/** The objects that the command line names, by kind. @throws Failure where an object does not exist */
async function select(input: Input, context: Context): Promise<Selection[]> {
  const selections: Selection[] = [];
  for (const { kind, names } of await wantedOf(input, context)) {
    const resource = await loadResource(kind);
    const filter = filterOf(resource, input);
    const conditions = input.get(SELECTOR) ?? [];
    if (conditions.length > 0 && !resource.hasLabels)
      throw new Failure('INVALID_REQUEST', `${SELECTOR.name}: ${resource.names[1]} have no labels; remove it`);
    const { objects: all, hints } =
      names.length === 0 ? await resource.list(filter, context) : await named(resource, names, filter, context);
    const objects = all.filter(({ manifest }) => conditions.every((holds) => holds(manifest.metadata.labels ?? {})));
    const by = input.get(SORT_BY);
    selections.push({ resource, objects: by === undefined ? objects : sorted(resource, objects, by), hints });
  }
  return selections;
}

async function named(resource: Resource, names: readonly string[], filter: Filter, context: Context) {
  const objects: ResourceObject[] = [];
  for (const name of names) objects.push(...(await resource.findAll(name, filter, context)));
  return { objects, hints: [] };
}

/** @throws Failure INVALID_REQUEST */
async function wantedOf(input: Input, context: Context): Promise<readonly Wanted[]> {
  const [first] = input.rest(KIND_ARGUMENT);
  const names = input.rest(NAMES);
  if (input.get(FILE) !== undefined) {
    if (first) throw new Failure('INVALID_REQUEST', '--filename: the files name the objects; remove KIND');
    return (await manifestsOf(input, context)).map(({ kind, apiVersion, metadata: { namespace, name } }) => ({
      kind: requireKind({ kind, apiVersion }),
      names: [namespace === undefined ? name : `${namespace}/${name}`],
    }));
  }
  const [only, ...more] = first ?? [];
  if (!first || !only) throw new Failure('INVALID_REQUEST', 'KIND: is missing; name a kind, or a file with -f');
  if (names.length === 0) return first;
  if (more.length > 0)
    throw new Failure('INVALID_REQUEST', 'NAME: requires one kind; name the objects as KIND/NAME KIND/NAME');
  if (only.names.length === 0) return [{ kind: only.kind, names }];
  return [only, ...names.flatMap(objectNamed)];
}

/** @throws Failure INVALID_REQUEST for another text than KIND/NAME */
function objectNamed(text: string): readonly Wanted[] {
  const read = KINDS_FORM.read(text);
  if (read.ok && text.includes('/')) return read.value;
  throw new Failure(
    'INVALID_REQUEST',
    `"${text}": ${read.ok ? 'is not KIND/NAME, as the first object is' : read.fault}`,
  );
}

function sorted(resource: Resource, objects: readonly ResourceObject[], by: string): ResourceObject[] {
  const heads = resource.columns.map(({ head }) => head.toLowerCase());
  const column = heads.indexOf(by.toLowerCase());
  const path = /^\{?\.(.+?)\}?$/.exec(by)?.[1]?.split('.');
  if (column < 0 && !path)
    throw new Failure(
      'INVALID_REQUEST',
      `${SORT_BY.name}: "${by}" is no column of ${resource.names[1]}${suggestion(by, heads)}; use one, or a path such as .spec.cidr`,
    );
  const valueOf = ({ cells, manifest }: ResourceObject): string =>
    path ? textAt(manifest, path) : (cells[column] ?? '');
  const { compare } = new Intl.Collator('en', { numeric: true });
  return [...objects].sort((one, other) => compare(valueOf(one), valueOf(other)));
}

function textAt(manifest: unknown, path: readonly string[]): string {
  let value = manifest;
  for (const key of path)
    value = typeof value === 'object' && value !== null && Object.hasOwn(value, key) ? Reflect.get(value, key) : '';
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function filterOf({ names, filters = [], isNamespaced = false }: Resource, input: Input): Filter {
  const given = [
    ['node', NODE],
    ['pool', POOL],
    ['pod', POD],
    ...(isNamespaced ? [] : [['namespace', NAMESPACE] as const]),
  ] as const;
  for (const [filter, option] of given)
    if (input.get<unknown>(option) !== undefined && !filters.includes(filter))
      throw new Failure('INVALID_REQUEST', `${option.name}: does not restrict ${names[1]}; remove it`);
  const pod = input.get(POD);
  const isEverywhere = input.has(ALL_NAMESPACES) || input.has(ALL_NAMESPACES_ALIAS);
  const namespace = isEverywhere ? '' : (input.get(NAMESPACE) ?? (isNamespaced ? 'default' : ''));
  return {
    node: input.get(NODE) ?? '',
    pool: input.get(POOL) ?? '',
    pod: pod?.name ?? '',
    namespace: pod?.namespace ?? namespace,
  };
}

function objectTable(resource: Resource, objects: readonly ResourceObject[], context: Context): Table {
  const places = [...resource.columns.entries()].filter(([, { isWide }]) => !isWide || context.output === 'wide');
  return {
    kind: 'table',
    columns: places.map(([, { head, isNumber }]) => (isNumber ? { right: head } : head)),
    rows: objects.map(({ cells }) => places.map(([place]) => cells[place] ?? '')),
    none: resource.none,
  };
}

function nameText({ names }: Resource, object: ResourceObject): string {
  return `${names[0]}/${keyOf(object)}`;
}

function listReport(selections: readonly Selection[], input: Input, context: Context): Report {
  const manifestsOf = ({ objects }: Selection) =>
    objects.map(({ manifest }) => (input.has(EXPORT) ? exported(manifest) : manifest));
  const [selection, ...more] = selections;
  const [first] = selection ? manifestsOf(selection) : [];
  const isOne = more.length === 0 && isNamed(input);
  return {
    sections: selections.map(({ resource, objects }) => objectTable(resource, objects, context)),
    names: selections.flatMap(({ resource, objects }) => objects.map((object) => nameText(resource, object))),
    hints: selections.flatMap(({ hints }) => hints),
    data: () => {
      if (isOne && first && selection?.objects.length === 1) return plain(first);
      if (selection && more.length === 0) return manifestData(manifestsOf(selection), selection.resource);
      return manifestData(selections.flatMap(manifestsOf), { kind: '', apiVersion: 'v1' });
    },
  };
}

/** Whether the command line names one object. */
function isNamed(input: Input): boolean {
  const [first = []] = input.rest(KIND_ARGUMENT);
  return first.flatMap(({ names }) => names).length + input.rest(NAMES).length === 1 || input.get(FILE) !== undefined;
}

export const get: Verb = {
  name: 'get',
  about: 'list objects of a kind, or the named objects',
  details: `Kinds, with their other names:\n${KINDS_TEXT}\n\n-o yaml and -o json print manifests, which apply and replace read. describe -o json prints everything.`,
  ...SELECTION,
  flags: [RECURSIVE, ALL_NAMESPACES, ALL_NAMESPACES_ALIAS, WATCH, EXPORT],
  hasNames: true,
  examples: [
    'get ippools',
    'get ippool default-ipv4-ippool -o yaml',
    'get workloadendpoints -A --node node-1',
    'get addresses --pool default-ipv4-ippool',
    'get blocks --node node-1 --watch',
    'get node/node-1 ippool/default-ipv4-ippool',
    'get nodes -l zone=a --sort-by AVAILABLE',
  ],
  run: async (input, context) => {
    if (input.has(WATCH)) return watch(input, context);
    return listReport(await select(input, context), input, context);
  },
};

/** Interval between two reads of a watched list, in milliseconds. */
const WATCH_INTERVAL_MS = 2000;

/** Reads the list again and again, and prints the objects that have changed. */
async function watch(input: Input, context: Context): Promise<Report> {
  if (context.output === 'yaml')
    throw new Failure('INVALID_REQUEST', '--watch: is not available with -o yaml; use -o json');
  const stopped = context.process.stopSignal();
  let before: ReadonlyMap<string, string> | undefined;
  do {
    context.restartTimeout();
    const [selection, ...more] = await select(input, context);
    if (!selection || more.length > 0)
      throw new Failure('INVALID_REQUEST', `${WATCH.name}: watches one kind; run a command for each`);
    const { resource, objects, hints } = selection;
    const now = new Map(objects.map((object) => [keyOf(object), stateOf(resource, object)]));
    const changed = objects.filter((object) => before?.get(keyOf(object)) !== stateOf(resource, object));
    const removed = [...(before?.keys() ?? [])].filter((key) => !now.has(key));
    const isFirst = before === undefined;
    if (isFirst || changed.length > 0)
      context.print(listReport([{ resource, objects: changed, hints: isFirst ? hints : [] }], input, context), {
        hasHeadings: isFirst,
      });
    for (const name of removed) context.print(removalReport(resource, name));
    before = now;
  } while ((await context.clock.sleep(WATCH_INTERVAL_MS, stopped)) === 'elapsed');
  return { sections: [], data: () => null, isPrinted: true };
}

const keyOf = ({ namespace, name }: ResourceObject): string => (namespace === '' ? name : `${namespace}/${name}`);

/** The object without its age, which changes by itself. */
function stateOf({ columns }: Resource, { cells, manifest }: ResourceObject): string {
  const timeless = cells.filter((_, place) => !['AGE', 'CLAIMED'].includes(columns[place]?.head ?? ''));
  return JSON.stringify([timeless, manifest]);
}

function removalReport({ names, kind }: Resource, name: string): Report {
  const text = `${names[0]}/${name} deleted`;
  return { sections: [sentence(text)], names: [text], data: () => ({ kind, name, deleted: true }) };
}

export const describe: Verb = {
  name: 'describe',
  about: 'details of objects',
  details: `Kinds, with their other names:\n${KINDS_TEXT}\n\n-o yaml and -o json are the contract's messages in protobuf's JSON form, with every field.`,
  ...SELECTION,
  flags: [RECURSIVE, ALL_NAMESPACES, ALL_NAMESPACES_ALIAS],
  hasNames: true,
  examples: ['describe ippool default-ipv4-ippool', 'describe nodes'],
  run: async (input, context) => {
    const selections = await select(input, context);
    const all = selections.flatMap(({ objects }) => objects);
    const details = await Promise.all(all.map((object) => object.details()));
    const [first, ...more] = all;
    const isOne = more.length === 0 && isNamed(input);
    const empty = selections
      .filter(({ objects }) => objects.length === 0)
      .map(({ resource }) => sentence(resource.none));
    return {
      sections: [...details.flat(), ...empty],
      names: selections.flatMap(({ resource, objects }) => objects.map((object) => nameText(resource, object))),
      data: () => (isOne && first ? first.data() : all.map((object) => object.data())),
    };
  },
};
