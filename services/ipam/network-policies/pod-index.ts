import type { SetMember } from '@podwire/shared/network-policy/policy';

import { AddressSet, contentHash, memberOf, type Member } from './address-sets.js';
import { selects, type Labels } from './label-selector.js';
import type { Namespace, Pod, PodName } from './pods.js';
import type { PodSelector, PortName } from './policy-spec.js';

export interface IndexedPod {
  readonly pod: Pod;
  /** Whether its namespace's labels are known, and so which policies select it. */
  readonly isKnown: boolean;
  /** Its addresses. */
  readonly members: readonly Member[];
  readonly selections: ReadonlySet<Selection>;
}

/** The pods that a selector selects. All policies with an equal selector share it. */
export interface Selection {
  /** Equal for equal selectors. */
  readonly text: string;
  readonly pods: ReadonlySet<IndexedPod>;
}

export interface PodIndexOptions {
  readonly addressesOf: (pod: Pod) => readonly SetMember[];
  /** A pod is new, or its fields or selections have changed. */
  readonly podChanged: (pod: IndexedPod, before: Pod | undefined) => void;
  readonly podRemoved: (pod: IndexedPod) => void;
  readonly setChanged: (set: AddressSet) => void;
}

interface PodEntry extends IndexedPod {
  pod: Pod;
  isKnown: boolean;
  members: readonly Member[];
  readonly selections: Set<SelectionEntry>;
}

interface SelectionEntry extends Selection {
  readonly selector: PodSelector;
  readonly pods: Set<PodEntry>;
  /** Sets of the selected pods, by the text of the port. */
  readonly sets: Map<string, SetEntry>;
  usersCount: number;
}

interface SetEntry {
  readonly set: AddressSet;
  /** Undefined: addresses without ports. */
  readonly port: PortName | undefined;
  usersCount: number;
}

interface NamespaceEntry {
  readonly name: string;
  /** Labels; undefined before the namespace is known. */
  labels: Labels | undefined;
  readonly pods: Map<string, PodEntry>;
  /** Selections that cover the namespace. */
  readonly selections: Set<SelectionEntry>;
}

/**
 * Namespaces, pods and the selectors of policies: which selector selects which pods. What makes it hard: a cluster has 50,000
 * pods and thousands of selectors, so a change of a pod evaluates the selectors that cover its namespace alone, and changes only
 * the sets that the pod enters or leaves.
 */
export class PodIndex {
  readonly #options: PodIndexOptions;
  readonly #namespaces = new Map<string, NamespaceEntry>();
  readonly #selections = new Map<string, SelectionEntry>();
  readonly #sets = new Map<AddressSet, { readonly selection: SelectionEntry; readonly text: string }>();
  /** Pods of each node, by `<namespace>/<name>`. */
  readonly #nodes = new Map<string, Map<string, PodEntry>>();

  constructor(options: PodIndexOptions) {
    this.#options = options;
  }

  /** Pods of a node, by `<namespace>/<name>`. */
  podsOf(nodeName: string): ReadonlyMap<string, IndexedPod> {
    return this.#nodes.get(nodeName) ?? NO_PODS;
  }

  /** Sets that have the addresses of a pod. */
  setsOf({ namespace, name }: PodName): readonly AddressSet[] {
    const { selections = [] } = this.#namespaces.get(namespace)?.pods.get(name) ?? {};
    return [...selections].flatMap(({ sets }) => [...sets.values()].map(({ set }) => set));
  }

