import { execFileSync } from 'node:child_process';

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
  readonly block: Record<string, number>;
}

/** Writes to the datastore as Calico's tools and its plugin do, beside running replicas of podwire-ipam. */
export class CalicoWriter {
  readonly #etcd: EtcdServer;

  constructor(etcd: EtcdServer) {
    this.#etcd = etcd;
  }

  /** Like `calicoctl ipam release --ip`: block and handle lose each address; endpoints stay as they are. */
  release(addresses: readonly string[]): void {
    for (const address of addresses) {
      const key = this.#blockKeyOf(address);
      let handle = '';
      this.#change(key, (text) => {
        const block = parseBlock(text);
        const ordinal = addressesOf(block).indexOf(address);
        const index = block.allocations[ordinal] ?? undefined;
        if (index === undefined) throw new Error(`${address} is not allocated`);
        handle = block.attributes[index]?.handle_id ?? '';
        free(block, ordinal);
        return formatBlock(block);
      });
      this.#count(handle, parseBlock(this.#read(key).text).cidr, -1);
    }
  }

  /**
   * Allocates free addresses of the existing blocks, one for each container, as Calico's plugin does on a node.
   * @returns the addresses; fewer when there are no more
   */
  allocate(node: string, containerIds: readonly string[]): string[] {
    const waiting = [...containerIds];
    return [...this.#etcd.dump(BLOCKS).keys()].flatMap((key) => {
      const taken: string[] = [];
      for (let id = waiting[0]; id !== undefined; id = waiting[0]) {
        const address = this.#allocateIn(key, { node, handle: `k8s-pod-network.${id}`, pod: id });
        if (address === undefined) break;
        waiting.shift();
        taken.push(address);
      }
      return taken;
    });
  }

  /** Like `calicoctl datastore migrate lock`. */
  lock(): void {
    this.#setReady(false);
  }

  /** Like `calicoctl datastore migrate unlock`. */
  unlock(): void {
    this.#setReady(true);
  }

  #setReady(datastoreReady: boolean): void {
    this.#change(CLUSTER, (text) => {
      const record: { spec: object } = JSON.parse(text);
      return JSON.stringify({ ...record, spec: { ...record.spec, datastoreReady } });
    });
  }

  #allocateIn(
    key: string,
    { node, handle, pod }: { readonly node: string; readonly handle: string; readonly pod: string },
  ): string | undefined {
    let address: string | undefined;
    let cidr = '';
    this.#change(key, (text) => {
      const block = parseBlock(text);
      const ordinal = block.unallocated.shift();
      address = ordinal === undefined ? undefined : addressesOf(block)[ordinal];
      if (ordinal === undefined) return text;
      cidr = block.cidr;
      const secondary = { namespace: 'default', node, pod, timestamp: new Date().toISOString() };
      block.allocations[ordinal] = block.attributes.push({ handle_id: handle, secondary }) - 1;
      block.sequenceNumberForAllocation = { ...block.sequenceNumberForAllocation, [ordinal]: block.sequenceNumber };
      block.sequenceNumber = String(BigInt(block.sequenceNumber) + 1n);
      return formatBlock(block);
    });
    if (address !== undefined) this.#count(handle, cidr, 1);
    return address;
  }

  #count(handle: string, cidr: string, difference: number): void {
    this.#change(HANDLES + handle, (text) => {
      const { block, ...rest }: StoredHandle = text === '' ? { block: {}, deleted: false } : JSON.parse(text);
      const count = (block[cidr] ?? 0) + difference;
      const others = Object.entries(block).filter(([name]) => name !== cidr);
      const counts = count > 0 ? [...others, [cidr, count]] : others;
      return counts.length === 0 ? '' : JSON.stringify({ ...rest, block: Object.fromEntries(counts) });
    });
  }

  #blockKeyOf(address: string): string {
    const found = [...this.#etcd.dump(BLOCKS)].find(([, text]) => addressesOf(parseBlock(text)).includes(address));
    if (!found) throw new Error(`${address} is in no block`);
    return found[0];
  }

  /** A compare-and-swap; an empty text is a missing key. */
  #change(key: string, change: (text: string) => string): void {
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const { text, revision } = this.#read(key);
      const next = change(text);
      if (next === text) return;
      const operation = next === '' ? `del ${key}` : `put ${key} ${JSON.stringify(next)}`;
      const input = `mod("${key}") = "${revision}"\n\n${operation}\n\n\n`;
      const answer = execFileSync('etcdctl', [`--endpoints=${this.#etcd.url}`, 'txn'], {
        ...{ encoding: 'utf8', input },
        env: { PATH: process.env.PATH, ETCDCTL_API: '3' },
      });
      if (answer.startsWith('SUCCESS')) return;
    }
    throw new Error(`${key} was changed by others at each of ${ATTEMPTS} attempts`);
  }

  #read(key: string): { readonly text: string; readonly revision: number } {
    const answer: { kvs?: { value?: string; mod_revision: number }[] } = JSON.parse(
      this.#etcd.ctl('get', key, '--write-out=json'),
    );
    const [found] = answer.kvs ?? [];
    const text = Buffer.from(found?.value ?? '', 'base64').toString();
    return { text, revision: found?.mod_revision ?? 0 };
  }
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
