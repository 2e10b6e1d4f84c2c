import { formatAddress } from '@podwire/shared/net/address';
import type { Direction } from '@podwire/shared/network-policy/policy';

import { formatList, type Condition } from '../conditions/conditions.js';
import type { TableReconcilerOptions } from '../nft/table-reconciler.js';
import type { FilteredPod, PodFilter } from '../pods/kernel.js';
import {
  LiveConnections,
  mayForbid,
  type ConnectionEvents,
  type ConnectionKernel,
  type JudgedPod,
} from './live-connections.js';
import type { PolicyStore } from './policy-store.js';
import { PolicyTable, type PodFiltering, type TablePod } from './policy-table.js';
import type { Filtering, PolicyView, ViewChange } from './policy-view.js';

/** The fields of a pod that its policies depend on. */
type PolicyPod = Pick<FilteredPod, 'hostInterfaceName' | 'pod' | 'addresses'>;

const OPEN: PodFiltering = { ingress: undefined, egress: undefined };

interface PolicyFilterOptions extends Omit<TableReconcilerOptions, 'table' | 'events'> {
  readonly events: TableReconcilerOptions['events'] & ConnectionEvents;
  readonly kernel: ConnectionKernel;
  readonly view: PolicyView;
  readonly store: PolicyStore;
  /** Whether kube-proxy forwards connections to Services by IPVS, whose packets pass other hooks. */
  readonly usesIpvs: () => boolean;
}

/** Enforces the network policies of this node's pods: a pod's connections are filtered before its interface is up. */
export class PolicyFilter implements PodFilter {
  readonly #view: PolicyView;
  readonly #store: PolicyStore;
  readonly #usesIpvs: () => boolean;
  readonly #table: PolicyTable;
  readonly #connections: LiveConnections;
  readonly #pods = new Map<string, PolicyPod>();
  /** The filters by which each pod's connections were judged last, as text. */
  readonly #judged = new Map<string, string>();
  /** Interfaces of pods that ran before policies were turned on: their connections go on until the policies are known. */
  readonly #earlier = new Set<string>();

