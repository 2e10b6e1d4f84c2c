import {
  NetlinkError,
  openNamespace,
  type Monitor,
  type Namespace,
  type NftElement,
  type NftField,
  type NftTransaction,
} from '@podwire/netlink';

import type { BaseChain, Nft, NftProgram, TableWatch, TableWatcher } from '../nft/nft.js';
import {
  formatTableName,
  isList,
  isObject,
  type ElementsChange,
  type Json,
  type JsonObject,
  type NftCommand,
  type SetDefinition,
  type TableName,
} from '../nft/table.js';
import { callKernel, failureOfNetlink } from './refusal.js';

/** How long reports of transactions are collected, in milliseconds. */
const GATHER_MS = 5;

interface WatchedTable {
  readonly name: string;
  readonly watcher: TableWatcher;
}

/** Nftables through netlink for elements and reports, and through the program `nft` for rules. The namespace is this process's. */
export class NetlinkNft implements Nft {
  readonly #program: NftProgram;
  readonly #tables: readonly TableName[];
  readonly #watched = new Set<WatchedTable>();
  #opened: Promise<Namespace> | undefined;
  #monitor: Promise<Monitor<NftTransaction>> | undefined;

  /** Opens the node's namespace with the first call that needs it. @param tables - tables that may be watched */
  constructor(program: NftProgram, tables: readonly TableName[]) {
    this.#program = program;
    this.#tables = tables;
  }

  read(table: TableName): Promise<readonly JsonObject[] | undefined> {
    return this.#program.read(table);
  }

  forwardChains(): Promise<readonly BaseChain[]> {
    return this.#program.forwardChains();
  }

  apply(commands: readonly NftCommand[]): Promise<void> {
    return this.#program.apply(commands);
  }

  async changeElements(table: TableName, changes: readonly ElementsChange[]): Promise<number | undefined> {
    const change = (type: 'elements.delete' | 'elements.add', set: SetDefinition, elements: readonly Json[]) =>
      elements.length === 0 ? [] : [{ type, set: nftSet(table, set), elements: elements.map(nftElement) }];
    const { applied, outcomes, generation } = await this.#call((node) =>
      node.changeElements([
        ...changes.flatMap(({ set, deleted }) => change('elements.delete', set, deleted)),
        ...changes.flatMap(({ set, added }) => change('elements.add', set, added)),
      ]),
    );
    if (applied) return generation;
    const errors = outcomes.flatMap((outcome) => (outcome.ok ? [] : [outcome.error]));
    const cause = errors.find(({ code }) => code !== 'ECANCELED') ?? errors[0];
    throw cause ? failureOfNetlink(cause) : new Error('a refused transaction must have an error');
  }

  latestTransaction(): Promise<number> {
    return this.#call((node) => node.generation());
  }

  async watch(table: TableName, watcher: TableWatcher): Promise<TableWatch> {
    const watched = { name: formatTableName(table), watcher };
    this.#watched.add(watched);
    try {
      await (this.#monitor ??= this.#openMonitor());
    } catch (error) {
      this.#watched.delete(watched);
      throw error;
    }
    return { close: () => void this.#watched.delete(watched) };
  }

  /** Ends the reports. Idempotent. */
  async close(): Promise<void> {
    this.#watched.clear();
    const monitor = await this.#monitor?.catch(() => undefined);
    monitor?.close();
    const node = await this.#opened?.catch(() => undefined);
    await node?.close();
  }

  #call<Result>(call: (node: Namespace) => Promise<Result>): Promise<Result> {
    return callKernel(async () => call(await (this.#opened ??= openNamespace())));
  }

  async #openMonitor(): Promise<Monitor<NftTransaction>> {
    const tables = this.#tables.map(({ family, name }) => ({ family, table: name }));
    try {
      const monitor = await this.#call((node) => node.monitorTables({ tables, gatherMs: GATHER_MS }));
      void this.#relay(monitor);
      return monitor;
    } catch (error) {
      this.#monitor = undefined;
      throw error;
    }
  }

  async #relay(monitor: Monitor<NftTransaction>): Promise<void> {
    try {
      for await (const event of monitor) {
        if (event.object === 'overrun')
          for (const { watcher } of [...this.#watched]) watcher.onChange(undefined, false);
        else this.#report(event);
      }
    } catch (error) {
      if (!(error instanceof NetlinkError)) throw error;
      this.#monitor = undefined;
      const watched = [...this.#watched];
      this.#watched.clear();
      for (const { watcher } of watched) watcher.onEnd();
    }
  }

  #report({ generation, changes }: NftTransaction): void {
    for (const { family, table, kinds } of changes) {
      const name = `${family} ${table}`;
      const isDeleted = kinds.includes('table.delete') && !kinds.includes('table.add');
      const watching = [...this.#watched].filter((watched) => watched.name === name);
      for (const { watcher } of watching) watcher.onChange(generation, isDeleted);
    }
  }
}

function nftSet({ family, name: table }: TableName, { name, type, interval, valueType }: SetDefinition) {
  const key = typeof type === 'string' ? [type] : type;
  const data = valueType === undefined || valueType === 'verdict' ? valueType : [valueType];
  return { family, table, name, key, intervals: interval, ...(data ? { data } : {}) };
}

/** A key, or a pair of key and value. */
function nftElement(element: Json): NftElement {
  if (!isList(element)) return { key: fieldsOf(element) };
  const [key = null, value = null] = element;
  const chain = isObject(value) && isObject(value.jump) ? value.jump.target : undefined;
  if (typeof chain === 'string') return { key: fieldsOf(key), verdict: { jump: chain } };
  return { key: fieldsOf(key), data: fieldsOf(value) };
}

function fieldsOf(value: Json): NftField[] {
  return isObject(value) && isList(value.concat) ? value.concat.map(fieldOf) : [fieldOf(value)];
}

function fieldOf(field: Json): NftField {
  if (typeof field === 'string' || typeof field === 'number') return field;
  if (isObject(field) && isObject(field.prefix)) {
    const { addr, len } = field.prefix;
    if (typeof addr === 'string' && typeof len === 'number') return `${addr}/${len}`;
  }
  throw new Error(`not an element of a set: ${JSON.stringify(field)}`);
}
