import { Failure } from '@podwire/shared/failure/failure';
import type { Address } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { observeMetrics } from '@podwire/shared/telemetry/instruments';

import type { KubernetesApi } from '../api-server/api.js';
import type { Observed, ObservedRecord } from '../engine/mirror/mirror.js';
import { explain, type PolicyInspection } from '../network-policies/explanation.js';
import { NetworkPolicies, type PolicyDistributor } from '../network-policies/network-policies-operations.js';
import type { PodAddresses } from '../network-policies/pod-addresses.js';
import { listPolicies, policyStatus } from '../network-policies/status.js';
import { hasNodeAddress, type Node } from '../records/node.js';
import type { Pool } from '../records/pool.js';
import { PolicyLease } from './policy-lease.js';
import { PolicySource } from './policy-source.js';

/** The network policies of the cluster, from the API server's objects and the addresses of the datastore. */
export interface ServedPolicies extends PolicyDistributor, PolicyInspection {
  /** The one of several processes that serves policies, as far as this one knows; empty otherwise. */
  readonly leader: () => string;
  /** Receives what the mirror applies. */
  readonly observe: (observed: Observed) => void;
  /** This process leads, and has read the datastore. */
  readonly lead: () => void;
  readonly stop: () => Promise<void>;
}

interface PolicyDeps {
  readonly clock: Clock;
  readonly log: Logger;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
}

/** The choice of the process that serves. */
export interface PolicyPlace {
  /** Whether further processes serve the same datastore at the same time. */
  readonly isShared: boolean;
  /** Name of this process among them. */
  readonly instance: string;
}

/** The caller stops it before it closes the API server. */
export function startNetworkPolicies(
  api: KubernetesApi,
  { clock, log, random }: PolicyDeps,
  { isShared, instance }: PolicyPlace,
): ServedPolicies {
  const lease = isShared ? new PolicyLease({ api, clock, log, identity: instance }) : undefined;
  let isRead = false;
  const unread = (): Failure | undefined => (isRead ? source.refusal : notLeading(''));
  const refusal = (): Failure | undefined => unread() ?? (lease && !lease.held ? notLeading(lease.leader) : undefined);
  const policies = new NetworkPolicies({ clock, refusal });
  const complete = (failure: Failure | undefined): NetworkPolicies => {
    if (failure) throw failure;
    return policies;
  };
  const source = new PolicySource({ api, clock, log, random, profiles: policies.profiles });
  const stopMetrics = observeMetrics(['podwire.ipam.policies', 'podwire.ipam.policies.nodes'], (observe) => {
    const { following, behind } = policies.nodes;
    observe('podwire.ipam.policies', policies.profiles.policiesCount);
    observe('podwire.ipam.policies.nodes', following, { state: 'following' });
    observe('podwire.ipam.policies.nodes', behind, { state: 'behind' });
  });
  const records = new AddressRecords(policies.addresses);
  return {
    async *follow(request, signal) {
      const held = lease?.held;
      yield* policies.follow(request, held ? AbortSignal.any([signal, held]) : signal);
      if (lease && held?.aborted) throw notLeading(lease.leader);
    },
    announce: (announcement, signal) => policies.announce(announcement, signal),
    explain: (question) => explain(question, complete(refusal()), (address) => records.nodesWith(address)),
    status: () => policyStatus(complete(refusal()), source.definesClusterPolicies),
    list: (namespace) => listPolicies(complete(unread()).profiles, namespace),
    leader: () => lease?.leader ?? '',
    observe: (observed) => records.observe(observed),
    lead: () => {
      isRead = true;
      lease?.start();
    },
    stop: async () => {
      stopMetrics();
      await lease?.stop();
      policies.close();
      await source.stop();
    },
  };
}

/** Where podwire-ipam has no API server, or network policies are off. */
export const NO_POLICIES: PolicyDistributor & PolicyInspection = {
  ...{ follow: refuse, announce: refuse, explain: refuse, status: refuse, list: refuse },
};

function refuse(): never {
  throw new Failure('POLICIES_NOT_SERVED', 'network policies: podwire-ipam follows no API server; see its settings');
}

/** @param leader - its identity; empty: unknown */
function notLeading(leader: string): Failure {
  const which = leader === '' ? 'the one that does' : leader;
  return new Failure('POLICIES_NOT_SERVED', `network policies: this podwire-ipam does not lead; call ${which}`);
}

/** The blocks, pools and nodes of the datastore, as the mirror reports them. */
class AddressRecords {
  readonly #addresses: PodAddresses;
  readonly #pools = new Map<string, Pool>();
  readonly #nodes = new Map<string, Node>();
  /** Keys of the known blocks. */
  readonly #blocks = new Set<string>();

  constructor(addresses: PodAddresses) {
    this.#addresses = addresses;
  }

  /** Names of the nodes that have the address. */
  nodesWith(address: Address): readonly string[] {
    return [...this.#nodes.values()].filter((node) => hasNodeAddress(node, address)).map(({ name }) => name);
  }

  observe(observed: Observed): void {
    if (observed.type === 'changed') {
      this.#apply(observed.changes);
      return;
    }
    const listed = new Set(observed.records.map(({ key }) => key));
    const gone = [...this.#blocks, ...this.#pools.keys(), ...this.#nodes.keys()].filter((key) => !listed.has(key));
    this.#apply([...observed.records, ...gone.map((key) => ({ key, record: undefined }))]);
  }

  #apply(records: readonly ObservedRecord[]): void {
    let poolsChanged = false;
    for (const { key, record } of records) {
      if (record?.kind === 'pool') {
        this.#pools.set(key, record.value);
        poolsChanged = true;
      } else if (record?.kind === 'block') {
        this.#blocks.add(key);
        this.#addresses.setBlock(key, record.value);
      } else if (record?.kind === 'node') {
        this.#nodes.set(key, record.value);
      } else if (!record) {
        this.#nodes.delete(key);
        poolsChanged = this.#pools.delete(key) || poolsChanged;
        if (this.#blocks.delete(key)) this.#addresses.setBlock(key, undefined);
      }
    }
    if (poolsChanged) this.#addresses.setPools([...this.#pools.values()]);
  }
}
