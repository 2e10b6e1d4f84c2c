import { familyBits } from '@podwire/shared/net/address';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import { unavailableReason, type EncapsulationMode, type Pool } from '../pool.js';
import {
  field,
  isAbsent,
  keepTime,
  readCount,
  readFlag,
  readList,
  readObject,
  readOptionalText,
  readPrefix,
  readText,
  readTextMap,
  readTime,
  unreadable,
  type Field,
  type PreviousState,
} from './fields.js';
import type { JsonObject } from './json.js';
import type { RecordName } from './keys.js';

/** Calico's IPPool (projectcalico/api, pkg/apis/projectcalico/v3/ippool.go), as its v3 API stores it. */

const ALL_NODES = 'all()';
const DEFAULT_USES: readonly string[] = ['Workload', 'Tunnel'];

/** A block has 2^6 addresses by default. */
const DEFAULT_BLOCK_BITS = 6;

export function decodePool(raw: JsonObject, name: RecordName & { kind: 'pool' }): Pool {
  const metadata = readObject(field(raw, 'metadata'));
  const spec = readObject(field(raw, 'spec'));
  const prefix = readPrefix(field(spec, 'cidr', 'spec'));
  const created = field(metadata, 'creationTimestamp', 'metadata');
  const deleted = field(metadata, 'deletionTimestamp', 'metadata');
  return {
    name: name.name,
    uid: readOptionalText(field(metadata, 'uid', 'metadata')) ?? '',
    prefix,
    labels: readTextMap(field(metadata, 'labels', 'metadata')),
    blockSizeBits: decodeBlockSize(spec, prefix),
    disabled: readFlag(field(spec, 'disabled', 'spec')),
    createTimeMs: isAbsent(created) ? 0 : readTime(created),
    deletionTimeMs: isAbsent(deleted) ? undefined : readTime(deleted),
    ...decodeCondition(raw),
    ipipMode: decodeEncapsulation(field(spec, 'ipipMode', 'spec')),
    vxlanMode: decodeEncapsulation(field(spec, 'vxlanMode', 'spec')),
    natOutgoing: readFlag(field(spec, 'natOutgoing', 'spec')),
    disableBgpExport: readFlag(field(spec, 'disableBGPExport', 'spec')),
    nodeSelector: readOptionalText(field(spec, 'nodeSelector', 'spec')) ?? ALL_NODES,
    namespaceSelector: readOptionalText(field(spec, 'namespaceSelector', 'spec')) ?? '',
    allowedUses: decodeUses(spec),
    assignmentMode: decodeMode(spec),
  };
}

function decodeBlockSize(spec: JsonObject, { family, length }: Prefix): number {
  const source = field(spec, 'blockSize', 'spec');
  const bits = familyBits(family);
  const size = isAbsent(source) || source.value === 0 ? bits - DEFAULT_BLOCK_BITS : readCount(source, bits);
  // A pool smaller than one block is legal in Calico while it is disabled.
  if (size < bits - 12 || (size < length && !readFlag(field(spec, 'disabled', 'spec'))))
    throw unreadable({ ...source, value: size }, `a prefix length from ${Math.max(bits - 12, length)} to ${bits}`);
  return size;
}

const CONDITION = 'Allocatable';

/** The same condition where podwire-ipam has written it; the objects of Kubernetes have one of either. */
export const OWN_CONDITION = 'podwire.dev/Allocatable';

/** Reasons that only repeat other fields of the pool. */
const REPEATING_REASONS: readonly string[] = ['PoolDisabled', 'Terminating'];

/** The finding of Calico's pool controller, or of podwire-ipam (projectcalico/api, IPPoolConditionAllocatable). */
function decodeCondition(raw: JsonObject): Pick<Pool, 'notAllocatable' | 'condition'> {
  const conditions = conditionsOf(raw).map((source) => ({ source, fields: readObject(source) }));
  const found = conditions.find(({ fields }) => fields.type === CONDITION || fields.type === OWN_CONDITION);
  const findings = conditions.flatMap(({ source }) => findingOf(source) ?? []);
  if (!found) return { notAllocatable: undefined };
  const condition = { isAllocatable: found.fields.status === 'True', isOwn: found.fields.type === OWN_CONDITION };
  return { notAllocatable: findings[0], condition };
}

