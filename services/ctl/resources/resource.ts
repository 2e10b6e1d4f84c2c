import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { suggestion } from '@podwire/shared/words/closest';
import type { z } from 'zod';

import type { Context } from '../clients/services.js';
import type { Flag, Input } from '../command-line/verb.js';
import type { Report, Section } from '../output/report.js';

type Json = ReturnType<Report['data']>;

/** A JSON object. */
export type ManifestObject = Readonly<Record<string, Json>>;

export interface Metadata {
  readonly name: string;
  readonly namespace?: string | undefined;
  readonly uid?: string | undefined;
  readonly creationTimestamp?: string | null | undefined;
  readonly labels?: Readonly<Record<string, string>> | undefined;
  readonly resourceVersion?: string | undefined;
}

/** An object as Calico's tools and kubectl write it. */
export interface Manifest {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: Metadata;
  readonly spec?: ManifestObject | undefined;
}

/** Filters of a list; an empty string does not restrict it. */
export interface Filter {
  readonly node: string;
  readonly pool: string;
  readonly namespace: string;
  readonly pod: string;
}

export const NO_FILTER: Filter = { node: '', pool: '', namespace: '', pod: '' };

export interface ResourceColumn {
  readonly head: string;
  /** Aligned to the right, as numbers are. */
  readonly isNumber?: boolean;
  /** Only with `-o wide`. */
  readonly isWide?: boolean;
}

interface ColumnOf<Item> extends ResourceColumn {
  readonly cell: (item: Item, nowMs: number) => string;
}

/** The object that a manifest describes, with a valid spec. */
export interface Wanted<Spec> extends Metadata {
  readonly spec: Spec;
}

/** How a kind is deleted. */
export interface Deletion {
  readonly flags?: readonly Flag[];
  /** Describes the deletion, for the preview. */
  readonly warning: (input: Input) => string;
  /** @param resourceVersion - empty for any */
  readonly run: (name: string, resourceVersion: string, input: Input, context: Context) => Promise<Report>;
}

/** The names of a kind. */
export interface Kind {
  /** Kind in manifests: `IPPool`. */
  readonly kind: string;
  readonly apiVersion: 'projectcalico.org/v3' | 'podwire.dev/v1';
  /** Singular, plural, and short names. */
  readonly names: readonly [string, string, ...string[]];
  readonly about: string;
}

/** One kind of resource: its columns, and its verbs. */
interface Definition<Item, Spec> {
  readonly isNamespaced?: boolean;
  readonly hasLabels?: boolean;
  /** Options that restrict its list. */
  readonly filters?: readonly (keyof Filter)[];
  readonly columns: readonly ColumnOf<Item>[];
  /** Printed for an empty list. */
  readonly none: string;
  readonly nameOf: (item: Item) => string;
  /** A further name, which tables show. */
  readonly aliasOf?: (item: Item) => string;
  readonly metadata?: (item: Item) => Omit<Metadata, 'name'>;
  readonly spec: (item: Item) => ManifestObject;
  readonly details: (item: Item, nowMs: number, context: Context) => Section[] | Promise<Section[]>;
  /** The service's answer for one object. */
  readonly data: (item: Item, context: Context) => ReturnType<Report['data']>;
  readonly list: (filter: Filter, context: Context) => Promise<Item[]>;
  /** Reads one object. Without it, the list is searched. @throws Failure where it does not exist */
  readonly get?: (name: string, context: Context) => Promise<Item | undefined>;
  readonly notFound?: FailureCode;
  readonly hints?: (items: readonly Item[]) => string[];
  /** Shape of a manifest's spec, loaded when a manifest is read; undefined where the kind is read-only. */
  readonly schema?: () => Promise<z.ZodType<Spec>>;
  readonly create?: (wanted: Wanted<Spec>, context: Context) => Promise<Item | undefined>;
  readonly update?: (wanted: Wanted<Spec>, context: Context) => Promise<Item | undefined>;
  readonly deletion?: Deletion;
  /** Why a verb does not exist, and what to do instead. */
  readonly instead?: string;
}

/** An object of any kind, ready for output. */
export interface ResourceObject {
  readonly name: string;
  readonly alias: string | undefined;
  readonly namespace: string;
  readonly cells: readonly string[];
  readonly resourceVersion: string;
  readonly manifest: Manifest;
  readonly details: () => Promise<Section[]>;
  readonly data: () => ReturnType<Report['data']>;
}

/** An object that a manifest describes, which can be stored. */
export interface WantedObject {
  readonly name: string;
  readonly create: (context: Context) => Promise<ResourceObject | undefined>;
  readonly update: (context: Context) => Promise<ResourceObject | undefined>;
}

/** A kind of resource, for the verbs that are common to all kinds. */
export interface Resource
  extends
    Kind,
    Pick<Definition<never, never>, 'isNamespaced' | 'hasLabels' | 'filters' | 'none' | 'deletion' | 'instead'> {
  readonly columns: readonly ResourceColumn[];
  readonly list: (
    filter: Filter,
    context: Context,
  ) => Promise<{ readonly objects: ResourceObject[]; readonly hints: string[] }>;
  /** @throws Failure where it does not exist */
  readonly find: (name: string, filter: Filter, context: Context) => Promise<ResourceObject>;
  /**
   * The objects of a name as tables print it: NAMESPACE/NAME where the kind has namespaces. An alias may have several.
   * @throws Failure where there is none
   */
  readonly findAll: (name: string, filter: Filter, context: Context) => Promise<readonly ResourceObject[]>;
  /** @throws Failure INVALID_REQUEST for a manifest that is not valid */
  readonly parse: (manifest: Manifest) => Promise<WantedObject>;
}

