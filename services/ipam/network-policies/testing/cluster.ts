/** Objects of Kubernetes as the API server has them, as far as network policies need them. */

export type Labels = Readonly<Record<string, string>>;

export interface RawSelector {
  readonly matchLabels?: Labels;
  readonly matchExpressions?: readonly {
    readonly key: string;
    readonly operator: string;
    readonly values?: readonly string[];
  }[];
}

export interface RawNamespace {
  readonly metadata: { readonly name: string; readonly labels: Labels };
}

export interface RawContainer {
  readonly ports?: readonly { readonly name?: string; readonly containerPort: number; readonly protocol?: string }[];
}

export interface RawPod {
  readonly metadata: {
    readonly name: string;
    readonly namespace: string;
    readonly uid?: string;
    readonly labels?: Labels;
    readonly annotations?: Labels;
  };
  readonly spec: {
    readonly nodeName?: string;
    readonly hostNetwork?: boolean;
    readonly containers?: readonly RawContainer[];
    readonly initContainers?: readonly RawContainer[];
  };
  readonly status?: { readonly phase?: string; readonly podIPs?: readonly { readonly ip: string }[] };
}

export interface RawPeer {
  readonly podSelector?: RawSelector;
  readonly namespaceSelector?: RawSelector;
  readonly ipBlock?: { readonly cidr: string; readonly except?: readonly string[] };
}

export interface RawPort {
  readonly protocol?: string;
  readonly port?: number | string;
  readonly endPort?: number;
}

export interface RawRule {
  readonly from?: readonly RawPeer[];
  readonly to?: readonly RawPeer[];
  readonly ports?: readonly RawPort[];
}

export interface RawNetworkPolicy {
  readonly metadata: { readonly name: string; readonly namespace: string };
  readonly spec: {
    readonly podSelector?: RawSelector;
    readonly policyTypes?: readonly string[];
    readonly ingress?: readonly RawRule[];
    readonly egress?: readonly RawRule[];
  };
}

export interface RawSubject {
  readonly namespaces?: RawSelector;
  readonly pods?: { readonly namespaceSelector?: RawSelector; readonly podSelector?: RawSelector };
}

export interface RawClusterPeer extends RawSubject {
  readonly networks?: readonly string[];
  readonly domainNames?: readonly string[];
}

interface RawDestination {
  readonly destinationPort: {
    readonly number?: number;
    readonly range?: { readonly start: number; readonly end: number };
  };
}

export interface RawProtocol {
  readonly tcp?: RawDestination;
  readonly udp?: RawDestination;
  readonly sctp?: RawDestination;
  readonly destinationNamedPort?: string;
}

export interface RawClusterRule {
  readonly action: string;
  readonly from?: readonly RawClusterPeer[];
  readonly to?: readonly RawClusterPeer[];
  readonly protocols?: readonly RawProtocol[];
}

export interface RawClusterPolicy {
  readonly metadata: { readonly name: string };
  readonly spec: {
    readonly tier: string;
    readonly priority: number;
    readonly subject: RawSubject;
    readonly ingress?: readonly RawClusterRule[];
    readonly egress?: readonly RawClusterRule[];
  };
}

export interface Cluster {
  readonly namespaces: readonly RawNamespace[];
  readonly pods: readonly RawPod[];
  readonly networkPolicies: readonly RawNetworkPolicy[];
  readonly clusterPolicies: readonly RawClusterPolicy[];
}

/** A new connection, by its first packet. */
export interface Attempt {
  readonly source: string;
  readonly destination: string;
  readonly protocol: 'TCP' | 'UDP' | 'SCTP' | 'ICMP';
  /** 0 for ICMP. */
  readonly port: number;
}
