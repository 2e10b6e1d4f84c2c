import { BlockList } from 'node:net';

import type {
  Attempt,
  Cluster,
  Labels,
  RawClusterPeer,
  RawClusterPolicy,
  RawClusterRule,
  RawNetworkPolicy,
  RawPeer,
  RawPod,
  RawPort,
  RawProtocol,
  RawRule,
  RawSelector,
  RawSubject,
} from './cluster.js';

/**
 * Judges connections by the objects themselves, as the specifications of NetworkPolicy and ClusterNetworkPolicy read: without
 * sets, profiles and hashes. Slow, and knows nothing of the compiler.
 */
export class Oracle {
  readonly #cluster: Cluster;

  constructor(cluster: Cluster) {
    this.#cluster = cluster;
  }

  /** Egress of the source and ingress of the destination both have to allow it. */
  allows(attempt: Attempt): boolean {
    const sources = this.podsAt(attempt.source);
    const destinations = this.podsAt(attempt.destination);
    return (
      sources.every((pod) => this.#allowsEnd(pod, 'egress', attempt)) &&
      destinations.every((pod) => this.#allowsEnd(pod, 'ingress', attempt))
    );
  }

  /** The pods of an address: none for one outside of the cluster or of a node. */
  podsAt(address: string): RawPod[] {
    return this.#cluster.pods.filter(
      ({ spec, status }) =>
        spec.hostNetwork !== true &&
        status?.phase !== 'Succeeded' &&
        status?.phase !== 'Failed' &&
        status?.podIPs?.some(({ ip }) => ip === address),
    );
  }

  #allowsEnd(pod: RawPod, direction: 'ingress' | 'egress', attempt: Attempt): boolean {
    const admin = this.#tierVerdict('Admin', pod, direction, attempt);
    if (admin !== undefined) return admin;
    const isolating = this.#cluster.networkPolicies.filter((policy) => this.#isolates(policy, pod, direction));
    if (isolating.length > 0) return isolating.some((policy) => this.#allowedBy(policy, direction, attempt));
    return this.#tierVerdict('Baseline', pod, direction, attempt) ?? true;
  }

  #tierVerdict(tier: string, pod: RawPod, direction: 'ingress' | 'egress', attempt: Attempt): boolean | undefined {
    const policies = this.#cluster.clusterPolicies
      .filter(({ spec }) => spec.tier === tier && this.#isSubject(spec.subject, pod))
      .sort((a, b) => a.spec.priority - b.spec.priority || (a.metadata.name < b.metadata.name ? -1 : 1));
    for (const policy of policies)
      for (const rule of rulesOf(policy, direction)) {
        const peers = (direction === 'ingress' ? rule.from : rule.to) ?? [];
        if (peers.some((peer) => peer.domainNames)) {
          // Unknown kinds of peers fail closed.
          if (rule.action !== 'Accept') return false;
          continue;
        }
        const other = direction === 'ingress' ? attempt.source : attempt.destination;
        if (!peers.some((peer) => this.#isClusterPeer(peer, other))) continue;
        if (rule.protocols && !rule.protocols.some((protocol) => this.#isProtocol(protocol, attempt))) continue;
        if (rule.action === 'Pass') return undefined;
        return rule.action === 'Accept';
      }
    return undefined;
  }

  #isSubject({ namespaces, pods }: RawSubject, pod: RawPod): boolean {
    const labels = this.#namespaceLabels(pod);
    if (namespaces) return has(labels, namespaces);
    return (
      pods !== undefined &&
      has(labels, pods.namespaceSelector ?? {}) &&
      has(pod.metadata.labels ?? {}, pods.podSelector ?? {})
    );
  }

  #isClusterPeer(peer: RawClusterPeer, address: string): boolean {
    if (peer.networks) return peer.networks.some((cidr) => isWithin(cidr, address));
    return this.podsAt(address).some((pod) => this.#isSubject(peer, pod));
  }

  #isProtocol(protocol: RawProtocol, attempt: Attempt): boolean {
    const { destinationNamedPort: name } = protocol;
    if (name !== undefined) return this.#portsNamed(name, attempt, undefined);
    const matching = { TCP: protocol.tcp, UDP: protocol.udp, SCTP: protocol.sctp, ICMP: undefined }[attempt.protocol];
    if (!matching) return false;
    const { number, range } = matching.destinationPort;
    if (range) return attempt.port >= range.start && attempt.port <= range.end;
    return attempt.port === number;
  }

  #isolates({ metadata, spec }: RawNetworkPolicy, pod: RawPod, direction: 'ingress' | 'egress'): boolean {
    if (metadata.namespace !== pod.metadata.namespace) return false;
    if (!has(pod.metadata.labels ?? {}, spec.podSelector ?? {})) return false;
    const given = spec.policyTypes ?? [];
    const byDefault = (spec.egress ?? []).length > 0 ? ['Ingress', 'Egress'] : ['Ingress'];
    const types = given.length > 0 ? given : byDefault;
    return types.includes(direction === 'ingress' ? 'Ingress' : 'Egress');
  }

  #allowedBy({ metadata, spec }: RawNetworkPolicy, direction: 'ingress' | 'egress', attempt: Attempt): boolean {
    const rules: readonly RawRule[] = spec[direction] ?? [];
    return rules.some(({ from, to, ports }) => {
      const peers = (direction === 'ingress' ? from : to) ?? [];
      const other = direction === 'ingress' ? attempt.source : attempt.destination;
      const isPeer = peers.length === 0 || peers.some((peer) => this.#isPeer(peer, metadata.namespace, other));
      const isPort = (ports ?? []).length === 0 || (ports ?? []).some((port) => this.#isPort(port, attempt));
      return isPeer && isPort;
    });
  }

  #isPeer({ podSelector, namespaceSelector, ipBlock }: RawPeer, namespace: string, address: string): boolean {
    if (ipBlock) {
      const { cidr, except = [] } = ipBlock;
      return isWithin(cidr, address) && !except.some((each) => isWithin(each, address));
    }
    return this.podsAt(address).some((pod) => {
      const isInNamespace = namespaceSelector
        ? has(this.#namespaceLabels(pod), namespaceSelector)
        : pod.metadata.namespace === namespace;
      return isInNamespace && has(pod.metadata.labels ?? {}, podSelector ?? {});
    });
  }

  #isPort({ protocol = 'TCP', port, endPort }: RawPort, attempt: Attempt): boolean {
    if (protocol !== attempt.protocol) return false;
    if (port === undefined) return true;
    if (typeof port === 'string') return this.#portsNamed(port, attempt, protocol);
    return attempt.port >= port && attempt.port <= (endPort ?? port);
  }

  /** Whether the destination pod gives this name to the attempted port. */
  #portsNamed(name: string, attempt: Attempt, protocol: string | undefined): boolean {
    return this.podsAt(attempt.destination).some(({ spec }) =>
      [...(spec.containers ?? []), ...(spec.initContainers ?? [])].some(({ ports = [] }) =>
        ports.some(
          (each) =>
            each.name === name &&
            each.containerPort === attempt.port &&
            (each.protocol ?? 'TCP') === attempt.protocol &&
            (protocol === undefined || protocol === attempt.protocol),
        ),
      ),
    );
  }

  /** A namespace that does not exist has no labels, and no selector of namespaces matches it. */
  #namespaceLabels(pod: RawPod): Labels | undefined {
    return this.#cluster.namespaces.find(({ metadata }) => metadata.name === pod.metadata.namespace)?.metadata.labels;
  }
}

function rulesOf({ spec }: RawClusterPolicy, direction: 'ingress' | 'egress'): readonly RawClusterRule[] {
  return spec[direction] ?? [];
}

function has(labels: Labels | undefined, { matchLabels = {}, matchExpressions = [] }: RawSelector): boolean {
  if (!labels) return false;
  const hasAll = Object.entries(matchLabels).every(([key, value]) => labels[key] === value);
  return (
    hasAll &&
    matchExpressions.every(({ key, operator, values = [] }) => {
      const value = labels[key];
      if (operator === 'In') return value !== undefined && values.includes(value);
      if (operator === 'NotIn') return value === undefined || !values.includes(value);
      if (operator === 'Exists') return value !== undefined;
      return operator === 'DoesNotExist' && value === undefined;
    })
  );
}

function isWithin(cidr: string, address: string): boolean {
  const [network = '', length = ''] = cidr.split('/');
  const familyOf = (text: string) => (text.includes(':') ? 'ipv6' : 'ipv4');
  if (familyOf(network) !== familyOf(address)) return false;
  const list = new BlockList();
  list.addSubnet(network, Number(length), familyOf(network));
  return list.check(address, familyOf(address));
}
