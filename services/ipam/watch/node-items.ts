import type { Item } from './item.js';
import { nodeNameOf } from './watched.js';

const NONE: ReadonlyMap<string, Item> = new Map();

/** Items of one kind by the node they are of. Kept from when a node's are first asked for: most who watch want those of all nodes. */
export class NodeItems {
  readonly #all: ReadonlyMap<string, Item>;
  #byNode: Map<string, Map<string, Item>> | undefined;

  /** @param all - the items by their keys, in which each change is made before it is told here */
  constructor(all: ReadonlyMap<string, Item>) {
    this.#all = all;
  }

  /** By their keys. */
  of(nodeName: string): ReadonlyMap<string, Item> {
    this.#byNode ??= this.#sort();
    return this.#byNode.get(nodeName) ?? NONE;
  }

  made(item: Item): void {
    if (this.#byNode) add(this.#byNode, item);
  }

  /** It keeps its place in the order of its node's where it stays on that node. */
  changed(item: Item, before: Item['object']): void {
    if (!this.#byNode || nodeNameOf(item.object) === nodeNameOf(before)) return;
    this.removed(item.key, before);
    add(this.#byNode, item);
  }

  removed(key: string, object: Item['object']): void {
    if (!this.#byNode) return;
    const nodeName = nodeNameOf(object);
    const ofNode = this.#byNode.get(nodeName);
    ofNode?.delete(key);
    if (ofNode?.size === 0) this.#byNode.delete(nodeName);
  }

  #sort(): Map<string, Map<string, Item>> {
    const byNode = new Map<string, Map<string, Item>>();
    for (const item of this.#all.values()) add(byNode, item);
    return byNode;
  }
}

function add(byNode: Map<string, Map<string, Item>>, item: Item): void {
  const nodeName = nodeNameOf(item.object);
  const ofNode = byNode.get(nodeName);
  if (ofNode) ofNode.set(item.key, item);
  else byNode.set(nodeName, new Map([[item.key, item]]));
}
