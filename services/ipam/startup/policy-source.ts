import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import type { KubernetesApi } from '../api-server/api.js';
import { ObjectFeed } from '../api-server/object-feed.js';
import { readClusterNetworkPolicy } from '../network-policies/cluster-network-policy.js';
import { readNetworkPolicy } from '../network-policies/network-policy.js';
import { readNamespace, readPod } from '../network-policies/pods.js';
import type { PolicySpec } from '../network-policies/policy-spec.js';
import type { Profiles } from '../network-policies/profiles.js';

interface PolicySourceOptions {
  readonly api: KubernetesApi;
  readonly clock: Clock;
  readonly log: Logger;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly profiles: Profiles;
}

/** Objects of one kind. */
interface Kind<Value> {
  readonly path: string;
  readonly isOptional?: boolean;
  readonly read: (object: unknown) => Value | undefined;
  /** Keys of the objects that are known. */
  readonly known: () => Iterable<string>;
  readonly keyOf: (value: Value) => string;
  readonly set: (value: Value) => void;
  readonly remove: (key: string) => void;
}

/** Pods are large: a page is parsed in some 10 ms. */
const PAGE_SIZE = 100;

/** Objects that are applied at once; requests are served between them. */
const CHUNK_COUNT = 500;

/** Follows the API server's policies, Namespaces and Pods. */
export class PolicySource {
  readonly #options: PolicySourceOptions;
  readonly #feeds: readonly { stop(): Promise<void> }[];
  /** Kinds that are not read yet, with the latest failure. */
  readonly #unread = new Map<string, string>();
  readonly #failing = new Set<string>();
  /** Kinds that the API server has no definition of. */
  readonly #undefined = new Set<string>();

  /** The creator stops it before it closes the API server. */
  constructor(options: PolicySourceOptions) {
    this.#options = options;
    const { profiles } = options;
    const { pods } = profiles;
    this.#feeds = [
      this.#follow('Namespaces', {
        path: '/api/v1/namespaces',
        read: readNamespace,
        known: () => pods.namespaceNames(),
        keyOf: ({ name }) => name,
        set: (namespace) => pods.setNamespace(namespace),
        remove: (name) => pods.removeNamespace(name),
      }),
      this.#follow('Pods', {
        path: '/api/v1/pods',
        read: readPod,
        known: () => pods.podKeys(),
        keyOf: ({ namespace, name }) => `${namespace}/${name}`,
        set: (pod) => pods.setPod(pod),
        remove: (key) => {
          const [namespace = '', name = ''] = key.split('/');
          pods.removePod({ namespace, name });
        },
      }),
      this.#follow('NetworkPolicies', {
        ...this.#policies('NetworkPolicy '),
        path: '/apis/networking.k8s.io/v1/networkpolicies',
        read: readNetworkPolicy,
      }),
      this.#follow('ClusterNetworkPolicies', {
        ...this.#policies('ClusterNetworkPolicy '),
        path: '/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies',
        isOptional: true,
        read: readClusterNetworkPolicy,
      }),
    ];
  }

  /** Why the policies are not complete; undefined once everything was read. */
  get refusal(): Failure | undefined {
    if (this.#unread.size === 0) return undefined;
    const kinds = [...this.#unread].map(([name, failure]) => (failure === '' ? name : `${name} (${failure})`));
    return new Failure('UNREACHABLE', `network policies: not read yet: ${kinds.join(', ')}; follow again later`);
  }

  get definesClusterPolicies(): boolean {
    return !this.#undefined.has('ClusterNetworkPolicies');
  }

  async stop(): Promise<void> {
    await Promise.all(this.#feeds.map((feed) => feed.stop()));
  }

  #policies(prefix: string): Omit<Kind<PolicySpec>, 'path' | 'read'> {
    const { profiles, log } = this.#options;
    return {
      known: () => [...profiles.policyNames].filter((name) => name.startsWith(prefix)),
      keyOf: ({ name }) => name,
      set: (spec) => {
        if (profiles.setPolicy(spec)) for (const fault of spec.faults) log.warn(`${spec.name}: ${fault}`);
      },
      remove: (name) => profiles.removePolicy(name),
    };
  }

  #follow<Value>(name: string, { path, isOptional = false, read, ...kind }: Kind<Value>): ObjectFeed<Value> {
    const { api, clock, random } = this.#options;
    this.#unread.set(name, '');
    return new ObjectFeed<Value>({
      ...{ api, clock, random, path, isOptional, read, pageSize: PAGE_SIZE },
      listed: async (values, version) => {
        if (version === '') this.#undefined.add(name);
        else this.#undefined.delete(name);
        const gone = new Set(kind.known());
        for (const [index, value] of values.entries()) {
          if (index % CHUNK_COUNT === CHUNK_COUNT - 1) await nextTurn();
          gone.delete(kind.keyOf(value));
          kind.set(value);
        }
        for (const key of gone) kind.remove(key);
        this.#unread.delete(name);
      },
      changed: (type, value) => {
        if (type === 'DELETED') kind.remove(kind.keyOf(value));
        else kind.set(value);
      },
      report: (failure) => this.#report(name, failure),
    });
  }

  /** A failure is logged once, until the kind is followed again. */
  #report(name: string, failure: unknown): void {
    const { log } = this.#options;
    if (failure === undefined) {
      if (this.#failing.delete(name)) log.info(`network policies: following ${name} again`);
      return;
    }
    if (this.#unread.has(name)) this.#unread.set(name, messageOf(failure));
    if (this.#failing.has(name)) return;
    this.#failing.add(name);
    const text = 'trying again; nodes keep the policies that they have';
    log.warn({ err: failure }, `network policies: cannot follow ${name}: ${messageOf(failure)}; ${text}`);
  }
}

function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
