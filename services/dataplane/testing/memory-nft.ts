import { Failure } from '@podwire/shared/failure/failure';
import { prefixesOverlap, splitCidr } from '@podwire/shared/net/prefix';

import type { BaseChain, Nft, TableWatch, TableWatcher } from '../nft/nft.js';
import {
  formatTableName,
  type ElementsChange,
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

type FaultyMethod = 'read' | 'apply' | 'changeElements' | 'watch';

/** Nftables in memory, with the rules of the real ones that Podwire's tables need, and faults on demand. */
export class MemoryNft implements Nft {
  readonly #tables = new Map<string, Objects>();
  readonly #faults = new Map<FaultyMethod, Failure[]>();
  readonly #watchers = new Set<{ readonly name: string; readonly watcher: TableWatcher }>();
  #generation = 0;
  #reads = 0;
  #transactions = 0;
  #elementChanges = 0;

  /** Makes the next call of a method fail, without a change. */
  failNext(method: FaultyMethod, failure: Failure): void {
    this.#faults.set(method, [...(this.#faults.get(method) ?? []), failure]);
  }

  /** Number of faults that no call has used yet. */
  get unusedFaults(): number {
    return [...this.#faults.values()].flat().length;
  }

  get reads(): number {
    return this.#reads;
  }

  /** Number of transactions without the program. */
  get elementChanges(): number {
    return this.#elementChanges;
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
    return fault ? Promise.reject(fault) : this.#transact(commands);
  }

  async changeElements(table: TableName, changes: readonly ElementsChange[]): Promise<number | undefined> {
    this.#elementChanges++;
    const element = ({ set }: ElementsChange, elem: readonly Json[]): JsonObject[] =>
      elem.length === 0 ? [] : [{ element: { family: table.family, table: table.name, name: set.name, elem } }];
    const commands: NftCommand[] = [
      ...changes.flatMap((each) => element(each, each.deleted).map((object) => ({ delete: object }))),
      ...changes.flatMap((each) => element(each, each.added).map((object) => ({ add: object }))),
    ];
    const fault = this.#faults.get('changeElements')?.shift();
    if (fault) throw fault;
    await this.#transact(commands);
    return this.#generation;
  }

  latestTransaction(): Promise<number> {
    return Promise.resolve(this.#generation);
  }

  /** Reports arrive after the result of the transaction. */
  watch(table: TableName, watcher: TableWatcher): Promise<TableWatch> {
    const fault = this.#faults.get('watch')?.shift();
    if (fault) return Promise.reject(fault);
    const watched = { name: formatTableName(table), watcher };
    this.#watchers.add(watched);
    return Promise.resolve({ close: () => void this.#watchers.delete(watched) });
  }

  /** The kernel loses reports. */
  loseReports(): void {
    for (const { watcher } of this.#watchers) watcher.onChange(undefined, false);
  }

  /** The subscriptions fail. */
  endWatches(): void {
    for (const watched of [...this.#watchers]) {
      this.#watchers.delete(watched);
      watched.watcher.onEnd();
    }
  }

  #transact(commands: readonly NftCommand[]): Promise<void> {
    const before = new Map([...this.#tables].map(([name, objects]) => [name, new Map(objects)]));
    try {
      for (const command of commands) this.#carryOut(command);
    } catch (error) {
      this.#tables.clear();
      for (const [name, objects] of before) this.#tables.set(name, objects);
      return Promise.reject(error instanceof Error ? error : new Error(String(error)));
    }
    const generation = ++this.#generation;
    const changed = new Set(commands.map((command) => tableOf(...kindOf(objectOf(command)))));
    const watching = [...this.#watchers].filter(({ name }) => changed.has(name));
    const exists = new Set(this.#tables.keys());
    setImmediate(() => {
      for (const watched of watching)
        if (this.#watchers.has(watched)) watched.watcher.onChange(generation, !exists.has(watched.name));
    });
    return Promise.resolve();
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
    const [kind, key, set] = setOrMap(objects, textOf(value.name));
    const { elem: before, ...rest } = set;
    const elements = change(elementsOf(before), elementsOf(value.elem));
    objects.set(key, { [kind]: { ...rest, ...(elements.length > 0 ? { elem: elements } : {}) } });
  }

  #objects(tableName: string): Objects {
    const objects = this.#tables.get(tableName);
    if (!objects) throw absent(`table ${tableName}`);
    return objects;
  }
}

function setOrMap(objects: Objects, name: string): readonly [kind: string, key: string, value: JsonObject] {
  for (const kind of ['set', 'map']) {
    const key = `${kind} ${name}`;
    const value = objects.get(key)?.[kind];
    if (isObject(value)) return [kind, key, value];
  }
  throw absent(`set ${name}`);
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
  // A pair of a map.
  if (isList(element)) return element.map(elementText).join(': ');
  if (!isObject(element)) return textOf(element);
  const { prefix, concat } = element;
  if (isObject(prefix)) return `${textOf(prefix.addr)}/${textOf(prefix.len)}`;
  if (isList(concat)) return concat.toReversed().map(elementText).join(' ');
  throw new Error(`unknown element for the fake: ${JSON.stringify(element)}`);
}

function elementsOf(elements: Json | undefined): readonly Json[] {
  return isList(elements) ? elements : [];
}

function objectOf(command: NftCommand): JsonObject {
  return 'add' in command ? command.add : 'insert' in command ? command.insert : command.delete;
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