/** Joins the definition of a kind with its type, so that one table can have all kinds. */
export function resource<Item, Spec = never>(definition: Definition<Item, Spec>): (kind: Kind) => Resource {
  return (kind) => resourceOf(kind, definition);
}

function resourceOf<Item, Spec>(
  { kind, apiVersion, names, about }: Kind,
  definition: Definition<Item, Spec>,
): Resource {
  const { columns, nameOf, create, update, schema, instead = '', isNamespaced = false } = definition;
  const unsupported = (verb: string): Failure =>
    new Failure('INVALID_REQUEST', `${names[1]}: cannot be ${verb}; ${instead}`);
  const objectOf = (item: Item, context: Context): ResourceObject => {
    const metadata = { name: nameOf(item), ...definition.metadata?.(item) };
    const nowMs = context.clock.nowMs();
    return {
      name: metadata.name,
      alias: definition.aliasOf?.(item),
      namespace: metadata.namespace ?? '',
      cells: columns.map(({ cell }) => cell(item, nowMs)),
      resourceVersion: metadata.resourceVersion ?? '',
      manifest: { apiVersion, kind, metadata, spec: definition.spec(item) },
      details: async () => definition.details(item, nowMs, context),
      data: () => definition.data(item, context),
    };
  };
  const list: Resource['list'] = async (filter, context) => {
    const items = await definition.list(filter, context);
    return { objects: items.map((item) => objectOf(item, context)), hints: definition.hints?.(items) ?? [] };
  };
  const findAll: Resource['findAll'] = async (name, filter, context) => {
    const item = await definition.get?.(name, context);
    if (item !== undefined) return [objectOf(item, context)];
    const [first = '', second] = isNamespaced ? name.split('/') : [name];
    const [namespace, own] = second === undefined ? [filter.namespace, first] : [first, second];
    const { objects } = definition.get ? { objects: [] } : await list({ ...filter, namespace }, context);
    const found = objects.filter((each) => each.name === own || each.alias === own);
    if (found.length > 0) return found;
    const code = definition.notFound ?? 'ATTACHMENT_NOT_FOUND';
    throw new Failure(code, `${names[0]} "${name}" not found; "podwirectl get ${names[1]}" lists them`);
  };
  const find: Resource['find'] = async (...wanted) => firstOf(await findAll(...wanted));
  const parse: Resource['parse'] = async ({ metadata, spec = {} }) => {
    if (!schema) throw unsupported('created or changed');
    const shape = await schema();
    const parsed = shape.safeParse(spec);
    if (!parsed.success) {
      const faults = parsed.error.issues.map((issue) => issueText(issue, shape));
      throw new Failure('INVALID_REQUEST', `${kind} "${metadata.name}": ${faults.join('; ')}`);
    }
    const wanted = { ...metadata, spec: parsed.data };
    const store =
      (write: typeof create, verb: string): WantedObject['create'] =>
      async (context) => {
        if (!write) throw unsupported(verb);
        const item = await write(wanted, context);
        return item === undefined ? undefined : objectOf(item, context);
      };
    return { name: metadata.name, create: store(create, 'created'), update: store(update, 'changed') };
  };
  const { none, deletion, filters = [], hasLabels = false } = definition;
  const common = { kind, apiVersion, names, about, none, filters, isNamespaced, hasLabels, instead, columns };
  return { ...common, ...(deletion && { deletion }), list, find, findAll, parse };
}

/** One object, or a list of the kind. */
export function manifestData(
  manifests: readonly Manifest[],
  { kind, apiVersion }: Pick<Manifest, 'kind' | 'apiVersion'>,
): Record<string, Json> {
  return { apiVersion, kind: `${kind}List`, metadata: {}, items: manifests.map(plain) };
}

/** Manifest without fields that podwire-ipam writes: version, UID and time. */
export function exported(manifest: Manifest): Manifest {
  const { name, namespace, labels } = manifest.metadata;
  return { ...manifest, metadata: { name, namespace, labels } };
}

/** Manifest without empty fields of the metadata. */
export function plain({ apiVersion, kind, metadata, spec }: Manifest): Record<string, Json> {
  const known = Object.entries(metadata).flatMap(([name, value]) =>
    value === undefined || value === '' ? [] : [[name, value] as const],
  );
  return { apiVersion, kind, metadata: Object.fromEntries(known), ...(spec && { spec }) };
}

/** A fault of a manifest's spec. Fields of other names are compared with the fields of the spec. */
function issueText(issue: z.core.$ZodIssue, shape: object): string {
  const known = 'shape' in shape && typeof shape.shape === 'object' ? Object.keys(shape.shape ?? {}) : [];
  const { path, message } = issue;
  const unknown = issue.code === 'unrecognized_keys' && path.length === 0 ? issue.keys : [];
  const hints = unknown.map((key) => suggestion(key, known)).join('');
  return `${['spec', ...path].join('.')}: ${message}${hints}`;
}

function firstOf([first]: readonly ResourceObject[]): ResourceObject {
  if (!first) throw new Error('an object was found, but none is there');
  return first;
}