  /** Names of the nodes with pods. */
  *nodeNames(): Generator<string, void, void> {
    for (const name of this.#nodes.keys()) if (name !== '') yield name;
  }

  find({ namespace, name }: PodName): IndexedPod | undefined {
    return this.#namespaces.get(namespace)?.pods.get(name);
  }

  /** Every pod. */
  *pods(): Generator<IndexedPod, void, void> {
    for (const { pods } of this.#namespaces.values()) yield* pods.values();
  }

  /** `<namespace>/<name>` of every pod. */
  *podKeys(): Generator<string, void, void> {
    for (const { pod } of this.pods()) yield `${pod.namespace}/${pod.name}`;
  }

  /** Names of the known namespaces. */
  *namespaceNames(): Generator<string, void, void> {
    for (const { name, labels } of this.#namespaces.values()) if (labels) yield name;
  }

  setNamespace({ name, labels }: Namespace): void {
    const namespace = this.#namespace(name);
    if (namespace.labels && isSame(namespace.labels, labels)) return;
    this.#relabel(namespace, labels);
  }

  removeNamespace(name: string): void {
    const namespace = this.#namespaces.get(name);
    if (!namespace) return;
    this.#relabel(namespace, undefined);
    this.#dropIfUnused(namespace);
  }

  setPod(pod: Pod): void {
    if (!pod.isNetworked) {
      this.removePod(pod);
      return;
    }
    const namespace = this.#namespace(pod.namespace);
    const entry = namespace.pods.get(pod.name);
    if (entry && isSame(entry.pod, pod)) return;
    const before = entry?.pod;
    const members = this.#membersOf(pod, entry?.members ?? []);
    if (entry) {
      this.#changeMembers(entry, pod, members);
      this.#match(entry, namespace);
      if (before?.nodeName !== pod.nodeName) {
        this.#leaveNode(entry, before?.nodeName ?? '');
        this.#enterNode(entry);
      }
      this.#options.podChanged(entry, before);
      return;
    }
    const added = { pod, members, isKnown: namespace.labels !== undefined, selections: new Set<SelectionEntry>() };
    namespace.pods.set(pod.name, added);
    this.#enterNode(added);
    this.#match(added, namespace);
    this.#options.podChanged(added, undefined);
  }

  removePod({ namespace: namespaceName, name }: PodName): void {
    const namespace = this.#namespaces.get(namespaceName);
    const entry = namespace?.pods.get(name);
    if (!namespace || !entry) return;
    for (const selection of entry.selections) this.#leave(entry, selection);
    namespace.pods.delete(name);
    this.#leaveNode(entry, entry.pod.nodeName);
    this.#options.podRemoved(entry);
    this.#dropIfUnused(namespace);
  }

  /** The addresses of a pod may have changed. */
  readAddresses({ namespace, name }: PodName): void {
    const entry = this.#namespaces.get(namespace)?.pods.get(name);
    if (entry) this.#changeMembers(entry, entry.pod, this.#membersOf(entry.pod, entry.members));
  }

  /** The selection of a selector; call {@link release} for each call. */
  acquire(selector: PodSelector): Selection {
    return this.#acquire(selector);
  }

  release(selection: Selection): void {
    const entry = this.#selections.get(selection.text);
    if (entry) this.#release(entry);
  }

  /**
   * The set of the addresses of selected pods; call {@link releaseSet} for each call.
   * @param port - only ports of that name
   */
  acquireSet(selector: PodSelector, port?: PortName): AddressSet {
    const selection = this.#acquire(selector);
    const text = port ? `${port.protocol ?? 'any'} ${port.name}` : '';
    const known = selection.sets.get(text);
    if (known) {
      known.usersCount++;
      return known.set;
    }
    const set = new AddressSet(`${port ? 'p' : 'a'}-${contentHash(`${text} ${selection.text}`)}`);
    for (const pod of selection.pods) for (const member of contribution(pod, port)) set.add(member);
    selection.sets.set(text, { set, port, usersCount: 1 });
    this.#sets.set(set, { selection, text });
    return set;
  }

  releaseSet(set: AddressSet): void {
    const place = this.#sets.get(set);
    const entry = place?.selection.sets.get(place.text);
    if (!place || !entry) return;
    if (--entry.usersCount === 0) {
      place.selection.sets.delete(place.text);
      this.#sets.delete(set);
    }
    this.#release(place.selection);
  }

  #acquire(selector: PodSelector): SelectionEntry {
    const text = JSON.stringify([selector.namespaces, selector.pods]);
    const known = this.#selections.get(text);
    if (known) {
      known.usersCount++;
      return known;
    }
    const selection = { text, selector, pods: new Set<PodEntry>(), sets: new Map<string, SetEntry>(), usersCount: 1 };
    this.#selections.set(text, selection);
    const { namespaces } = selector;
    const covered = typeof namespaces === 'string' ? [this.#namespace(namespaces)] : [...this.#namespaces.values()];
    for (const namespace of covered) {
      if (!covers(selector, namespace)) continue;
      namespace.selections.add(selection);
      for (const entry of namespace.pods.values())
        if (selects(selector.pods, entry.pod.labels)) this.#enter(entry, selection);
    }
    return selection;
  }

  #release(selection: SelectionEntry): void {
    if (--selection.usersCount > 0) return;
    this.#selections.delete(selection.text);
    for (const entry of selection.pods) entry.selections.delete(selection);
    for (const namespace of this.#namespaces.values())
      if (namespace.selections.delete(selection)) this.#dropIfUnused(namespace);
  }

  #namespace(name: string): NamespaceEntry {
    const known = this.#namespaces.get(name);
    if (known) return known;
    const made = { name, labels: undefined, pods: new Map<string, PodEntry>(), selections: new Set<SelectionEntry>() };
    this.#namespaces.set(name, made);
    return made;
  }

  #dropIfUnused({ name, labels, pods, selections }: NamespaceEntry): void {
    if (!labels && pods.size === 0 && selections.size === 0) this.#namespaces.delete(name);
  }

  #relabel(namespace: NamespaceEntry, labels: Labels | undefined): void {
    namespace.labels = labels;
    for (const selection of this.#selections.values()) {
      if (covers(selection.selector, namespace)) namespace.selections.add(selection);
      else namespace.selections.delete(selection);
    }
    for (const entry of namespace.pods.values()) {
      entry.isKnown = labels !== undefined;
      this.#match(entry, namespace);
      this.#options.podChanged(entry, entry.pod);
    }
  }