  constructor({ view, store, kernel, usesIpvs, ...options }: PolicyFilterOptions) {
    this.#view = view;
    this.#store = store;
    this.#usesIpvs = usesIpvs;
    this.#connections = new LiveConnections({ ...options, kernel, sets: view, pods: () => this.#judgedPods() });
    this.#table = new PolicyTable(view, {
      ...options,
      onReplaced: () => this.#judge(this.#pods.keys()),
    });
  }

  /**
   * Filters the recorded pods by the stored policies. Call once, before any pod is wired.
   * @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED; it is retried automatically
   */
  async start(pods: readonly PolicyPod[]): Promise<void> {
    const isFirst = this.#store.load(this.#view) === 'none';
    for (const pod of pods) {
      const { hostInterfaceName } = pod;
      this.#pods.set(hostInterfaceName, pod);
      if (isFirst) this.#earlier.add(hostInterfaceName);
    }
    this.#store.save();
    await this.#table.start(new Map([...this.#pods].map(([device, each]) => [device, this.#tablePod(device, each)])));
  }

  /** @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED; the pod is filtered with the next success, unless {@link forget} comes first */
  async install(pod: PolicyPod): Promise<void> {
    const { hostInterfaceName: device } = pod;
    const before = this.#pods.get(device);
    if (before && !isSame(before, pod)) this.#end(device);
    this.#pods.set(device, pod);
    this.#connections.take(pod.addresses);
    // The addresses of a new pod may still have connections of the pod before.
    const changed = this.#changedFilters([device]);
    await this.#table.setPod(device, this.#tablePod(device, pod));
    this.#judge([], changed);
  }

  /** @throws Failure as {@link install} */
  adopt(hostInterfaceName: string): Promise<void> {
    return this.install({ hostInterfaceName, pod: undefined, addresses: [] });
  }

  /** @throws Failure as {@link install} */
  async forget(hostInterfaceName: string): Promise<void> {
    if (this.#end(hostInterfaceName)) await this.#table.setPod(hostInterfaceName, undefined);
  }

  /** Whether a pod was at the interface, where it no longer is. */
  #end(device: string): boolean {
    this.#earlier.delete(device);
    this.#judged.delete(device);
    const pod = this.#pods.get(device);
    if (!pod) return false;
    this.#pods.delete(device);
    if (!this.#view.hasPolicies) return true;
    // An address may have moved to another pod before.
    const held = new Set([...this.#pods.values()].flatMap(({ addresses }) => addresses.map(formatAddress)));
    const left = pod.addresses.filter((each) => !held.has(formatAddress(each)));
    this.#connections.leave(left);
    return true;
  }

  /**
   * Enforces a change of the view, which the store has afterwards too. Resolves when it is in force for new connections; forbidden
   * ones that are open end soon afterwards.
   * @throws Failure as {@link start}
   */
  async update(change: ViewChange): Promise<void> {
    if (this.#view.isCurrent) this.#earlier.clear();
    if (change.hasPods) {
      this.#store.save();
      for (const [device, pod] of this.#pods) this.#table.notePod(device, this.#tablePod(device, pod));
    }
    if (change.sets.size > 0) this.#store.saveSetsLater();
    const changed = change.hasPods ? this.#changedFilters(this.#pods.keys()) : undefined;
    const affected = this.#affectedPods(change.sets);
    // After a failure the table is replaced, and all connections are judged.
    await this.#table.update(change);
    this.#judge(affected, changed);
  }

  /** Whether the kernel reports dropped packets; undefined: not known yet. */
  get logsDrops(): boolean | undefined {
    return this.#table.hasLogs;
  }

  /** The pod at an interface with its wanted filters; undefined: no pod of this node. */
  podAt(device: string): { readonly pod: PolicyPod['pod']; readonly filtering: PodFiltering } | undefined {
    const filtered = this.#pods.get(device);
    return filtered && { pod: filtered.pod, filtering: this.#filtering(device) };
  }

  conditions(): readonly Condition[] {
    const { failure, refused } = this.#table;
    const found: Condition[] = [];
    if (this.#view.hasPolicies && this.#usesIpvs()) {
      const message =
        'connections of pods to Services pass without a judgement, as kube-proxy uses IPVS; set its mode to nftables or iptables';
      found.push({ reason: 'PoliciesNotEnforced', message });
    }
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
    found.push(...this.#connections.conditions());
    const unknown = [...this.#pods].filter(([device]) => this.#isUnknown(device));
    if (unknown.length > 0) {
      const names = unknown.map(([device, { pod }]) => (pod ? `${pod.namespace}/${pod.name}` : device));
      const message = `${names.length} pods are isolated until podwire-ipam sends their policies: ${formatList(names)}; check that it runs`;
      found.push({ reason: 'PodPolicyUnknown', message });
    }
    return found;
  }

  /** Leaves the table in force. */
  async stop(): Promise<void> {
    await Promise.all([this.#table.stop(), this.#connections.stop()]);
    this.#store.stop();
  }

  #tablePod(device: string, { addresses }: PolicyPod): TablePod {
    return { addresses, filtering: this.#filtering(device) };
  }

  #filtering(device: string): PodFiltering {
    return this.#earlier.has(device) ? OPEN : this.#view.filtering(this.#pods.get(device)?.pod);
  }

  /** The pods whose filters have changed since the last judgement. */
  #changedFilters(devices: Iterable<string>): ReadonlyMap<string, string> {
    const filters = [...devices].map((device) => [device, JSON.stringify(this.#filtering(device))] as const);
    return new Map(filters.filter(([device, filter]) => this.#judged.get(device) !== filter));
  }

  /** Judges open connections by the policies in force. Stored policies may be older than the table: the first snapshot follows. */
  #judge(devices: Iterable<string>, changed: ReadonlyMap<string, string> = new Map()): void {
    if (!this.#view.isCurrent) return;
    for (const [device, filter] of changed) this.#judged.set(device, filter);
    this.#connections.request([...devices, ...changed.keys()]);
  }

  /** The pods of which changes of sets may forbid connections. */
  #affectedPods(sets: ViewChange['sets']): string[] {
    const profiles = [...this.#view.profiles.values()].filter((profile) => mayForbid(profile, sets));
    const ids = new Set(profiles.map(({ id }) => id));
    const isAffected = (filter: Filtering) => typeof filter === 'object' && ids.has(filter.profile);
    return [...this.#pods.keys()].filter((device) => Object.values(this.#filtering(device)).some(isAffected));
  }

  #judgedPods(): ReadonlyMap<string, JudgedPod> {
    const { refused } = this.#table;
    const profileOf = (filter: Filtering, direction: Direction) => {
      if (typeof filter !== 'object') return filter;
      const profile = this.#view.profiles.get(filter.profile);
      return profile?.direction === direction && !refused.has(profile.id) ? profile : 'isolated';
    };
    return new Map(
      [...this.#pods].map(([device, { addresses }]) => {
        const { ingress, egress } = this.#filtering(device);
        return [
          device,
          { addresses, ingress: profileOf(ingress, 'ingress'), egress: profileOf(egress, 'egress') },
        ] as const;
      }),
    );
  }

  #isUnknown(device: string): boolean {
    return Object.values(this.#filtering(device)).includes('isolated');
  }

  #policiesOf(profile: string): string {
    const { isolatedBy = [], admin = [], baseline = [] } = this.#view.profiles.get(profile) ?? {};
    return formatList([...isolatedBy, ...new Set([...admin, ...baseline].map(({ policy }) => policy))]);
  }
}

function isSame(a: PolicyPod, b: PolicyPod): boolean {
  const [one, other] = [a, b].map(({ pod, addresses }) => JSON.stringify([pod, addresses.map(formatAddress)]));
  return one === other;
}
