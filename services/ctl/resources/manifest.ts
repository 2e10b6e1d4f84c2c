import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { parse, parseAllDocuments, type Document } from 'yaml';
import { z } from 'zod';

import type { Manifest } from './resource.js';

export const OBJECT = z.record(z.string(), z.json());

const METADATA = z.object({
  name: z.string().min(1),
  namespace: z.string().optional(),
  uid: z.string().optional(),
  creationTimestamp: z.string().nullish(),
  labels: z.record(z.string(), z.string()).optional(),
  resourceVersion: z.string().optional(),
});

const MANIFEST = z.strictObject({
  apiVersion: z.enum(['projectcalico.org/v3', 'podwire.dev/v1']),
  kind: z.string(),
  metadata: METADATA,
  spec: OBJECT.optional(),
  status: z.unknown().optional(),
});

const LIST = z.object({ items: z.array(z.unknown()) });

/** A version of podwire-ipam. Calico's tools write the revision in the datastore: a shorter number. */
const RESOURCE_VERSION = /^[0-9a-f]{16}$/;

/**
 * The manifests of a text in YAML or JSON: documents, lists of objects, and objects of kind List. A resource version of
 * another tool is left out, as it cannot be compared.
 * @param file - for messages
 * @throws Failure INVALID_REQUEST that names the document
 */
export function parseManifests(text: string, file: string): Manifest[] {
  const documents = parseAllDocuments(text, { version: '1.2' });
  if ('empty' in documents) return [];
  const faults = documents.flatMap(({ errors }) => errors.map(({ message }) => message));
  if (faults.length > 0) throw new Failure('INVALID_REQUEST', `${file}: is not YAML: ${faults.join('; ')}`);
  const objects = documents.map((document) => valueOf(document, file)).flatMap(itemsOf);
  return objects.map((object, place) => withOwnVersion(manifestOf(object, `${file}, object ${place + 1}`)));
}

/** @throws Failure INVALID_REQUEST for an alias without an anchor, too many aliases, or an alias within its own anchor */
function valueOf(document: Document, file: string): unknown {
  try {
    return requireFinite(document.toJS());
  } catch (cause) {
    const [reason] = messageOf(cause).split('\n');
    throw new Failure('INVALID_REQUEST', `${file}: has an alias that cannot be used: ${reason}`, { cause });
  }
}

/** @throws Error for a value that contains itself */
function requireFinite(value: unknown): unknown {
  JSON.stringify(value);
  return value;
}

function withOwnVersion(manifest: Manifest): Manifest {
  const { resourceVersion, ...metadata } = manifest.metadata;
  const isOwn = resourceVersion !== undefined && RESOURCE_VERSION.test(resourceVersion);
  return isOwn ? manifest : { ...manifest, metadata };
}

function itemsOf(object: unknown): unknown[] {
  if (object === null) return [];
  if (Array.isArray(object)) return object.flatMap(itemsOf);
  const list = LIST.safeParse(object);
  return list.success ? list.data.items : [object];
}

/** @param subject - for messages */
export function manifestOf(object: unknown, subject: string): Manifest {
  const parsed = MANIFEST.safeParse(object);
  if (parsed.success) return parsed.data;
  const faults = parsed.error.issues.map(({ path, message }) => [...path, message].join(': '));
  throw new Failure('INVALID_REQUEST', `${subject}: ${faults.join('; ')}`);
}

/** The value of FIELD=VALUE, in YAML: `true`, `26`, `[a, b]`. Other input is a string, such as a selector `!has(a)`. */
export function fieldValue(text: string): z.infer<ReturnType<typeof z.json>> {
  try {
    const value = z.json().safeParse(requireFinite(parse(text, { logLevel: 'silent' })));
    return value.success && value.data !== null && !text.startsWith('!') ? value.data : text;
  } catch {
    return text;
  }
}

/** Changes an object by a merge patch (RFC 7396). */
export function mergePatch(target: unknown, patch: unknown): unknown {
  const changes = OBJECT.safeParse(patch);
  if (!changes.success) return patch;
  const before = OBJECT.safeParse(target);
  const merged = new Map<string, unknown>(Object.entries(before.success ? before.data : {}));
  for (const [name, value] of Object.entries(changes.data)) {
    if (value === null) merged.delete(name);
    else merged.set(name, mergePatch(merged.get(name), value));
  }
  return Object.fromEntries(merged);
}
