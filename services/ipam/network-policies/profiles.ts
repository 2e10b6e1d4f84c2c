import {
  DIRECTIONS,
  type Direction,
  type PolicyRule,
  type Profile,
  type SetMember,
} from '@podwire/shared/network-policy/policy';
import { compareTexts } from '@podwire/shared/words/order';

import { contentHash, type AddressSet } from './address-sets.js';
import { PodIndex, type IndexedPod, type Selection } from './pod-index.js';
import type { Pod } from './pods.js';
import type { PodSelector, PolicySpec, RuleSpec } from './policy-spec.js';

/** A profile with the sets that its rules name. Pods with the same policies share it. */
export interface SharedProfile {
  readonly profile: Profile;
  readonly sets: readonly AddressSet[];
}

/** The profiles of a pod; undefined where no policy restricts it. */
export type PodProfiles = Readonly<Record<Direction, SharedProfile | undefined>>;

/** A pod of a node. */
export interface NodePod extends PodProfiles {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
}

/** Pods that have to wait for their profiles, as their policies may restrict them. */
export interface UnknownPods {
  readonly all: boolean;
  /** Sorted. */
  readonly namespaces: readonly string[];
}

export interface ProfilesOptions {
  readonly addressesOf: (pod: Pod) => readonly SetMember[];
  /** A pod of a node, or its profiles, changed. */
  readonly podChanged: (nodeName: string, key: string) => void;
  readonly setChanged: (set: AddressSet) => void;
  readonly unknownPodsChanged: () => void;
}

interface CompiledRules {
  readonly rules: readonly PolicyRule[];
  readonly hash: string;
  readonly sets: readonly AddressSet[];
}

interface CompiledPolicy {
  /** Differs for each compilation. */
  readonly number: number;
  readonly spec: PolicySpec;
  readonly text: string;
  readonly subject: Selection;
  readonly directions: Readonly<Record<Direction, CompiledRules | undefined>>;
}

interface ProfileEntry extends SharedProfile {
  /** Differs for each profile. */
  readonly number: number;
  readonly key: string;
  podsCount: number;
}

type Assigned = Readonly<Record<Direction, ProfileEntry | undefined>>;

const TIERS = ['admin', 'policy', 'baseline'] as const;

const UNRESTRICTED: Assigned = { ingress: undefined, egress: undefined };

/** The policies of the cluster, and the profiles that they give to its pods. */
export class Profiles {
  readonly pods: PodIndex;
  readonly #options: ProfilesOptions;
  readonly #policies = new Map<string, CompiledPolicy>();
  /** Policies by their subject. */
  readonly #subjects = new Map<Selection, Set<CompiledPolicy>>();
  /** Profiles by the direction and the policies that they are made of. */
  readonly #profiles = new Map<string, ProfileEntry>();
  readonly #assigned = new Map<IndexedPod, Assigned>();
  /** Numbers of policies by their namespace; undefined: ClusterNetworkPolicies. */
  readonly #counts = new Map<string | undefined, number>();
  #unknownPods: UnknownPods | undefined;
  /** Numbers of policies and of profiles so far. */
  #compiled = 0;
  #made = 0;

  constructor(options: ProfilesOptions) {
    this.#options = options;
    const { addressesOf, setChanged } = options;
    this.pods = new PodIndex({
      ...{ addressesOf, setChanged },
      podChanged: (pod, before) => this.#podChanged(pod, before),
      podRemoved: (pod) => this.#podRemoved(pod),
    });
  }

  /** Names of all policies. */
  get policyNames(): Iterable<string> {
    return this.#policies.keys();
  }

  /** Every policy, with the pods that it selects. */
  get policies(): Iterable<{ readonly spec: PolicySpec; readonly subject: Selection }> {
    return this.#policies.values();
  }

  specOf(policyName: string): PolicySpec | undefined {
    return this.#policies.get(policyName)?.spec;
  }

  get policiesCount(): number {
    return this.#policies.size;
  }