function findingOf(condition: Field): string | undefined {
  const fields = readObject(condition);
  if ((fields.type !== CONDITION && fields.type !== OWN_CONDITION) || fields.status !== 'False') return undefined;
  const reason = readOptionalText(field(fields, 'reason', condition.path)) ?? '';
  if (REPEATING_REASONS.includes(reason)) return undefined;
  if (fields.type === OWN_CONDITION) return readOptionalText(field(fields, 'message', condition.path));
  return reason === '' ? 'its condition Allocatable is False' : reason;
}

function conditionsOf(raw: JsonObject): readonly Field[] {
  return readList(field(readObject(field(raw, 'status')), 'conditions', 'status'));
}

function decodeUses(spec: JsonObject): readonly string[] {
  const uses = readList(field(spec, 'allowedUses', 'spec')).map(readText);
  return uses.length === 0 ? DEFAULT_USES : uses;
}

function decodeEncapsulation(source: Field): EncapsulationMode {
  const mode = readOptionalText(source) ?? '';
  switch (mode) {
    case '':
      return 'Never';
    case 'Never':
    case 'Always':
    case 'CrossSubnet':
      return mode;
    default:
      throw unreadable(source, 'Never, Always or CrossSubnet');
  }
}

function decodeMode(spec: JsonObject): Pool['assignmentMode'] {
  const source = field(spec, 'assignmentMode', 'spec');
  const mode = readOptionalText(source) ?? 'Automatic';
  if (mode !== 'Automatic' && mode !== 'Manual') throw unreadable(source, 'Automatic or Manual');
  return mode;
}

export function encodePool(pool: Pool, previous: PreviousState<Pool> | undefined): JsonObject {
  const raw = previous?.raw ?? {};
  const metadata = readObject(field(raw, 'metadata'));
  const spec = omitField(readObject(field(raw, 'spec')), 'namespaceSelector');
  return {
    kind: 'IPPool',
    apiVersion: 'projectcalico.org/v3',
    ...raw,
    ...encodeStatus(pool, raw),
    metadata: {
      ...metadata,
      name: pool.name,
      uid: pool.uid,
      creationTimestamp: keepTime(pool.createTimeMs, metadata.creationTimestamp),
      ...(pool.deletionTimeMs === undefined
        ? {}
        : { deletionTimestamp: keepTime(pool.deletionTimeMs, metadata.deletionTimestamp) }),
    },
    spec: {
      ...spec,
      vxlanMode: pool.vxlanMode,
      ipipMode: pool.ipipMode,
      ...optionalFlag(spec, 'natOutgoing', pool.natOutgoing),
      ...optionalFlag(spec, 'disableBGPExport', pool.disableBgpExport),
      cidr: formatPrefix(pool.prefix),
      blockSize: pool.blockSizeBits,
      nodeSelector: pool.nodeSelector,
      ...(pool.namespaceSelector === '' ? {} : { namespaceSelector: pool.namespaceSelector }),
      allowedUses: pool.allowedUses,
      assignmentMode: pool.assignmentMode,
      ...(previous?.value.disabled === pool.disabled ? {} : { disabled: pool.disabled }),
    },
  };
}

/** The stored status without an outdated condition, which no other component would remove. */
function encodeStatus(pool: Pool, raw: JsonObject): JsonObject {
  const conditions = conditionsOf(raw);
  const kept = conditions.filter((condition) => isCurrentCondition(pool, condition));
  if (kept.length === conditions.length) return {};
  const status = readObject(field(raw, 'status'));
  return { status: { ...status, conditions: kept.map(({ value }) => value ?? null) } };
}

function isCurrentCondition(pool: Pool, condition: Field): boolean {
  const fields = readObject(condition);
  if (fields.type !== CONDITION) return true;
  if (findingOf(condition) !== undefined) return pool.notAllocatable !== undefined;
  return (fields.status === 'True') === (unavailableReason(pool) === undefined);
}

function omitField(object: JsonObject, name: string): JsonObject {
  return Object.fromEntries(Object.entries(object).filter(([other]) => other !== name));
}

/** Calico omits false flags. An explicitly stored `false` is kept. */
function optionalFlag(stored: JsonObject, name: string, value: boolean): JsonObject {
  return value || Object.hasOwn(stored, name) ? { [name]: value } : {};
}
