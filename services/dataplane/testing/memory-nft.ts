import { Failure } from '@podwire/shared/failure/failure';
import { prefixesOverlap, splitCidr } from '@podwire/shared/net/prefix';

import type { BaseChain, Nft } from '../nft/nft.js';
import {
  formatTableName,
  isList,
  isObject,
  type Json,
  type JsonObject,
  type NftCommand,
  type TableName,
} from '../nft/table.js';
import { formOf } from '../nft/table-form.js';

/** Objects of one table by kind and name; rules in their order. */
type Objects = Map<string, JsonObject>;

/** Nftables in memory, with the rules of the real ones that Podwire's tables need, and faults on demand. */
export class MemoryNft implements Nft {
  readonly #tables = new Map<string, Objects>();
  readonly #faults = new Map<'read' | 'apply', Failure[]>();
  #reads = 0;
  #transactions = 0;

  /** Makes the next call of a method fail, without a change. */
  failNext(method: 'read' | 'apply', failure: Failure): void {
    this.#faults.set(method, [...(this.#faults.get(method) ?? []), failure]);
  }

  /** Number of faults that no call has used yet. */
  get unusedFaults(): number {
    return [...this.#faults.values()].flat().length;
  }

  get reads(): number {
    return this.#reads;
  }

  get transactions(): number {
    return this.#transactions;
  }

  /** All tables in the form for comparisons. */
  print(): string {
    const names = [...this.#tables.keys()].toSorted();
    return names
      .map((name) => formOf([...(this.#tables.get(name)?.values() ?? [])]))
      .map(({ structure, elements }) => `${structure}\n${elements}`)
      .join('\n');
  }

  read(table: TableName): Promise<readonly JsonObject[] | undefined> {
    this.#reads++;
    const fault = this.#faults.get('read')?.shift();
    if (fault) return Promise.reject(fault);
    const objects = this.#tables.get(formatTableName(table));
    return Promise.resolve(objects && [...objects.values()]);
  }

  /** No test on the fake has a firewall of another program. */
  forwardChains(): Promise<readonly BaseChain[]> {
    return Promise.resolve([]);
  }

  apply(commands: readonly NftCommand[]): Promise<void> {
    this.#transactions++;
    const fault = this.#faults.get('apply')?.shift();
    if (fault) return Promise.reject(fault);
    const before = new Map([...this.#tables].map(([name, objects]) => [name, new Map(objects)]));
    try {
      for (const command of commands) this.#carryOut(command);
      return Promise.resolve();
    } catch (error) {
      this.#tables.clear();
      for (const [name, objects] of before) this.#tables.set(name, objects);
      return Promise.reject(error instanceof Error ? error : new Error(String(error)));
    }
  }

  #carryOut(command: NftCommand): void {
    if ('add' in command) this.#add(command.add);
    else if ('insert' in command) throw new Error('the fake inserts no rules');
    else this.#delete(command.delete);
  }

  #add(object: JsonObject): void {
    const [kind, value] = kindOf(object);
    const tableName = tableOf(kind, value);
    if (kind === 'table') {
      if (!this.#tables.has(tableName)) this.#tables.set(tableName, new Map([['table', object]]));
      return;
    }
    const objects = this.#objects(tableName);
    if (kind === 'element') this.#changeElements(objects, value, addElements);
    else if (kind === 'rule') objects.set(`rule ${objects.size}`, object);
    else {
      const key = `${kind} ${textOf(value.name)}`;
      if (kind === 'set') addElements([], elementsOf(value.elem));
      if (!objects.has(key)) objects.set(key, object);
    }
  }

  #delete(object: JsonObject): void {
    const [kind, value] = kindOf(object);
    const tableName = tableOf(kind, value);
    const objects = this.#objects(tableName);
    if (kind === 'table') this.#tables.delete(tableName);
    else if (kind === 'element') this.#changeElements(objects, value, deleteElements);
    else if (!objects.delete(`${kind} ${textOf(value.name)}`)) throw absent(`${kind} ${textOf(value.name)}`);
  }

  #changeElements(objects: Objects, value: JsonObject, change: ElementChange): void {
    const key = `set ${textOf(value.name)}`;
    const set = objects.get(key)?.set;
    if (!isObject(set)) throw absent(key);
    const { elem: before, ...rest } = set;
    const elements = change(elementsOf(before), elementsOf(value.elem));
    objects.set(key, { set: { ...rest, ...(elements.length > 0 ? { elem: elements } : {}) } });
  }

  #objects(tableName: string): Objects {
    const objects = this.#tables.get(tableName);
    if (!objects) throw absent(`table ${tableName}`);
    return objects;
  }
}

type ElementChange = (before: readonly Json[], change: readonly Json[]) => readonly Json[];

const addElements: ElementChange = (before, added) => {
  const result = [...before];
  for (const element of added) {
    const same = result.some((other) => elementText(other) === elementText(element));
    if (same) continue;
    if (result.some((other) => overlap(elementText(other), elementText(element)))) {
      throw new Failure('KERNEL_REFUSED', 'nft refused: interval overlaps with an existing one');
    }
    result.push(element);
  }
  return result;
};

const deleteElements: ElementChange = (before, deleted) => {
  const result = [...before];
  for (const element of deleted) {
    const position = result.findIndex((other) => elementText(other) === elementText(element));
    if (position < 0) throw absent(`element ${elementText(element)}`);
    result.splice(position, 1);
  }
  return result;
};

/** Two different intervals of one link, or of none, that share an address. */
function overlap(a: string, b: string): boolean {
  const [cidrA = '', deviceA] = a.split(' ');
  const [cidrB = '', deviceB] = b.split(' ');
  const [one, other] = [splitCidr(cidrA), splitCidr(cidrB)];
  if (!one || !other || deviceA !== deviceB) return false;
  return prefixesOverlap({ ...one.address, length: one.length }, { ...other.address, length: other.length });
}

/** `CIDR`, `CIDR LINK`, or a name. */
function elementText(element: Json): string {
  if (!isObject(element)) return textOf(element);
  const { prefix, concat } = element;
  if (isObject(prefix)) return `${textOf(prefix.addr)}/${textOf(prefix.len)}`;
  if (isList(concat)) return concat.toReversed().map(elementText).join(' ');
  throw new Error(`unknown element for the fake: ${JSON.stringify(element)}`);
}

function elementsOf(elements: Json | undefined): readonly Json[] {
  return isList(elements) ? elements : [];
}

function kindOf(object: JsonObject): [string, JsonObject] {
  const [entry] = Object.entries(object);
  if (!entry || !isObject(entry[1])) throw new Error(`not an object of nftables: ${JSON.stringify(object)}`);
  return [entry[0], entry[1]];
}

function tableOf(kind: string, value: JsonObject): string {
  return `${textOf(value.family)} ${textOf(kind === 'table' ? value.name : value.table)}`;
}

function textOf(value: Json | undefined): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function absent(what: string): Failure {
  return new Failure('KERNEL_REFUSED', `nft refused: no such file or directory: ${what}`);
}
