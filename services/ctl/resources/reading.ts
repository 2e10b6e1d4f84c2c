import { Failure } from '@podwire/shared/failure/failure';

import type { Context } from '../clients/services.js';
import { GIVEN_KIND, NAMESPACES, POD_NAME, text } from '../command-line/forms.js';
import { argument, flag, option, type Flag, type Input, type Option, type Verb } from '../command-line/verb.js';
import { sentence, type Report, type Table } from '../output/report.js';
import { manifestData, plain, type Filter, type Resource, type ResourceObject } from './resource.js';
import { KIND, KINDS_TEXT, loadResource } from './table.js';

export const NODE = option('--node', text('NAME', 'nodes'), 'only objects of this node (all)');
export const POOL = option('--pool', text('NAME', 'ippools'), 'only objects of this pool (all)');
export const NAMESPACE: Option<string> = {
  ...{ name: '--namespace', short: '-n', form: text('NAME', NAMESPACES) },
  about: 'namespace of workloadendpoints and pods (default)',
};
const POD = option('--pod', POD_NAME, 'workloadendpoints: only endpoints of this pod (all)');
const ALL_NAMESPACES: Flag = { name: '--all-namespaces', short: '-A', about: 'workloadendpoints: of every namespace' };
/** Alias that calicoctl has too. */
const ALL_NAMESPACES_ALIAS: Flag = { name: '--all-the-namespaces', short: '-a', about: 'as -A' };
const EXPORT = flag('--export', 'manifests without fields of this cluster: version, UID and time');
const WATCH: Flag = { name: '--watch', short: '-w', about: 'keep running, and print what changes' };

const KIND_ARGUMENT = argument(KIND, 'a kind, listed above', 'required');
const NAMES = argument(text('NAME', GIVEN_KIND), 'names of objects (all)', 'any');

const SELECTION: Pick<Verb, 'positionals' | 'options'> = {
  positionals: [KIND_ARGUMENT, NAMES],
  options: [NAMESPACE, NODE, POOL, POD],
};

interface Selection {
  readonly objects: readonly ResourceObject[];
  readonly hints: readonly string[];
}

/** @throws Failure where an object does not exist */
async function select(resource: Resource, input: Input, context: Context): Promise<Selection> {
  const filter = filterOf(resource, input);
  const names = input.rest(NAMES);
  if (names.length === 0) return resource.list(filter, context);
  const objects: ResourceObject[] = [];
  for (const name of names) objects.push(await resource.find(name, filter, context));
  return { objects, hints: [] };
}

function filterOf({ names, filters = [], isNamespaced = false }: Resource, input: Input): Filter {
  const given = [
    ['node', NODE],
    ['pool', POOL],
    ['pod', POD],
  ] as const;
  for (const [filter, option] of given)
    if (input.get<unknown>(option) !== undefined && !filters.includes(filter))
      throw new Failure('INVALID_REQUEST', `${option.name}: does not restrict ${names[1]}; remove it`);
  const pod = input.get(POD);
  const isEverywhere = !isNamespaced || input.has(ALL_NAMESPACES) || input.has(ALL_NAMESPACES_ALIAS);
  const namespace = isEverywhere ? '' : (input.get(NAMESPACE) ?? 'default');
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

function listReport(resource: Resource, { objects, hints }: Selection, input: Input, context: Context): Report {
  const isOne = input.rest(NAMES).length === 1;
  const manifests = objects.map(({ manifest }) => (input.has(EXPORT) ? exported(manifest) : manifest));
  const [first] = manifests;
  return {
    sections: [objectTable(resource, objects, context)],
    names: objects.map((object) => nameText(resource, object)),
    hints,
    data: () => (isOne && first ? plain(first) : manifestData(manifests, resource)),
  };
}

function exported(manifest: ResourceObject['manifest']): ResourceObject['manifest'] {
  const { name, namespace, labels } = manifest.metadata;
  return { ...manifest, metadata: { name, namespace, labels } };
}

export const get: Verb = {
  name: 'get',
  about: 'list objects of a kind, or the named objects',
  details: `Kinds, with their other names:\n${KINDS_TEXT}\n\n-o yaml and -o json print manifests, which apply and replace read. describe -o json prints everything.`,
  ...SELECTION,
  flags: [ALL_NAMESPACES, ALL_NAMESPACES_ALIAS, WATCH, EXPORT],
  hasNames: true,
  examples: [
    'get ippools',
    'get ippool default-ipv4-ippool -o yaml',
    'get workloadendpoints -A --node node-1',
    'get addresses --pool default-ipv4-ippool',
    'get blocks --node node-1 --watch',
  ],
  run: async (input, context) => {
    const resource = await loadResource(input.at(KIND_ARGUMENT));
    if (input.has(WATCH)) return watch(resource, input, context);
    return listReport(resource, await select(resource, input, context), input, context);
  },
};

/** Interval between two reads of a watched list, in milliseconds. */
const WATCH_INTERVAL_MS = 2000;

/** Reads the list again and again, and prints the objects that have changed. */
async function watch(resource: Resource, input: Input, context: Context): Promise<Report> {
  if (context.output === 'yaml')
    throw new Failure('INVALID_REQUEST', '--watch: is not available with -o yaml; use -o json');
  const stopped = context.process.stopSignal();
  let before: ReadonlyMap<string, string> | undefined;
  do {
    context.restartTimeout();
    const { objects, hints } = await select(resource, input, context);
    const now = new Map(objects.map((object) => [keyOf(object), stateOf(resource, object)]));
    const changed = objects.filter((object) => before?.get(keyOf(object)) !== stateOf(resource, object));
    const removed = [...(before?.keys() ?? [])].filter((key) => !now.has(key));
    const isFirst = before === undefined;
    if (isFirst || changed.length > 0)
      context.print(listReport(resource, { objects: changed, hints: isFirst ? hints : [] }, input, context), {
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
  flags: [ALL_NAMESPACES, ALL_NAMESPACES_ALIAS],
  hasNames: true,
  examples: ['describe ippool default-ipv4-ippool', 'describe nodes'],
  run: async (input, context) => {
    const resource = await loadResource(input.at(KIND_ARGUMENT));
    const { objects } = await select(resource, input, context);
    const details = await Promise.all(objects.map((object) => object.details()));
    const [first] = objects;
    const isOne = input.rest(NAMES).length === 1;
    return {
      sections: objects.length === 0 ? [sentence(resource.none)] : details.flat(),
      names: objects.map((object) => nameText(resource, object)),
      data: () => (isOne && first ? first.data() : objects.map((object) => object.data())),
    };
  },
};