  /** The same object until it changes. */
  get unknownPods(): UnknownPods {
    const namespaces = [...this.#counts.keys()].filter((name) => name !== undefined);
    return (this.#unknownPods ??= { all: this.#counts.has(undefined), namespaces: namespaces.sort() });
  }

  /** The networked pods of a node, by `<namespace>/<name>`; only pods whose namespace is known. */
  podOf(nodeName: string, key: string): NodePod | undefined {
    const indexed = this.pods.podsOf(nodeName).get(key);
    if (!indexed?.isKnown) return undefined;
    const { namespace, name, uid } = indexed.pod;
    return { namespace, name, uid, ...(this.#assigned.get(indexed) ?? UNRESTRICTED) };
  }

  /** @returns false if an equal policy is known */
  setPolicy(spec: PolicySpec): boolean {
    const text = JSON.stringify(spec, withBigIntegers);
    const before = this.#policies.get(spec.name);
    if (before?.text === text) return false;
    // The new one first: sets and selections that both use stay.
    const policy = this.#compile(spec, text);
    this.#policies.set(spec.name, policy);
    this.#subjects.set(policy.subject, (this.#subjects.get(policy.subject) ?? new Set()).add(policy));
    if (before) this.#dropSubject(before);
    this.#assignAll(new Set([...policy.subject.pods, ...(before?.subject.pods ?? [])]), policy.subject);
    if (before) this.#release(before);
    else this.#count(spec, 1);
    return true;
  }

  removePolicy(name: string): void {
    const policy = this.#policies.get(name);
    if (!policy) return;
    this.#policies.delete(name);
    this.#dropSubject(policy);
    this.#assignAll(policy.subject.pods, policy.subject);
    this.#release(policy);
    this.#count(policy.spec, -1);
  }

  #count({ namespace }: PolicySpec, added: 1 | -1): void {
    const before = this.#counts.get(namespace) ?? 0;
    const after = before + added;
    if (after > 0) this.#counts.set(namespace, after);
    else this.#counts.delete(namespace);
    if (before > 0 && after > 0) return;
    this.#unknownPods = undefined;
    this.#options.unknownPodsChanged();
  }

  #compile(spec: PolicySpec, text: string): CompiledPolicy {
    const { subject, rules } = spec;
    return {
      ...{ number: ++this.#compiled, spec, text },
      subject: this.pods.acquire(subject),
      directions: {
        ingress: rules.ingress && this.#compileRules(spec, 'ingress', rules.ingress),
        egress: rules.egress && this.#compileRules(spec, 'egress', rules.egress),
      },
    };
  }

  #compileRules({ name, subject }: PolicySpec, direction: Direction, specs: readonly RuleSpec[]): CompiledRules {
    const sets: AddressSet[] = [];
    const compiled = (set: AddressSet): string => {
      sets.push(set);
      return set.id;
    };
    const rules = specs.map(({ action, peers, ports }): PolicyRule => {
      const owners = direction === 'ingress' ? [subject] : destinationsOf(peers);
      const named = (ports?.names ?? []).flatMap((port) => owners.map((owner) => this.pods.acquireSet(owner, port)));
      return {
        policy: name,
        action,
        peers: peers && {
          sets: unique(peers.pods.map((selector) => compiled(this.pods.acquireSet(selector)))),
          networks: peers.networks,
        },
        ports: ports && { ranges: ports.ranges, sets: unique(named.map(compiled)) },
      };
    });
    return { rules, hash: contentHash(JSON.stringify(rules, withBigIntegers)), sets };
  }

  #dropSubject(policy: CompiledPolicy): void {
    const policies = this.#subjects.get(policy.subject);
    policies?.delete(policy);
    if (policies?.size === 0) this.#subjects.delete(policy.subject);
  }

  #release({ subject, directions }: CompiledPolicy): void {
    for (const direction of DIRECTIONS) for (const set of directions[direction]?.sets ?? []) this.pods.releaseSet(set);
    this.pods.release(subject);
  }

