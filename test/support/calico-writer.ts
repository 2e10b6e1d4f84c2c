import { execFile } from 'node:child_process';

import type { EtcdServer } from '@podwire/ipam/engine/testing/etcd-server';
import { formatAddress } from '@podwire/shared/net/address';
import { addressAt, parsePrefix } from '@podwire/shared/net/prefix';

const ROOT = '/calico/';
const BLOCKS = `${ROOT}ipam/v2/assignment/`;
const HANDLES = `${ROOT}ipam/v2/handle/`;
const CLUSTER = `${ROOT}resources/v3/projectcalico.org/clusterinformations/default`;

/** Attempts of a compare-and-swap, which concurrent writers make fail. */
const ATTEMPTS = 100;

/** Calico's AllocationBlock; its 64-bit numbers are texts here. */
interface StoredBlock {
  readonly cidr: string;
  allocations: (number | null)[];
  unallocated: number[];
  attributes: { readonly handle_id?: string; readonly secondary?: Readonly<Record<string, string>> }[];
  sequenceNumber: string;
  sequenceNumberForAllocation: Record<string, string>;
}

interface StoredHandle {
  readonly block: Readonly<Record<string, number>>;
  readonly deleted: boolean;
}

/** Patience with an etcd that works. */
const PATIENCE_SECONDS = 45;

/** Writes to the datastore as Calico's tools and its plugin do, beside running replicas of podwire-ipam. */
export class CalicoWriter {
  readonly #etcd: EtcdServer;
  readonly #timeoutSeconds: number;

  /** @param timeoutSeconds - of each request */
  constructor(etcd: EtcdServer, timeoutSeconds = PATIENCE_SECONDS) {
    this.#etcd = etcd;
    this.#timeoutSeconds = timeoutSeconds;
  }

  /**
   * Same as `calicoctl ipam release --ip`: block and handle lose the address; endpoints stay as they are.
   * @param handle - only while this one has the address, as with a report of `calicoctl ipam check`
   * @returns whether it was released
   */
  async release(address: string, handle?: string): Promise<boolean> {
    const key = await this.#blockKeyOf(address);
    const found = holderOf((await this.#read(key)).text, address);
    if (found === undefined || (handle !== undefined && found !== handle)) return false;
    return this.#change([key, HANDLES + found], ([text = '', handleText = '']) => {
      if (holderOf(text, address) !== found) return undefined;
      const block = parseBlock(text);
      free(block, addressesOf(block).indexOf(address));
      return [formatBlock(block), counted(handleText, block.cidr, -1)];
    });
  }

  async releaseAll(addresses: readonly string[]): Promise<void> {
    for (const address of addresses) await this.release(address);
  }

