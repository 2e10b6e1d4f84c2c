import type { KubernetesApi } from '@podwire/ipam/api-server/api';
import { formatJson, isArray, isObject, objectIn, type Json, type JsonObject } from '@podwire/ipam/records/json/json';
import { formatAddress } from '@podwire/shared/net/address';
import { addressAt, parsePrefix } from '@podwire/shared/net/prefix';

/** Attempts of a compare-and-swap, which concurrent writers make fail. */
const ATTEMPTS = 100;

const CONFLICT = 409;

interface Spec {
  readonly cidr: string;
  readonly allocations: readonly (number | null)[];
  readonly unallocated: readonly number[];
  readonly attributes: readonly JsonObject[];
  readonly sequenceNumber: bigint;
  readonly numbers: JsonObject;
}

/** Writes blocks of Calico's custom resources as Calico's plugin and tools do, one PUT of one block at a time. */
export class ForeignWriter {
  readonly #api: KubernetesApi;
  readonly #path: string;

  /** @param group - such as `projectcalico.org/v3` */
  constructor(api: KubernetesApi, group: string) {
    this.#api = api;
    this.#path = `/apis/${group}/ipamblocks`;
  }

  /**
   * Same as `calicoctl ipam release --from-report`: frees an address that the handle has.
   * @returns whether it was released
   */
  release(address: string, handle?: string): Promise<boolean> {
    return this.#change((spec) => {
      const ordinal = addressesOf(spec).indexOf(address);
      const index = ordinal < 0 ? null : (spec.allocations[ordinal] ?? null);
      if (index === null || spec.attributes[index]?.handle_id !== (handle ?? spec.attributes[index]?.handle_id))
        return undefined;
      const allocations = spec.allocations.map((each, at) => (at === ordinal ? null : each));
      const numbers = Object.fromEntries(Object.entries(spec.numbers).filter(([at]) => at !== String(ordinal)));
      return compact({ ...spec, allocations, numbers, unallocated: [...spec.unallocated, ordinal] });
    });
  }

  /** Takes a free address of any block, as Calico's plugin does on a node. @returns undefined if there is none */
  async allocate(handle: string, node: string): Promise<string | undefined> {
    let address: string | undefined;
    const isTaken = await this.#change((spec) => {
      const [ordinal, ...unallocated] = spec.unallocated;
      if (ordinal === undefined) return undefined;
      address = addressesOf(spec)[ordinal];
      const secondary = { namespace: 'default', node, pod: handle, timestamp: new Date().toISOString() };
      return {
        ...spec,
        unallocated,
        allocations: spec.allocations.map((each, at) => (at === ordinal ? spec.attributes.length : each)),
        attributes: [...spec.attributes, { handle_id: handle, secondary }],
        numbers: { ...spec.numbers, [ordinal]: spec.sequenceNumber },
      };
    });
    return isTaken ? address : undefined;
  }

  /** Changes the first block for which there is a change. @returns whether there was one */
  async #change(change: (spec: Spec) => Spec | undefined): Promise<boolean> {
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const { body } = await this.#api.send({ method: 'GET', path: this.#path });
      const items: readonly Json[] = isObject(body) && isArray(body.items) ? body.items : [];
      const found = firstChange(items, change);
      if (!found) return false;
      const { cidr, sequenceNumber, numbers, ...rest } = found.spec;
      const spec = {
        ...objectIn(found.block, 'spec'),
        ...{ ...rest, cidr, sequenceNumber: sequenceNumber + 1n, sequenceNumberForAllocation: numbers },
      };
      const path = `${this.#path}/${textIn(objectIn(found.block, 'metadata'), 'name')}`;
      const json = formatJson({ ...found.block, spec });
      const { status } = await this.#api.send({ method: 'PUT', path, json });
      if (status !== CONFLICT) return status < 300;
    }
    throw new Error(`a block was changed by another writer at each of ${ATTEMPTS} attempts`);
  }
}

function firstChange(items: readonly Json[], change: (spec: Spec) => Spec | undefined) {
  for (const block of items) {
    const spec = isObject(block) ? change(specOf(block)) : undefined;
    if (isObject(block) && spec) return { block, spec };
  }
  return undefined;
}

/** Removes attributes without an address. */
function compact(spec: Spec): Spec {
  const used = spec.attributes.map((_, index) => index).filter((index) => spec.allocations.includes(index));
  return {
    ...spec,
    attributes: spec.attributes.filter((_, index) => used.includes(index)),
    allocations: spec.allocations.map((index) => (index === null ? null : used.indexOf(index))),
  };
}

function addressesOf({ cidr, allocations }: Spec): string[] {
  const parsed = parsePrefix(cidr);
  if (!parsed.ok) throw new Error(`${cidr} ${parsed.fault}`);
  return allocations.map((_, ordinal) => formatAddress(addressAt(parsed.prefix, ordinal)));
}

function specOf(block: JsonObject): Spec {
  const spec = objectIn(block, 'spec');
  const number = spec.sequenceNumber;
  return {
    cidr: textIn(spec, 'cidr'),
    allocations: arrayIn(spec, 'allocations').map((index) => (index === null ? null : Number(index))),
    unallocated: arrayIn(spec, 'unallocated').map(Number),
    attributes: arrayIn(spec, 'attributes').flatMap((each) => (isObject(each) ? [each] : [])),
    sequenceNumber: typeof number === 'bigint' ? number : BigInt(Number(number)),
    numbers: objectIn(spec, 'sequenceNumberForAllocation'),
  };
}

function arrayIn(object: JsonObject, name: string): readonly Json[] {
  const value = object[name];
  return isArray(value) ? value : [];
}

function textIn(object: JsonObject, name: string): string {
  const value = object[name];
  return typeof value === 'string' ? value : '';
}
