import type { EndpointRecord } from '../../records/view.js';
import { SortedTexts } from './sorted-runs.js';

/** The keys of endpoints: in their order, those of other writers, and by container. */
export class EndpointIndex {
  readonly #keys = new SortedTexts();
  readonly #foreign = new Set<string>();
  /**
   * By a hash of the container's ID, which takes a fraction of the memory. Keys of other containers
   * may share it.
   */
  readonly #ofContainers = new Map<number, string | readonly string[]>();

  add(key: string, record: EndpointRecord): void {
    this.#keys.add(key);
    if (record.kind === 'foreignEndpoint') this.#foreign.add(key);
    for (const containerId of containerIdsOf(record)) this.#addToContainer(numberOf(containerId), key);
  }

  delete(key: string, record: EndpointRecord): void {
    this.#keys.delete(key);
    if (record.kind === 'foreignEndpoint') this.#foreign.delete(key);
    for (const containerId of containerIdsOf(record)) this.#deleteFromContainer(numberOf(containerId), key);
  }

  /** In their order. */
  behind(key: string): Iterable<string> {
    return this.#keys.behind(key);
  }

  foreign(): Iterable<string> {
    return this.#foreign;
  }

  /** The endpoints of the container, and possibly of other containers (hash collision). */
  ofContainer(containerId: string): readonly string[] {
    const keys = this.#ofContainers.get(numberOf(containerId));
    return keys === undefined ? [] : [keys].flat();
  }

  #addToContainer(number: number, key: string): void {
    const known = this.#ofContainers.get(number);
    if (known === undefined) this.#ofContainers.set(number, key);
    else if (![known].flat().includes(key)) this.#ofContainers.set(number, [known, key].flat());
  }

  #deleteFromContainer(number: number, key: string): void {
    const [first, ...rest] = [this.#ofContainers.get(number) ?? []].flat().filter((known) => known !== key);
    if (first === undefined) this.#ofContainers.delete(number);
    else this.#ofContainers.set(number, rest.length === 0 ? first : [first, ...rest]);
  }
}

/** The containers of an endpoint, and of those whose key it took over. */
export function containerIdsOf(record: EndpointRecord): string[] {
  if (record.kind === 'foreignEndpoint') return [record.value.containerId];
  const { attachment, replaced = [] } = record.value;
  const others = replaced.map((one) =>
    one.kind === 'endpoint' ? one.value.attachment.containerId : one.value.containerId,
  );
  return [...new Set([attachment.containerId, ...others])];
}

/** Not below 0, and small enough for V8 to store without a heap object. */
function numberOf(text: string): number {
  let number = 0;
  for (let index = 0; index < text.length; index++) number = (Math.imul(number, 31) + text.charCodeAt(index)) | 0;
  return number & 0x3fff_ffff;
}
