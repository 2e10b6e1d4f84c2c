import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { formatPrefix, parsePrefix } from '@podwire/shared/net/prefix';

import { attachmentOf } from '../../records/attributes.js';
import {
  formatJson,
  isArray,
  isObject,
  objectIn,
  parseJson,
  withoutFields,
  type Json,
  type JsonObject,
} from '../../records/json/json.js';
import type { RecordKeys } from '../../records/json/keys.js';
import { nodePatch, nodeRecord } from './node-form.js';
import type { HolderDetails, ObjectContent } from './object-api.js';
import { affinityName, cidrName, ownerHash } from './object-names.js';
import { poolPatch, poolRecord, type OwnConditions } from './pool-form.js';

/** The API group that has Calico's objects. */
export type CalicoGroup = 'crd.projectcalico.org/v1' | 'projectcalico.org/v3';

/** A kind of objects, by the plural that its path ends with. */
export interface Resource {
  readonly plural: string;
  readonly path: string;
  readonly apiVersion: string;
  readonly kind: string;
}

const SESSIONS_API = 'podwire.dev/v1alpha1';

/** The ConfigMap of all records that have no kind of their own. */
const CONFIG_MAP = 'podwire-datastore';

/** Name of the only object of Calico's IPAM configuration and of its ClusterInformation. */
const DEFAULT_NAME = 'default';

/** Content of an object, without its name and version. */
export type ReadObject = Pick<ObjectContent, 'records' | 'details'>;

interface ObjectFormsOptions {
  readonly keys: RecordKeys;
  readonly group: CalicoGroup;
  /** Namespace of podwire-ipam's pod. */
  readonly namespace: string;
  /** Default: `marked`. */
  readonly ownConditions?: OwnConditions;
}

/**
 * The records of the datastore as objects of the API server, and back (Calico's libcalico-go/lib/backend/k8s/resources). Values
 * are in etcd's form. Fields that records lack are kept.
 */
export class ObjectForms {
  readonly resources: readonly Resource[];
  readonly #keys: RecordKeys;
  readonly #isV3: boolean;
  readonly #configs: string;
  readonly #ownConditions: OwnConditions;
  readonly #byPlural: ReadonlyMap<string, Resource>;

