/** Elements of sets and maps of nf_tables: their types, checks, and the addon's form of them. */
import { ArgumentError, NetlinkError } from './errors.js';
import type { NativeChangeResult, NativeElementChange, NativeSet } from './native.js';
import { checkArray, checkFlag, checkRecord, checkText, PROTOCOLS } from './scalars.js';

/** NFPROTO_* of linux/netfilter.h. */
const FAMILIES = { inet: 1, ip: 2, arp: 3, netdev: 5, bridge: 7, ip6: 10 } as const;

export type NftFamily = keyof typeof FAMILIES;

/** Types of fields, by the names that nft gives them. */
const FIELD_TYPES = ['ifname', 'ipv4_addr', 'ipv6_addr', 'inet_proto', 'inet_service'] as const;

export type NftFieldType = (typeof FIELD_TYPES)[number];

export interface NftTableName {
  readonly family: NftFamily;
  readonly table: string;
}

/** A set or map that exists, with the types that it was made with; the kernel checks only their lengths. */
export interface NftSet extends NftTableName {
  readonly name: string;
  /** One type, or the types of a concatenation. */
  readonly key: readonly NftFieldType[];
  /** Types of a map's values, or `verdict`. */
  readonly data?: readonly NftFieldType[] | 'verdict';
  /** Whether the set has `flags interval`. */
  readonly intervals?: boolean;
}

/**
 * A field of a key or value: the name of an interface, an address, a port, a protocol by name (`tcp`, `udp`, `sctp`, `icmp`,
 * `icmpv6`) or number. In keys of sets with intervals also `10.65.0.0/26`, or `FIRST-LAST`.
 */
export type NftField = string | number;

export type NftVerdict =
  'accept' | 'drop' | 'return' | 'continue' | { readonly goto: string } | { readonly jump: string };

export interface NftElement {
  /** As many fields as the key has types. */
  readonly key: readonly NftField[];
  /** Value of a map's element: as many fields as the map's values have types. Not used in deletions. */
  readonly data?: readonly NftField[];
  /** Verdict of a verdict map's element. Not used in deletions. */
  readonly verdict?: NftVerdict;
}

/**
 * Elements to add to one set, or to delete from it.
 *
 * `elements.add`: idempotent; EEXIST when a map has another value for a key, or an interval overlaps another one.
 * `elements.delete`: ENOENT for an element that does not exist.
 */
export interface NftElementChange {
  readonly type: 'elements.add' | 'elements.delete';
  readonly set: NftSet;
  readonly elements: readonly NftElement[];
}

/** Outcome of one change. */
export type NftChangeOutcome =
  | { readonly ok: true }
  | {
      readonly ok: false;
      /** ECANCELED: the kernel had no objection to this change, but another one failed. */
      readonly error: NetlinkError;
      /** Position in `elements` of the first one that the kernel refused; absent when it does not say. */
      readonly element?: number;
    };

export interface NftChangeResult {
  /** Whether all changes were made. Otherwise none was. */
  readonly applied: boolean;
  /** One for each change, in their order. */
  readonly outcomes: readonly NftChangeOutcome[];
  /** The generation of the rules that the transaction began; absent when it changed nothing, or the kernel does not say. */
  readonly generation?: number;
}

const CHANGES_MAX = 1000;
const ELEMENTS_MAX = 100_000;
const NAME_BYTES_MAX = 255;
const FIELDS_MAX = 5;

function checkName(path: string, value: unknown): string {
  const name = checkText(path, value);
  const bytes = Buffer.byteLength(name);
  if (bytes < 1 || bytes > NAME_BYTES_MAX) throw new ArgumentError(path, `must have 1 to ${NAME_BYTES_MAX} bytes`);
  return name;
}

function isFamily(value: unknown): value is NftFamily {
  return typeof value === 'string' && Object.hasOwn(FAMILIES, value);
}

export function checkTable(path: string, value: NftTableName): { readonly family: number; readonly table: string } {
  checkRecord(path, value);
  if (!isFamily(value.family)) {
    throw new ArgumentError(`${path}.family`, `must be one of ${Object.keys(FAMILIES).join(', ')}`);
  }
  return { family: FAMILIES[value.family], table: checkName(`${path}.table`, value.table) };
}

function formatTable({ family, table }: NftTableName): string {
  return `${family} ${table}`;
}

const KNOWN_TYPES: ReadonlySet<unknown> = new Set(FIELD_TYPES);

function checkTypes(path: string, value: readonly unknown[]): string[] {
  checkArray(path, value);
  if (value.length < 1 || value.length > FIELDS_MAX) {
    throw new ArgumentError(path, `must have 1 to ${FIELDS_MAX} elements`);
  }
  return value.map((type, position) => {
    if (typeof type === 'string' && KNOWN_TYPES.has(type)) return type;
    throw new ArgumentError(`${path}[${position}]`, `must be one of ${FIELD_TYPES.join(', ')}`);
  });
}

function checkSet(path: string, set: NftSet): NativeSet {
  const table = checkTable(path, set);
  return {
    ...table,
    name: checkName(`${path}.name`, set.name),
    key: checkTypes(`${path}.key`, set.key),
    data: set.data === undefined || set.data === 'verdict' ? [] : checkTypes(`${path}.data`, set.data),
    intervals: checkFlag(`${path}.intervals`, set.intervals),
  };
}

