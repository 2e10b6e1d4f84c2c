import type { PodName } from '@podwire/shared/attachment/allocation';
import { Failure } from '@podwire/shared/failure/failure';

import { formatList, type Condition } from '../conditions/conditions.js';
import { removal } from '../nft/table.js';
import type { TableReconcilerOptions } from '../nft/table-reconciler.js';
import type { FilteredPod, PodFilter } from '../pods/kernel.js';
import type { PolicyStore } from './policy-store.js';
import { PolicyTable, type PodFiltering } from './policy-table.js';
import { POLICY_TABLE } from './rules.js';
import type { PolicyView, ViewChange } from './policy-view.js';

/** The fields of a pod that its policies depend on. */
type PolicyPod = Pick<FilteredPod, 'hostInterfaceName' | 'pod'>;

const OPEN: PodFiltering = { ingress: undefined, egress: undefined };

interface PolicyFilterOptions extends Omit<TableReconcilerOptions, 'table'> {
  readonly view: PolicyView;
  readonly store: PolicyStore;
}

/** Enforces the network policies of this node's pods: a pod's connections are filtered before its interface is up. */
export class PolicyFilter implements PodFilter {
  readonly #view: PolicyView;
  readonly #store: PolicyStore;
  readonly #table: PolicyTable;
  readonly #pods = new Map<string, PodName | undefined>();
  /** Interfaces of pods that ran before policies were turned on: their connections go on until the policies are known. */
  readonly #earlier = new Set<string>();

  constructor({ view, store, ...options }: PolicyFilterOptions) {
    this.#view = view;
    this.#store = store;
    this.#table = new PolicyTable(view, options);
  }

  /**
   * Filters the recorded pods by the stored policies. Call once, before any pod is wired.
   * @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED; it is retried automatically
   */
  async start(pods: readonly PolicyPod[]): Promise<void> {
    const isFirst = this.#store.load(this.#view) === 'none';
    for (const { hostInterfaceName, pod } of pods) {
      this.#pods.set(hostInterfaceName, pod);
      if (isFirst) this.#earlier.add(hostInterfaceName);
    }
    this.#store.save();
    await this.#table.start(new Map([...this.#pods.keys()].map((device) => [device, this.#filtering(device)])));
  }

  /** @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED; the pod is filtered with the next success, unless {@link forget} comes first */
  install({ hostInterfaceName, pod }: PolicyPod): Promise<void> {
    this.#pods.set(hostInterfaceName, pod);
    return this.#table.setPod(hostInterfaceName, this.#filtering(hostInterfaceName));
  }

  /** @throws Failure as {@link install} */
  async forget(hostInterfaceName: string): Promise<void> {
    this.#earlier.delete(hostInterfaceName);
    if (this.#pods.delete(hostInterfaceName)) await this.#table.setPod(hostInterfaceName, undefined);
  }

  /**
   * Enforces a change of the view, which the store has afterwards too. Resolves when it is in force.
   * @throws Failure as {@link start}
   */
  async update(change: ViewChange): Promise<void> {
    if (this.#view.isCurrent) this.#earlier.clear();
    if (change.hasPods) {
      this.#store.save();
      for (const device of this.#pods.keys()) this.#table.notePod(device, this.#filtering(device));
    }
    if (change.sets.size > 0) this.#store.saveSetsLater();
    await this.#table.update(change);
  }

  /** Whether the kernel reports dropped packets; undefined: not known yet. */
  get logsDrops(): boolean | undefined {
    return this.#table.hasLogs;
  }

  /** The pod at an interface with its wanted filters; undefined: no pod of this node. */
  podAt(device: string): { readonly pod: PodName | undefined; readonly filtering: PodFiltering } | undefined {
    return this.#pods.has(device) ? { pod: this.#pods.get(device), filtering: this.#filtering(device) } : undefined;
  }

  conditions(): readonly Condition[] {
    const { failure, refused } = this.#table;
    const found: Condition[] = [];
    if (failure) {
      const message = `network policies cannot be enforced, and pods are refused: ${failure.message}`;
      // A node that cannot filter must not start pods.
      const blockedFamilies = failure.code === 'KERNEL_UNSUPPORTED' ? ([4, 6] as const) : [];
      found.push({ reason: 'PoliciesNotEnforced', message, blockedFamilies });
    }
    for (const [id, { message: reason }] of refused) {
      const message = `pods with the policies ${this.#policiesOf(id)} are isolated, as nft refuses their rules: ${reason}`;
      found.push({ reason: 'PoliciesNotEnforced', message });
    }
    const unknown = [...this.#pods].filter(([device]) => this.#isUnknown(device));
    if (unknown.length > 0) {
      const names = unknown.map(([device, pod]) => (pod ? `${pod.namespace}/${pod.name}` : device));
      const message = `${names.length} pods are isolated until podwire-ipam sends their policies: ${formatList(names)}; check that it runs`;
      found.push({ reason: 'PodPolicyUnknown', message });
    }
    return found;
  }

  /** Leaves the table in force. */
  async stop(): Promise<void> {
    await this.#table.stop();
    this.#store.stop();
  }

  #filtering(device: string): PodFiltering {
    return this.#earlier.has(device) ? OPEN : this.#view.filtering(this.#pods.get(device));
  }

  #isUnknown(device: string): boolean {
    return Object.values(this.#filtering(device)).includes('isolated');
  }

  #policiesOf(profile: string): string {
    const { isolatedBy = [], admin = [], baseline = [] } = this.#view.profiles.get(profile) ?? {};
    return formatList([...isolatedBy, ...new Set([...admin, ...baseline].map(({ policy }) => policy))]);
  }
}

/** Deletes the table of a node whose policies are off. @throws Failure KERNEL_REFUSED */
export async function endPolicies(nft: TableReconcilerOptions['nft'], store: PolicyStore): Promise<void> {
  store.remove();
  try {
    if (await nft.read(POLICY_TABLE)) await nft.apply(removal(POLICY_TABLE));
  } catch (error) {
    // Without nftables no table exists.
    if (!(error instanceof Failure) || error.code !== 'KERNEL_UNSUPPORTED') throw error;
  }
}