  /** Lets the pod enter and leave selections by its present labels. */
  #match(entry: PodEntry, { selections }: NamespaceEntry): void {
    const { labels } = entry.pod;
    for (const selection of entry.selections)
      if (!selections.has(selection) || !selects(selection.selector.pods, labels)) this.#leave(entry, selection);
    for (const selection of selections)
      if (!entry.selections.has(selection) && selects(selection.selector.pods, labels)) this.#enter(entry, selection);
  }

  #enter(entry: PodEntry, selection: SelectionEntry): void {
    selection.pods.add(entry);
    entry.selections.add(selection);
    for (const { set, port } of selection.sets.values()) this.#change(set, contribution(entry, port), []);
  }

  #leave(entry: PodEntry, selection: SelectionEntry): void {
    selection.pods.delete(entry);
    entry.selections.delete(selection);
    for (const { set, port } of selection.sets.values()) this.#change(set, [], contribution(entry, port));
  }

  #changeMembers(entry: PodEntry, pod: Pod, members: readonly Member[]): void {
    const before = { pod: entry.pod, members: entry.members };
    const hasChanged = members !== entry.members || !isSame(pod.ports, entry.pod.ports);
    entry.pod = pod;
    entry.members = members;
    if (!hasChanged) return;
    for (const selection of entry.selections)
      for (const { set, port } of selection.sets.values())
        this.#change(set, contribution(entry, port), contribution(before, port));
  }

  /** Adds before it removes, so that a member of both stays without a change. */
  #change(set: AddressSet, added: readonly Member[], removed: readonly Member[]): void {
    let hasChanged = false;
    for (const member of added) hasChanged = set.add(member) || hasChanged;
    for (const member of removed) hasChanged = set.remove(member) || hasChanged;
    if (hasChanged) this.#options.setChanged(set);
  }

  /** @param before - returned if they are the same; a member that stays keeps its hash */
  #membersOf(pod: Pod, before: readonly Member[]): readonly Member[] {
    const members = this.#options
      .addressesOf(pod)
      .map((value) => before.find((each) => has(each, value)) ?? memberOf(value));
    const isUnchanged = members.length === before.length && members.every((each, index) => each === before[index]);
    return isUnchanged ? before : members;
  }

  #enterNode(entry: PodEntry): void {
    const { namespace, name, nodeName } = entry.pod;
    const pods = this.#nodes.get(nodeName) ?? new Map<string, PodEntry>();
    pods.set(`${namespace}/${name}`, entry);
    this.#nodes.set(nodeName, pods);
  }

  #leaveNode({ pod: { namespace, name } }: PodEntry, nodeName: string): void {
    const pods = this.#nodes.get(nodeName);
    pods?.delete(`${namespace}/${name}`);
    if (pods?.size === 0) this.#nodes.delete(nodeName);
  }
}

const NO_PODS: ReadonlyMap<string, IndexedPod> = new Map();

function covers({ namespaces }: PodSelector, { name, labels }: NamespaceEntry): boolean {
  if (typeof namespaces === 'string') return namespaces === name;
  return labels !== undefined && selects(namespaces, labels);
}

/** The members that a pod contributes to a set. */
function contribution(
  { pod, members }: Pick<PodEntry, 'pod' | 'members'>,
  port: PortName | undefined,
): readonly Member[] {
  if (!port) return members;
  const named = pod.ports.filter(
    ({ name, protocol }) => name === port.name && (port.protocol === undefined || port.protocol === protocol),
  );
  const all = named.flatMap((each) =>
    members.map(({ value }) => memberOf({ ...value, protocol: each.protocol, port: each.port })),
  );
  return [...new Map(all.map((member) => [member.key, member])).values()];
}

function has({ value }: Member, { address, sequenceNumber }: SetMember): boolean {
  const { family } = address;
  return (
    value.address.value === address.value && value.address.family === family && value.sequenceNumber === sequenceNumber
  );
}

function isSame(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}