  #podChanged(indexed: IndexedPod, before: Pod | undefined): void {
    const { pod } = indexed;
    if (before && before.nodeName !== pod.nodeName) this.#notify(before);
    this.#notify(pod);
    this.#assign(indexed, this.#profilesOf(indexed));
  }

  #podRemoved(indexed: IndexedPod): void {
    const profiles = this.#assigned.get(indexed);
    this.#assigned.delete(indexed);
    for (const direction of DIRECTIONS) this.#leave(profiles?.[direction]);
    this.#notify(indexed.pod);
  }

  #notify({ namespace, name, nodeName }: Pod): void {
    if (nodeName !== '') this.#options.podChanged(nodeName, `${namespace}/${name}`);
  }

  /** After the change of one policy: pods that had the same profiles, and that it selects alike, have the same again. */
  #assignAll(pods: ReadonlySet<IndexedPod>, subject: Selection): void {
    const known = new Map<string, Assigned>();
    for (const pod of pods) {
      const { ingress, egress } = this.#assigned.get(pod) ?? UNRESTRICTED;
      const text = `${ingress?.number} ${egress?.number} ${subject.pods.has(pod)}`;
      const assigned = known.get(text) ?? this.#profilesOf(pod);
      known.set(text, assigned);
      this.#assign(pod, assigned);
    }
  }

  #profilesOf({ selections }: IndexedPod): Assigned {
    const policies = [...selections].flatMap((selection) => [...(this.#subjects.get(selection) ?? [])]);
    return { ingress: this.#profileOf('ingress', policies), egress: this.#profileOf('egress', policies) };
  }

  #assign(indexed: IndexedPod, assigned: Assigned): void {
    const before = this.#assigned.get(indexed) ?? UNRESTRICTED;
    const { ingress, egress } = assigned;
    if (ingress || egress) this.#assigned.set(indexed, assigned);
    else this.#assigned.delete(indexed);
    for (const profile of [ingress, egress]) if (profile) profile.podsCount++;
    for (const direction of DIRECTIONS) this.#leave(before[direction]);
    if (before.ingress !== ingress || before.egress !== egress) this.#notify(indexed.pod);
  }

  #leave(profile: ProfileEntry | undefined): void {
    if (profile && --profile.podsCount === 0) this.#profiles.delete(profile.key);
  }

  /** @param policies - which select the pod */
  #profileOf(direction: Direction, policies: readonly CompiledPolicy[]): ProfileEntry | undefined {
    const restricting = policies.filter(({ directions }) => directions[direction]);
    if (restricting.length === 0) return undefined;
    const numbers = restricting.map(({ number }) => number).sort((a, b) => a - b);
    const key = `${direction} ${numbers.join()}`;
    const known = this.#profiles.get(key);
    if (known) return known;
    const ordered = restricting.sort(
      ({ spec: a }, { spec: b }) => a.priority - b.priority || compareTexts(a.name, b.name),
    );
    const made = { number: ++this.#made, key, ...sharedProfile(direction, ordered), podsCount: 0 };
    this.#profiles.set(key, made);
    return made;
  }
}

/** @param policies - in their order, of all tiers */
function sharedProfile(direction: Direction, policies: readonly CompiledPolicy[]): SharedProfile {
  const [admin = [], own = [], baseline = []] = TIERS.map((tier) => policies.filter(({ spec }) => spec.tier === tier));
  const rulesOf = (some: readonly CompiledPolicy[]) => some.flatMap((each) => each.directions[direction]?.rules ?? []);
  const content = {
    direction,
    admin: rulesOf(admin),
    isolatedBy: own.map(({ spec }) => spec.name),
    rules: rulesOf(own),
    // A NetworkPolicy decides finally for the pods that it isolates.
    baseline: own.length > 0 ? [] : rulesOf(baseline),
  };
  const used = [...admin, ...own, ...(own.length > 0 ? [] : baseline)];
  const hashes = used.map(({ spec, directions }) => `${spec.tier} ${spec.name} ${directions[direction]?.hash}`);
  const id = contentHash([direction, ...hashes].join('\n'));
  const sets = new Set(used.flatMap((each) => each.directions[direction]?.sets ?? []));
  if (sets.size <= SETS_COUNT_MAX && profileSize(content) <= PROFILE_SIZE_MAX)
    return { profile: { id, ...content }, sets: [...sets] };
  const limits = `${SETS_COUNT_MAX} selectors, or ${PROFILE_SIZE_MAX} peers, ports and rules`;
  const isolatedBy = [`${used[0]?.spec.name} and further policies, together above ${limits}`];
  return { profile: { id, direction, admin: [], isolatedBy, rules: [], baseline: [] }, sets: [] };
}

/**
 * Limits of a profile, above which it isolates its pods: policies of one namespace must not keep a node from the policies of other
 * ones. The time that nft needs grows with the square of the number of sets.
 */
const SETS_COUNT_MAX = 2000;
const PROFILE_SIZE_MAX = 8000;

/** Size of a profile's message, and about the number of its rules in nftables. */
export function profileSize({ admin, rules, baseline, isolatedBy }: Omit<Profile, 'id'>): number {
  return [...admin, ...rules, ...baseline].reduce((sum, { peers, ports }) => {
    const { sets = [], networks = [] } = peers ?? {};
    const { sets: named = [], ranges = [] } = ports ?? {};
    return sum + (1 + sets.length) * (1 + named.length) + networks.length + ranges.length;
  }, isolatedBy.length);
}

const EVERY_POD: PodSelector = { namespaces: [], pods: [] };

/** Pods whose ports a rule may name: a network has the addresses of any pod. */
function destinationsOf(peers: RuleSpec['peers']): readonly PodSelector[] {
  return peers?.networks.length === 0 ? peers.pods : [EVERY_POD];
}

function unique(ids: readonly string[]): readonly string[] {
  return [...new Set(ids)];
}

function withBigIntegers(_: string, value: unknown): unknown {
  return typeof value === 'bigint' ? String(value) : value;
}
