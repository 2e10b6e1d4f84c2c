import type { Link } from '@podwire/netlink';

import { isPodInterface, type ObservedDevice } from '../../routes/observed.js';

/** What a wiring gives a pod's interface before it is up. */
type PodLink = Pick<Link, 'name' | 'alias' | 'mac' | 'mtuBytes' | 'up'>;

/** The names behind the indexes that the kernel speaks in, as of its last word. */
export class NodeLinks {
  readonly #names = new Map<number, string>();
  readonly #indexes = new Map<string, number>();
  /** Pods' interfaces as they were last told of, or read first. */
  readonly #pods = new Map<number, PodLink>();
  /** Those that Podwire has deleted itself, until that is told: whatever is told of them until then is of no account. */
  readonly #gone = new Set<number>();

  /** What is read may be ahead of what was told: what was done to a pod's interface is still told of, by the name that it had. */
  reset(links: readonly Link[]): void {
    const told = new Map(this.#pods);
    this.#names.clear();
    this.#indexes.clear();
    this.#pods.clear();
    for (const link of links) {
      this.put(link);
      const pod = told.get(link.index);
      if (pod) this.#pods.set(link.index, pod);
    }
  }

  put(link: Pick<Link, 'index'> & PodLink): void {
    const { index, name, alias, mac, mtuBytes, up } = link;
    if (this.#gone.has(index)) return;
    const earlier = this.#names.get(index);
    if (earlier !== undefined && earlier !== name) this.forget(earlier);
    this.#names.set(index, name);
    this.#indexes.set(name, index);
    if (isPodInterface(link) || this.#pods.has(index)) this.#pods.set(index, { name, alias, mac, mtuBytes, up });
  }

  remove({ index, name }: Pick<Link, 'index' | 'name'>): void {
    this.#names.delete(index);
    this.#pods.delete(index);
    this.#gone.delete(index);
    if (this.#indexes.get(name) === index) this.#indexes.delete(name);
  }

  /** The next selection is by name. */
  forget(name: string): void {
    this.#indexes.delete(name);
  }

  /**
   * The link of that name is deleted by Podwire itself. What was told of it and of all that is on it may be heard later than what is
   * told of the next one of that name, and would be taken for that.
   * @returns takes it back, where the kernel refuses the deletion
   */
  deleting(name: string): () => void {
    const index = this.#indexes.get(name);
    this.forget(name);
    if (index === undefined) return () => undefined;
    this.#names.delete(index);
    this.#gone.add(index);
    return () => {
      if (!this.#gone.delete(index)) return;
      this.#names.set(index, name);
      this.#indexes.set(name, index);
    };
  }

  /** Whether Podwire has deleted the link itself, and the kernel has not told it so far. */
  isGone(index: number): boolean {
    return this.#gone.has(index);
  }

  nameOf(index: number | null): string | undefined {
    return index === null ? undefined : this.#names.get(index);
  }

  /** Name of the pod's interface with this index, as it was last told; undefined where it is none. */
  podNameOf(index: number): string | undefined {
    return this.#pods.get(index)?.name;
  }

  /** Whether a pod's interface was up, and is another now than it was then. */
  isChangedPod({ index, name, alias, mac, mtuBytes, up }: Pick<Link, 'index'> & PodLink): boolean {
    const known = this.#pods.get(index);
    const isSame =
      known?.name === name &&
      known.alias === alias &&
      known.mac === mac &&
      known.mtuBytes === mtuBytes &&
      known.up === up;
    return known?.up === true && !isSame;
  }

  /** By index, where that is known, the kernel need not be asked for it first. */
  select(name: string): { readonly index: number } | { readonly name: string } {
    const index = this.#indexes.get(name);
    return index === undefined ? { name } : { index };
  }

  toDevice({ name, kind, up, mac, mtuBytes, vxlan, ipip }: Link): ObservedDevice {
    return { name, kind, up, mac, mtuBytes, tunnel: this.#toTunnel({ vxlan, ipip }) };
  }

  #toTunnel({ vxlan, ipip }: Pick<Link, 'vxlan' | 'ipip'>): ObservedDevice['tunnel'] {
    if (ipip) return { kind: 'ipip', local: ipip.local ?? undefined, remote: ipip.remote ?? undefined };
    if (!vxlan) return undefined;
    const { vni, port, local, group, parentIndex, learning: isLearning, external: isExternal } = vxlan;
    return {
      kind: 'vxlan',
      vni,
      port,
      local: local ?? undefined,
      // One that has vanished from what is known is no wanted one.
      parent: parentIndex === null ? undefined : (this.nameOf(parentIndex) ?? `link ${parentIndex}`),
      remote: group ?? undefined,
      isLearning,
      isExternal,
    };
  }
}