  constructor({ keys, group, namespace, ownConditions = 'marked' }: ObjectFormsOptions) {
    this.#keys = keys;
    this.#ownConditions = ownConditions;
    this.#isV3 = group === 'projectcalico.org/v3';
    this.#configs = this.#isV3 ? 'ipamconfigurations' : 'ipamconfigs';
    const calico = (plural: string, kind: string): Resource => {
      return { plural, kind, apiVersion: group, path: `/apis/${group}/${plural}` };
    };
    this.resources = [
      calico('ippools', 'IPPool'),
      calico('ipamblocks', 'IPAMBlock'),
      calico('blockaffinities', 'BlockAffinity'),
      calico(this.#configs, this.#isV3 ? 'IPAMConfiguration' : 'IPAMConfig'),
      calico('ipreservations', 'IPReservation'),
      calico('clusterinformations', 'ClusterInformation'),
      { plural: 'nodes', kind: 'Node', apiVersion: 'v1', path: '/api/v1/nodes' },
      {
        plural: 'nodesessions',
        kind: 'NodeSession',
        apiVersion: SESSIONS_API,
        path: `/apis/${SESSIONS_API}/nodesessions`,
      },
      { plural: 'configmaps', kind: 'ConfigMap', apiVersion: 'v1', path: `/api/v1/namespaces/${namespace}/configmaps` },
    ];
    this.#byPlural = new Map(this.resources.map((resource) => [resource.plural, resource]));
  }

  /** Selects the objects of a resource that the datastore reads; undefined for all. */
  static fieldSelector({ plural }: Resource): string | undefined {
    return plural === 'configmaps' ? `metadata.name=${CONFIG_MAP}` : undefined;
  }

  /** Fields that the next write of an object needs besides its records. */
  static source({ plural }: Resource, object: JsonObject): JsonObject {
    const metadata = withoutFields(objectIn(object, 'metadata'), ['managedFields']);
    if (plural === 'configmaps') return { ...object, metadata, data: {} };
    return plural === 'ipamblocks'
      ? { ...object, metadata, spec: keptSpec(object, BLOCK_FIELDS) }
      : { ...object, metadata };
  }

  /** The object that holds a record. Undefined for handles, endpoints and the history. */
  objectOf(key: string): string | undefined {
    const keys = this.#keys;
    if (keys.isOfHandle(key) || key.startsWith(keys.endpoints) || key.startsWith(keys.history)) return undefined;
    if (key === keys.clusterInformation) return `clusterinformations/${DEFAULT_NAME}`;
    const name = keys.parse(key);
    switch (name?.kind) {
      case 'block':
        return `ipamblocks/${cidrName(formatPrefix(name.prefix))}`;
      case 'affinity':
        return `blockaffinities/${affinityName(name.owner.name, formatPrefix(name.block))}`;
      case 'pool':
        return `ippools/${name.name}`;
      case 'reservation':
        return `ipreservations/${name.name}`;
      case 'config':
        return `${this.#configs}/${DEFAULT_NAME}`;
      case 'node':
        return `nodes/${name.name}`;
      case 'nodeSession':
        return `nodesessions/${name.name}`;
      case 'storeEpoch':
      case 'requestPolicies':
      case 'revokedCertificates':
      case 'clusterInformation':
      case 'handle':
      case 'endpoint':
      case undefined:
        return `configmaps/${CONFIG_MAP}`;
    }
  }

  /** The resource and name of an object. */
  placeOf(id: string): { readonly resource: Resource; readonly name: string } {
    const [plural = '', name = ''] = id.split('/', 2);
    const resource = this.#byPlural.get(plural);
    if (!resource) throw new Error(`not an object of the datastore: ${id}`);
    return { resource, name };
  }

  /**
   * Content of an object; undefined if it is marked as deleted, or not of the datastore. Without records of another object: a copy
   * of a block under another name must not replace the block.
   * @param object - as the API server has it
   */
  read(resource: Resource, object: JsonObject): ReadObject | undefined {
    const read = this.#read(resource, object);
    if (!read) return undefined;
    const id = `${resource.plural}/${textIn(objectIn(object, 'metadata'), 'name')}`;
    const records = new Map([...read.records].filter(([key]) => this.objectOf(key) === id));
    return records.size > 0 || resource.plural === 'configmaps' ? { ...read, records } : undefined;
  }

  #read({ plural }: Resource, object: JsonObject): ReadObject | undefined {
    const metadata = objectIn(object, 'metadata');
    const spec = objectIn(object, 'spec');
    const name = textIn(metadata, 'name');
    if (isMarkedDeleted(object)) return undefined;
    switch (plural) {
      case 'ipamblocks':
        return this.#readBlock(spec, metadata);
      case 'blockaffinities':
        return this.#readAffinity(spec);
      case 'ippools':
        return recordOf(this.#keys.pool(name), poolRecord(object, this.#ownConditions));
      case 'ipreservations':
        return recordOf(this.#keys.reservation(name), withoutVersion(object, metadata));
      case 'clusterinformations':
        return name === DEFAULT_NAME
          ? recordOf(this.#keys.clusterInformation, withoutVersion(object, metadata))
          : undefined;
      case 'nodes':
        return recordOf(this.#keys.node(name), nodeRecord(object));
      case 'nodesessions':
        return recordOf(this.#keys.session(name), spec);
      case 'configmaps':
        return name === CONFIG_MAP ? readConfigMap(objectIn(object, 'data')) : undefined;
      default:
        return name === DEFAULT_NAME ? recordOf(this.#keys.config, configRecord(spec)) : undefined;
    }
  }

  /**
   * The object to write.
   * @param base - the object as the API server has it; undefined for a new one
   */
  write({ id, records, details }: ObjectContent, base: JsonObject | undefined): JsonObject {
    const { resource, name } = this.placeOf(id);
    const { apiVersion, kind, plural } = resource;
    const known = { apiVersion, kind, metadata: { name }, ...base };
    if (plural === 'configmaps') return { ...known, data: configMapData(records) };
    const [first] = records;
    if (!first) throw new Error(`an object must have a record: ${id}`);
    const [key, value] = first;
    const record = parseRecord(value);
    switch (plural) {
      case 'ipamblocks':
        return { ...known, spec: { ...keptSpec(base, BLOCK_FIELDS), ...blockSpec(record, details) } };
      case 'blockaffinities':
        return { ...known, ...this.#affinity(key, record, base) };
      case 'nodesessions':
        return { ...known, spec: record };
      case 'ippools':
      case 'ipreservations':
      case 'clusterinformations':
        return {
          ...known,
          metadata: { ...objectIn(known, 'metadata'), ...metadataOf(record) },
          spec: record.spec ?? {},
        };
      default:
        return { ...known, spec: { ...objectIn(base ?? {}, 'spec'), ...configSpec(record) } };
    }
  }

  /** The merge patch of an object that other programs write too; undefined for an object that is written as a whole. */
  patch(content: ObjectContent, base: JsonObject | undefined): JsonObject | undefined {
    const { resource, name } = this.placeOf(content.id);
    if (!base) return undefined;
    const [value] = content.records.values();
    if (resource.plural === 'nodes') return nodePatch(value && parseRecord(value), base);
    return resource.plural === 'ippools' && value ? poolPatch(name, parseRecord(value), base) : undefined;
  }

  #readBlock(spec: JsonObject, metadata: JsonObject): ReadObject | undefined {
    const parsed = parsePrefix(textIn(spec, 'cidr'));
    if (!parsed.ok) return undefined;
    const { affinityClaimTime, attributes, ...rest } = withoutFields(spec, ['strictAffinity']);
    const details = new Map<string, HolderDetails>();
    const claim = affinityClaimTime === undefined ? {} : { affinity_claim_time: affinityClaimTime };
    const stripped = isArray(attributes)
      ? attributes.map((each) => withReleaseTime(withoutDetails(each, details), metadata))
      : [];
    const affinity = rest.affinity ?? null;
    const record = { ...rest, affinity, ...claim, attributes: stripped, deleted: false };
    return { records: new Map([[this.#keys.block(parsed.prefix), bytesOf(record)]]), details };
  }

  #readAffinity(spec: JsonObject): ReadObject | undefined {
    const parsed = parsePrefix(textIn(spec, 'cidr'));
    const kind = spec.type === 'virtual' ? 'virtual' : 'host';
    const name = textIn(spec, 'node');
    if (!parsed.ok || name === '') return undefined;
    const key = this.#keys.affinity({ kind, name }, parsed.prefix);
    return recordOf(key, { state: spec.state ?? '', deleted: false });
  }

  #affinity(key: string, record: JsonObject, base: JsonObject | undefined): JsonObject {
    const name = this.#keys.parse(key);
    if (name?.kind !== 'affinity') throw new Error(`not an affinity: ${key}`);
    const { owner, block } = name;
    const metadata = objectIn(base ?? {}, 'metadata');
    return {
      metadata: {
        name: affinityName(owner.name, formatPrefix(block)),
        ...metadata,
        labels: {
          ...objectIn(metadata, 'labels'),
          'projectcalico.org/hostname-hash': ownerHash(owner.name),
          'projectcalico.org/affinity-type': owner.kind,
          'projectcalico.org/ip-version': String(block.family),
        },
      },
      spec: {
        ...objectIn(base ?? {}, 'spec'),
        state: record.state ?? 'confirmed',
        node: owner.name,
        type: owner.kind,
        cidr: formatPrefix(block),
        deleted: this.#isV3 ? false : 'false',
      },
    };
  }
}

/** Calico's programs mark objects of some kinds before they delete them. */
export function isMarkedDeleted(object: JsonObject): boolean {
  const { deleted } = objectIn(object, 'spec');
  return deleted === true || deleted === 'true';
}

/**
 * Calico's migration to v3 copies addresses that cool down without their release times. podwire-ipam writes only such addresses with
 * a node and nothing else; the creation of the copy counts as their release.
 */
function withReleaseTime(attributes: Json, { creationTimestamp = null }: JsonObject): Json {
  if (!isObject(attributes)) return attributes;
  const names = [...Object.keys(attributes), ...Object.keys(objectIn(attributes, 'secondary'))];
  return names.join() === 'secondary,node' ? { ...attributes, releasedAt: creationTimestamp } : attributes;
}

function recordOf(key: string, record: JsonObject): ReadObject {
  return { records: new Map([[key, bytesOf(record)]]), details: NO_DETAILS };
}

const NO_DETAILS: ReadonlyMap<string, HolderDetails> = new Map();

function bytesOf(record: JsonObject): Uint8Array {
  return Buffer.from(formatJson(record));
}

function parseRecord(value: Uint8Array): JsonObject {
  const raw = value.length === 0 ? {} : parseJson(Buffer.from(value).toString());
  if (!isObject(raw)) throw new Error('a record must be a JSON object');
  return raw;
}

function textIn(object: JsonObject, name: string): string {
  const value = object[name];
  return typeof value === 'string' ? value : '';
}

/** An object of Calico's v3 API as etcd has it. */
function withoutVersion(object: JsonObject, metadata: JsonObject): JsonObject {
  const kept = withoutFields(metadata, ['resourceVersion', 'managedFields', 'generation']);
  return { ...object, apiVersion: 'projectcalico.org/v3', metadata: kept };
}

/** Labels and annotations; the API server sets the rest. */
function metadataOf(record: JsonObject): JsonObject {
  const { labels, annotations } = objectIn(record, 'metadata');
  return { ...(labels === undefined ? {} : { labels }), ...(annotations === undefined ? {} : { annotations }) };
}

/** Fields that etcd's form has under the same names. */
const BLOCK_FIELDS: readonly string[] = [
  'cidr',
  'affinity',
  'affinityClaimTime',
  'allocations',
  'unallocated',
  'attributes',
  'deleted',
  'sequenceNumber',
  'sequenceNumberForAllocation',
  'strictAffinity',
];

/** Fields of an object's spec that records lack. */
function keptSpec(base: JsonObject | undefined, known: readonly string[]): JsonObject {
  return withoutFields(objectIn(base ?? {}, 'spec'), known);
}

function blockSpec(record: JsonObject, details: ReadonlyMap<string, HolderDetails>): JsonObject {
  const { affinity_claim_time: claimTime, affinity, attributes, ...rest } = withoutFields(record, ['hostAffinity']);
  return {
    ...rest,
    ...(affinity === undefined || affinity === null ? {} : { affinity }),
    ...(claimTime === undefined ? {} : { affinityClaimTime: claimTime }),
    attributes: isArray(attributes) ? attributes.map((each) => withDetails(each, details)) : [],
    deleted: false,
    strictAffinity: false,
  };
}

/** Attributes that describe an attachment where endpoints are no objects. */
const POD_UID = 'pod-uid';
const BOOT_ID = 'boot-id';
const NETNS_INODE = 'netns-inode';

/** The attachment of a block's attributes, formatted; undefined for addresses of other writers, leases and tunnels. */
function holderIn(attributes: Json): string | undefined {
  if (!isObject(attributes)) return undefined;
  const { handle_id: handleId } = attributes;
  const texts = Object.entries(objectIn(attributes, 'secondary')).flatMap(([name, value]) =>
    typeof value === 'string' ? [[name, value] as const] : [],
  );
  if (typeof handleId !== 'string') return undefined;
  const attachment = attachmentOf({ handleId, owner: Object.fromEntries(texts), releasedAtMs: undefined });
  return attachment && formatAttachment(attachment);
}

function withDetails(attributes: Json, details: ReadonlyMap<string, HolderDetails>): Json {
  const holder = holderIn(attributes);
  const known = holder === undefined ? undefined : details.get(holder);
  if (!known || !isObject(attributes)) return attributes;
  const { podUid, netns } = known;
  return {
    ...attributes,
    secondary: {
      ...objectIn(attributes, 'secondary'),
      ...(podUid === '' ? {} : { [POD_UID]: podUid }),
      ...(netns ? { [BOOT_ID]: netns.bootId, [NETNS_INODE]: String(netns.inode) } : {}),
    },
  };
}

/** Takes the details of a holder out of its attributes. */
function withoutDetails(attributes: Json, details: Map<string, HolderDetails>): Json {
  const holder = holderIn(attributes);
  if (holder === undefined || !isObject(attributes)) return attributes;
  const { [POD_UID]: uid, [BOOT_ID]: bootId, [NETNS_INODE]: inode, ...secondary } = objectIn(attributes, 'secondary');
  const hasNetns = typeof bootId === 'string' && typeof inode === 'string' && /^\d{1,20}$/.test(inode);
  const netns = hasNetns ? { bootId, inode: BigInt(inode) } : undefined;
  const podUid = typeof uid === 'string' ? uid : '';
  if (podUid !== '' || netns) details.set(holder, { podUid, netns });
  return { ...attributes, secondary };
}

/** Names of the IPAM configuration's fields in etcd, by their names in objects. */
const CONFIG_FIELDS: Readonly<Record<string, string>> = {
  strictAffinity: 'strict_affinity',
  autoAllocateBlocks: 'auto_allocate_blocks',
};

function configRecord(spec: JsonObject): JsonObject {
  const defaults = { strictAffinity: false, autoAllocateBlocks: true };
  return Object.fromEntries(
    Object.entries({ ...defaults, ...spec }).map(([name, value]) => [CONFIG_FIELDS[name] ?? name, value]),
  );
}

function configSpec(record: JsonObject): JsonObject {
  const names = new Map(Object.entries(CONFIG_FIELDS).map(([object, etcd]) => [etcd, object]));
  return Object.fromEntries(Object.entries(record).map(([name, value]) => [names.get(name) ?? name, value]));
}

/** Keys of a ConfigMap have no slashes, and keys of records no underscores. */
function readConfigMap(data: JsonObject): ReadObject {
  const records = new Map<string, Uint8Array>();
  for (const [name, value] of Object.entries(data))
    if (typeof value === 'string') records.set(name.replaceAll('_', '/'), Buffer.from(value));
  return { records, details: NO_DETAILS };
}

function configMapData(records: ReadonlyMap<string, Uint8Array>): JsonObject {
  return Object.fromEntries(
    [...records].map(([key, value]) => [key.replaceAll('/', '_'), Buffer.from(value).toString()]),
  );
}