  /**
   * Allocates free addresses of the existing blocks, one for each container, as Calico's plugin does on a node.
   * @returns the addresses; fewer when there are no more
   */
  async allocate(node: string, containerIds: readonly string[]): Promise<string[]> {
    const waiting = [...containerIds];
    const taken: string[] = [];
    for (const key of (await this.#blocks()).keys())
      for (let id = waiting[0]; id !== undefined; id = waiting[0]) {
        const address = await this.#allocateIn(key, { node, handle: `k8s-pod-network.${id}`, pod: id });
        if (address === undefined) break;
        waiting.shift();
        taken.push(address);
      }
    return taken;
  }

  /** Same as `calicoctl datastore migrate lock`. */
  lock(): Promise<boolean> {
    return this.#setReady(false);
  }

  /** Same as `calicoctl datastore migrate unlock`. */
  unlock(): Promise<boolean> {
    return this.#setReady(true);
  }

  #setReady(datastoreReady: boolean): Promise<boolean> {
    return this.#change([CLUSTER], ([text = '']) => {
      const record: { spec: object } = JSON.parse(text);
      return [JSON.stringify({ ...record, spec: { ...record.spec, datastoreReady } })];
    });
  }

  async #allocateIn(
    key: string,
    { node, handle, pod }: { readonly node: string; readonly handle: string; readonly pod: string },
  ): Promise<string | undefined> {
    let address: string | undefined;
    const isChanged = await this.#change([key, HANDLES + handle], ([text = '', handleText = '']) => {
      const block = parseBlock(text);
      const ordinal = block.unallocated.shift();
      if (ordinal === undefined) return undefined;
      address = addressesOf(block)[ordinal];
      const secondary = { namespace: 'default', node, pod, timestamp: new Date().toISOString() };
      block.allocations[ordinal] = block.attributes.push({ handle_id: handle, secondary }) - 1;
      block.sequenceNumberForAllocation = { ...block.sequenceNumberForAllocation, [ordinal]: block.sequenceNumber };
      block.sequenceNumber = String(BigInt(block.sequenceNumber) + 1n);
      return [formatBlock(block), counted(handleText, block.cidr, 1)];
    });
    return isChanged ? address : undefined;
  }

  async #blockKeyOf(address: string): Promise<string> {
    const found = [...(await this.#blocks())].find(([, text]) => addressesOf(parseBlock(text)).includes(address));
    if (!found) throw new Error(`${address} is in no block`);
    return found[0];
  }

  async #blocks(): Promise<Map<string, string>> {
    const pairs = (await this.#get('--prefix', BLOCKS)).map(({ key, text }) => [key, text] as const);
    return new Map(pairs);
  }

  /**
   * A compare-and-swap of some keys; an empty text is a missing key.
   * @param change - returns the new texts; undefined to leave all as they are
   * @returns whether they were changed
   */
  async #change(
    keys: readonly string[],
    change: (texts: readonly string[]) => readonly string[] | undefined,
  ): Promise<boolean> {
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const stored = await Promise.all(keys.map((key) => this.#read(key)));
      const next = change(stored.map(({ text }) => text));
      if (!next) return false;
      const conditions = stored.map(({ revision }, index) => `mod("${keys[index]}") = "${revision}"`);
      const operations = next.map((text, index) =>
        text === '' ? `del ${keys[index]}` : `put ${keys[index]} ${JSON.stringify(text)}`,
      );
      const transaction = [...conditions, '', ...operations, '', '', ''].join('\n');
      if ((await this.#ctl(['txn'], transaction)).startsWith('SUCCESS')) return true;
    }
    throw new Error(`${keys.join(', ')}: changed by another writer at each of ${ATTEMPTS} attempts`);
  }

  async #read(key: string): Promise<{ readonly text: string; readonly revision: number }> {
    const [found] = await this.#get(key);
    return found ?? { text: '', revision: 0 };
  }

  async #get(...args: readonly string[]) {
    const answer: { kvs?: readonly StoredPair[] } = JSON.parse(await this.#ctl(['get', ...args, '--write-out=json']));
    const text = (base64 = ''): string => Buffer.from(base64, 'base64').toString();
    return (answer.kvs ?? []).map(({ key, value, mod_revision: revision }) => ({
      ...{ key: text(key), text: text(value), revision },
    }));
  }

  /** Does not block this process: this process may have to resume a paused etcd. */
  async #ctl(args: readonly string[], input = ''): Promise<string> {
    const timeouts = ['--dial-timeout', '--command-timeout'].map((flag) => `${flag}=${this.#timeoutSeconds}s`);
    const child = execFile('etcdctl', [`--endpoints=${this.#etcd.url}`, ...timeouts, ...args], {
      env: { PATH: process.env.PATH, ETCDCTL_API: '3' },
    });
    let [stdout, stderr] = ['', ''];
    child.stdout?.on('data', (chunk: string) => (stdout += chunk));
    child.stderr?.on('data', (chunk: string) => (stderr += chunk));
    child.stdin?.on('error', () => undefined).end(input);
    const exitCode = await new Promise((resolve, reject) => child.once('close', resolve).once('error', reject));
    if (exitCode !== 0) throw new Error(`etcdctl ${args.join(' ')}: ${stderr}`);
    return stdout;
  }
}

interface StoredPair {
  readonly key: string;
  readonly value?: string;
  readonly mod_revision: number;
}

/** The handle that has an address of a block; undefined if none has it. */
function holderOf(text: string, address: string): string | undefined {
  if (text === '') return undefined;
  const block = parseBlock(text);
  const index = block.allocations[addressesOf(block).indexOf(address)];
  return index === null || index === undefined ? undefined : block.attributes[index]?.handle_id;
}

/** A handle with more or fewer addresses in a block; empty without any. */
function counted(text: string, cidr: string, difference: number): string {
  const { block, ...rest }: StoredHandle = text === '' ? { block: {}, deleted: false } : JSON.parse(text);
  const count = (block[cidr] ?? 0) + difference;
  const remaining = Object.entries(block).filter(([name]) => name !== cidr);
  const counts = count > 0 ? [...remaining, [cidr, count] as const] : remaining;
  return counts.length === 0 ? '' : JSON.stringify({ ...rest, block: Object.fromEntries(counts) });
}

function addressesOf({ cidr, allocations }: StoredBlock): string[] {
  const parsed = parsePrefix(cidr);
  if (!parsed.ok) throw new Error(`${cidr} is not a prefix`);
  return allocations.map((_, ordinal) => formatAddress(addressAt(parsed.prefix, ordinal)));
}

/** Removes an allocation, and its attributes if no other address has them. */
function free(block: StoredBlock, ordinal: number): void {
  const index = block.allocations[ordinal];
  block.allocations[ordinal] = null;
  block.unallocated.push(ordinal);
  block.sequenceNumberForAllocation = Object.fromEntries(
    Object.entries(block.sequenceNumberForAllocation).filter(([name]) => name !== String(ordinal)),
  );
  if (index === null || index === undefined || block.allocations.includes(index)) return;
  block.attributes.splice(index, 1);
  block.allocations = block.allocations.map((each) => (each !== null && each > index ? each - 1 : each));
}

function parseBlock(text: string): StoredBlock {
  return JSON.parse(text.replace(/("sequenceNumber":)(\d+)/, '$1"$2"').replace(/("\d+":)(\d+)/g, '$1"$2"'));
}

function formatBlock(block: StoredBlock): string {
  return JSON.stringify(block)
    .replace(/("sequenceNumber":)"(\d+)"/, '$1$2')
    .replace(/("\d+":)"(\d+)"/g, '$1$2');
}
