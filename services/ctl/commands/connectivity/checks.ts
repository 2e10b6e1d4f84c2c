import type { AddProbePodResponse, Probe, ProbeResult } from '@podwire/proto/podwire/dataplane/v1/probe';
import { NodeContact, type NodeState } from '@podwire/proto/podwire/ipam/v1/cluster';
import { familyOf, type Family } from '@podwire/shared/net/address';

/** A node that takes part in a test. */
export interface TestedNode {
  readonly name: string;
  /** Why it cannot be called; empty if it can. */
  readonly fault: string;
  readonly addresses: readonly string[];
  readonly conditions: readonly string[];
  /** Names of its tunnel devices. */
  readonly tunnels: readonly string[];
  /** Its probe pods. */
  readonly pods: readonly AddProbePodResponse[];
}

/** A node as podwire-ipam knows it, without pods. */
export function testedNode({ name, contact, report }: NodeState): TestedNode {
  const { ipv4Address = '', ipv6Address = '', conditions = [], tunnels = [] } = report?.status ?? {};
  const isConnected = contact === NodeContact.NODE_CONTACT_CONNECTED;
  return {
    name,
    addresses: [ipv4Address, ipv6Address].map((cidr) => cidr.replace(/\/.*/, '')).filter((each) => each !== ''),
    conditions: conditions.map(({ reason, message }) => `${reason}: ${message}`),
    tunnels: tunnels.map((tunnel) => tunnel.name),
    pods: [],
    fault: isConnected ? '' : `podwire-node of ${name} is not connected to podwire-ipam; see podwirectl status`,
  };
}

/** The end of a path that is checked. */
export interface End {
  readonly kind: 'pod' | 'node' | 'host-port' | 'service' | 'outside';
  /** `pod of node-2`. */
  readonly name: string;
  /** Name of the node; undefined if the end is no node of the test. */
  readonly node: string | undefined;
  readonly address: string;
  /** 0: pings. */
  readonly port: number;
}

/** A packet from a pod or a node, which must be answered. */
export interface Check {
  /** `pod-pod`, `pod-pod tcp`, `pod-pod MTU`, `pod-service`. */
  readonly kind: string;
  readonly family: Family;
  /** The node that sends it, or whose pod does. */
  readonly node: string;
  /** Empty: the node itself. */
  readonly containerId: string;
  /** Address of the pod; empty for the node. */
  readonly address: string;
  readonly target: End;
  /** Length of the packet in bytes; 0: as short as possible. */
  readonly packetBytes: number;
}

export interface TestOptions {
  readonly families: readonly Family[];
  readonly services: readonly { readonly address: string; readonly port: number }[];
  readonly outside: readonly string[];
  readonly hostPort: number;
}

/** Time of one call: a node that hangs must not take the time of the whole command. */
export const NODE_TIMEOUT_MS = 15_000;

/** Port that probe pods answer. */
const POD_PORT = 8080;

/** Every check, in the order of the sources. Nodes that cannot be called are targets only. */
export function plannedChecks(nodes: readonly TestedNode[], options: TestOptions): readonly Check[] {
  const targets = targetsOf(nodes, options);
  return nodes
    .filter(({ fault }) => fault === '')
    .flatMap((node) => [...node.pods.flatMap((pod) => podChecks(node, pod, targets)), ...nodeChecks(node, targets)])
    .filter(({ family }) => options.families.includes(family));
}

function targetsOf(nodes: readonly TestedNode[], { services, outside, hostPort }: TestOptions): readonly End[] {
  const ofNodes = nodes.flatMap(({ name: node, addresses, pods }): End[] => [
    ...pods.flatMap((pod) =>
      pod.addresses.flatMap((address): End[] => {
        const end = { kind: 'pod', name: `pod of ${node}`, node, address } as const;
        return [
          { ...end, port: 0 },
          { ...end, port: POD_PORT },
        ];
      }),
    ),
    ...addresses.map((address): End => ({ kind: 'node', name: node, node, address, port: 0 })),
    ...(pods.length === 0
      ? []
      : addresses.map((address): End => {
          return { kind: 'host-port', name: `${node}:${hostPort}`, node, address, port: hostPort };
        })),
  ]);
  const beyond = [
    ...services.map((service) => ({ kind: 'service', name: 'service', ...service }) as const),
    ...outside.map((address) => ({ kind: 'outside', name: 'outside', address, port: 0 }) as const),
  ];
  return [...ofNodes, ...beyond.map((end): End => ({ ...end, node: undefined }))];
}

function podChecks(node: TestedNode, pod: AddProbePodResponse, targets: readonly End[]): Check[] {
  return pod.addresses.flatMap((address) => {
    const family = familyOf(address);
    const source = { family, node: node.name, containerId: pod.containerId, address };
    return targets
      .filter((target) => familyOf(target.address) === family && target.address !== address)
      .flatMap((target): Check[] => {
        const isPod = target.kind === 'pod';
        const check = { ...source, kind: `pod-${target.kind}`, target, packetBytes: 0 };
        if (isPod && target.port > 0) return [{ ...check, kind: 'pod-pod tcp' }];
        const large = { ...check, kind: 'pod-pod MTU', packetBytes: pod.mtuBytes };
        return isPod ? [check, large] : [check];
      });
  });
}

function nodeChecks({ name: node }: TestedNode, targets: readonly End[]): Check[] {
  return targets
    .filter(({ kind, port, node: of }) => (kind === 'node' && of !== node) || (kind === 'pod' && port === 0))
    .map((target): Check => {
      const family = familyOf(target.address);
      return { kind: `node-${target.kind}`, family, node, containerId: '', address: '', target, packetBytes: 0 };
    });
}

/** `pod of node-1 → pod of node-2`. */
export function checkName({ containerId, node, target }: Pick<Check, 'containerId' | 'node' | 'target'>): string {
  return `${containerId === '' ? node : `pod of ${node}`} → ${target.name}`;
}

export function probeOf({ target: { address, port }, packetBytes }: Check): Probe {
  return { address, port, packetBytes };
}

/** A check with its result. */
export interface CheckResult {
  readonly check: Check;
  readonly result: ProbeResult;
}

export function isPassed({ result }: CheckResult): boolean {
  return result.error === '';
}

export function groupedBy<Item>(
  items: readonly Item[],
  keyOf: (item: Item) => string,
): readonly (readonly [Item, ...Item[]])[] {
  const groups = new Map<string, [Item, ...Item[]]>();
  for (const item of items) {
    const group = groups.get(keyOf(item));
    if (group) group.push(item);
    else groups.set(keyOf(item), [item]);
  }
  return [...groups.values()];
}
