import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { isAllowed, type SetLookup } from '@podwire/shared/network-policy/evaluate';
import type { Profile, SetMember } from '@podwire/shared/network-policy/policy';

import { readClusterNetworkPolicy } from '../cluster-network-policy.js';
import { readNetworkPolicy } from '../network-policy.js';
import { PodAddresses } from '../pod-addresses.js';
import { readNamespace, readPod, PROTOCOLS } from '../pods.js';
import type { PolicySpec } from '../policy-spec.js';
import { Profiles, type UnknownPods } from '../profiles.js';
import type { Attempt, Cluster, RawClusterPolicy, RawNamespace, RawNetworkPolicy, RawPod } from './cluster.js';

const NOTHING = (): void => undefined;

/** Everything of it, for comparisons. */
export interface KnownContent {
  /** Profile IDs for ingress and egress, by `<namespace>/<name> <uid>`; empty for none. */
  readonly pods: Readonly<Record<string, readonly [ingress: string, egress: string]>>;
  readonly sets: Readonly<Record<string, { readonly digest: bigint; readonly members: readonly string[] }>>;
  readonly unknownPods: UnknownPods;
}

/** The knowledge of a node, or of podwire-ipam: the profiles of pods, and the members of sets. */
export interface KnownState {
  /** Pods of an address, with their profiles. */
  podsAt(address: string): readonly { readonly ingress: Profile | undefined; readonly egress: Profile | undefined }[];
  /** Members of a set: addresses as texts, with protocol and port in sets of ports. */
  members(set: string): ReadonlySet<string>;
}

export function memberText({ address }: Pick<SetMember, 'address'>, protocol = 0, port = 0): string {
  return protocol === 0 ? formatAddress(address) : `${formatAddress(address)} ${protocol} ${port}`;
}

/** Judges a connection as the evaluator of nodes does. */
export function allows(state: KnownState, { source, destination, protocol, port }: Attempt): boolean {
  const sets: SetLookup = {
    hasAddress: (set, each) => state.members(set).has(memberText({ address: each })),
    hasPort: (set, each, number, own) => state.members(set).has(memberText({ address: each }, number, own)),
  };
  const connection = {
    source: address(source),
    destination: address(destination),
    protocol: protocol === 'ICMP' ? 1 : PROTOCOLS[protocol],
    destinationPort: protocol === 'ICMP' ? undefined : port,
  };
  return (
    state.podsAt(source).every(({ egress }) => isAllowed({ egress, ingress: undefined }, connection, sets)) &&
    state.podsAt(destination).every(({ ingress }) => isAllowed({ egress: undefined, ingress }, connection, sets))
  );
}

export function address(text: string): Address {
  const parsed = parseAddress(text);
  if (!parsed) throw new Error(`${text} is not an address`);
  return parsed;
}

/** The compiler fed with objects of the API server. */
export class CompiledCluster implements KnownState {
  readonly profiles: Profiles;

  constructor(cluster?: Cluster, profiles = compiler()) {
    this.profiles = profiles;
    if (cluster) this.setAll(cluster);
  }

  setAll({ namespaces, pods, networkPolicies, clusterPolicies }: Cluster): void {
    namespaces.forEach((each) => this.setNamespace(each));
    pods.forEach((each) => this.setPod(each));
    networkPolicies.forEach((each) => this.setPolicy(each));
    clusterPolicies.forEach((each) => this.setClusterPolicy(each));
  }

  setNamespace(object: RawNamespace): void {
    this.profiles.pods.setNamespace(readNamespace(object) ?? malformed());
  }

  setPod(object: RawPod): void {
    this.profiles.pods.setPod(readPod(object) ?? malformed());
  }

  setPolicy(object: RawNetworkPolicy): PolicySpec {
    const spec = readNetworkPolicy(object) ?? malformed();
    this.profiles.setPolicy(spec);
    return spec;
  }

  setClusterPolicy(object: RawClusterPolicy): PolicySpec {
    const spec = readClusterNetworkPolicy(object) ?? malformed();
    this.profiles.setPolicy(spec);
    return spec;
  }

  podsAt(text: string) {
    return this.#pods()
      .filter(({ pod }) => pod.reportedAddresses.includes(text))
      .map(({ profiles }) => ({ ingress: profiles?.ingress?.profile, egress: profiles?.egress?.profile }));
  }

  members(id: string): ReadonlySet<string> {
    for (const { profiles } of this.#pods())
      for (const shared of [profiles?.ingress, profiles?.egress])
        for (const set of shared?.sets ?? [])
          if (set.id === id)
            return new Set(
              [...set.members].map(({ value }) =>
                'port' in value ? memberText(value, value.protocol, value.port) : memberText(value),
              ),
            );
    throw new Error(`no profile has the set ${id}`);
  }

  /** Profiles of the pods of one node or of all, and their sets, as {@link NodeState} describes them. */
  describe(nodeName?: string): KnownContent {
    const pods = this.#pods().flatMap(({ pod, profiles }) =>
      profiles && (nodeName ?? pod.nodeName) === pod.nodeName ? [{ pod, profiles }] : [],
    );
    const shared = pods.flatMap(({ profiles }) => [profiles.ingress ?? [], profiles.egress ?? []].flat());
    const sets = new Map(shared.flatMap((each) => each.sets).map((set) => [set.id, set]));
    return {
      pods: Object.fromEntries(
        pods.map(({ pod, profiles: { ingress, egress } }) => [
          `${pod.namespace}/${pod.name} ${pod.uid}`,
          [ingress?.profile.id ?? '', egress?.profile.id ?? ''],
        ]),
      ),
      sets: Object.fromEntries([...sets].map(([id, { digest }]) => [id, { digest, members: this.#membersOf(id) }])),
      unknownPods: this.profiles.unknownPods,
    };
  }

  #membersOf(id: string): readonly string[] {
    return [...this.members(id)].sort();
  }

  #pods() {
    return [...this.profiles.pods.pods()].map(({ pod }) => ({
      pod,
      profiles: this.profiles.podOf(pod.nodeName, `${pod.namespace}/${pod.name}`),
    }));
  }
}

/** A compiler that knows the addresses that pods report, and no node follows. */
function compiler(): Profiles {
  const addresses = new PodAddresses({ changed: NOTHING, poolsChanged: NOTHING });
  const listeners = { podChanged: NOTHING, setChanged: NOTHING, unknownPodsChanged: NOTHING };
  return new Profiles({ addressesOf: (pod) => addresses.of(pod), ...listeners });
}

function malformed(): never {
  throw new Error('the object has no name');
}