const END = '\0';

/** The addon checks each field against its type; here only their number, and what their text cannot hold. */
function toFields(path: string, fields: readonly unknown[], types: readonly string[]): string {
  checkArray(path, fields);
  if (fields.length !== types.length) throw new ArgumentError(path, `must have ${types.length} fields`);
  let text = '';
  for (const [position, field] of fields.entries()) {
    const value = typeof field === 'number' ? String(field) : checkText(`${path}[${position}]`, field);
    text += types[position] === 'inet_proto' ? String(PROTOCOLS.get(value) ?? value) : value;
    text += END;
  }
  return text;
}

const PLAIN_VERDICTS: ReadonlySet<unknown> = new Set(['accept', 'drop', 'return', 'continue']);

const NO_VERDICT = END + END;

/** The name and the chain. */
function toVerdict(path: string, value: unknown): string {
  if (typeof value === 'string' && PLAIN_VERDICTS.has(value)) return value + END + END;
  if (typeof value === 'object' && value !== null) {
    if ('goto' in value && !('jump' in value)) return `goto${END}${checkName(`${path}.goto`, value.goto)}${END}`;
    if ('jump' in value && !('goto' in value)) return `jump${END}${checkName(`${path}.jump`, value.jump)}${END}`;
  }
  throw new ArgumentError(path, 'must be accept, drop, return, continue, or an object with either goto or jump');
}

interface Kind {
  readonly set: NativeSet;
  readonly hasVerdicts: boolean;
  readonly deletes: boolean;
}

/** A deletion uses the key alone. */
function toElement(path: string, { key, data, verdict }: NftElement, { set, hasVerdicts, deletes }: Kind): string {
  const text = toFields(`${path}.key`, key, set.key);
  if (deletes) return text + NO_VERDICT;
  if (!hasVerdicts && verdict !== undefined) throw new ArgumentError(`${path}.verdict`, 'must not be given');
  if (set.data.length === 0 && data !== undefined) throw new ArgumentError(`${path}.data`, 'must not be given');
  const value = set.data.length === 0 ? '' : toFields(`${path}.data`, data ?? [], set.data);
  return text + value + (hasVerdicts ? toVerdict(`${path}.verdict`, verdict) : NO_VERDICT);
}

function checkLength(path: string, list: readonly unknown[], max: number): void {
  checkArray(path, list);
  if (list.length > max) throw new ArgumentError(path, `must have at most ${max} elements`);
}

const CHANGE_TYPES: ReadonlySet<string> = new Set(['elements.add', 'elements.delete']);

function toNativeChange(change: NftElementChange, path: string): NativeElementChange {
  checkRecord(path, change);
  const { type, elements } = change;
  if (!CHANGE_TYPES.has(type))
    throw new ArgumentError(`${path}.type`, `must be one of ${[...CHANGE_TYPES].join(', ')}`);
  checkRecord(`${path}.set`, change.set);
  const deletes = type === 'elements.delete';
  const set = checkSet(`${path}.set`, change.set);
  checkLength(`${path}.elements`, elements, ELEMENTS_MAX);
  const kind = { set: deletes ? { ...set, data: [] } : set, hasVerdicts: change.set.data === 'verdict', deletes };
  return {
    set: kind.set,
    deletes,
    elements: elements
      .map((element, position) => {
        const at = `${path}.elements[${position}]`;
        checkRecord(at, element);
        return toElement(at, element, kind);
      })
      .join(''),
  };
}

export function toNativeChanges(changes: readonly NftElementChange[]): NativeElementChange[] {
  checkLength('changes', changes, CHANGES_MAX);
  return changes.map((change, position) => toNativeChange(change, `changes[${position}]`));
}

/** The error for a field that the addon refuses because of its type: names the field's path. */
export function toArgumentError(error: unknown): unknown {
  if (!(error instanceof NetlinkError) || error.code !== 'EINVAL') return error;
  const [, path, problem] = /^(changes\[[^:]*): (.*)$/.exec(error.kernelMessage ?? '') ?? [];
  return path === undefined || problem === undefined ? error : new ArgumentError(path, problem);
}

function describeChange({ set, elements }: NftElementChange, position: number | null): string {
  const name = `${formatTable(set)} ${set.name}`;
  const element = position === null ? undefined : elements[position];
  return element ? `${name} { ${element.key.join(' . ')} }` : `${name} (${elements.length} elements)`;
}

export function toChangeResult(native: NativeChangeResult, changes: readonly NftElementChange[]): NftChangeResult {
  const outcomes = changes.map((change, position): NftChangeOutcome => {
    const { error = null, element = null } = native.outcomes[position] ?? {};
    if (!error) return { ok: true };
    const object = describeChange(change, element);
    const details = { operation: change.type, object, errno: error.errno, kernelMessage: error.text ?? undefined };
    return { ok: false, error: new NetlinkError(details), ...(element === null ? {} : { element }) };
  });
  const applied = outcomes.every(({ ok }) => ok);
  return { applied, outcomes, ...(native.generation === null ? {} : { generation: native.generation }) };
}
