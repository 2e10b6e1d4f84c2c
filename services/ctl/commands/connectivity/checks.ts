import type { AddProbePodResponse, ProbeResult } from '@podwire/proto/podwire/dataplane/v1/probe';
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
interface End {
  readonly kind: 'pod' | 'node' | 'host-port' | 'service' | 'outside';
  /** Name of the node; undefined if the end is no node of the test. */
  readonly node: string | undefined;
  readonly address: string;
  /** 0: pings. */
  readonly port: number;
  readonly udp?: boolean;
}

interface Source {
  /** The node that sends, or whose pod does. */
  readonly node: string;
  /** Empty: the node itself. */
  readonly containerId: string;
  /** Address of the pod; empty for the node. */
  readonly address: string;
}

/** A packet from a pod or a node, which must be answered. */
export interface Check extends Source {
  /** `pod-pod`, `pod-pod tcp`, `pod-pod udp`, `pod-pod MTU`, `pod-service`. */
  readonly kind: string;
  readonly family: Family;
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

/** Port that probe pods answer. */
const POD_PORT = 8080;

/** Every check, in the order of the sources. Nodes that cannot be called are targets only. */
export function plannedChecks(nodes: readonly TestedNode[], options: TestOptions): readonly Check[] {
  const targets = targetsOf(nodes, options);
  return nodes
    .filter(({ fault }) => fault === '')
    .flatMap(({ name: node, pods }) => [
      ...pods.flatMap(({ containerId, addresses, mtuBytes }) =>
        addresses.flatMap((address) => podChecks({ node, containerId, address }, mtuBytes, targets)),
      ),
      ...targets
        .filter((target) => target.kind === 'pod' || (target.kind === 'node' && target.node !== node))
        .map((target) => pingOf({ node, containerId: '', address: '' }, target)),
    ]);
}

function targetsOf(nodes: readonly TestedNode[], { families, services, outside, hostPort }: TestOptions) {
  const ends = (kind: End['kind'], node: string | undefined, addresses: readonly string[], port = 0): End[] =>
    addresses
      .filter((address) => families.includes(familyOf(address)))
      .map((address) => ({ kind, node, address, port }));
  return [
    ...nodes.flatMap(({ name, addresses, pods }) => [
      ...pods.flatMap((pod) => ends('pod', name, pod.addresses)),
      ...ends('node', name, addresses),
      ...ends('host-port', name, pods.length > 0 ? addresses : [], hostPort),
    ]),
    ...services.flatMap(({ address, port }) => ends('service', undefined, [address], port)),
    ...ends('outside', undefined, outside),
  ];
}

function podChecks(source: Source, mtuBytes: number, targets: readonly End[]): readonly Check[] {
  return targets
    .filter(({ address }) => familyOf(address) === familyOf(source.address) && address !== source.address)
    .flatMap((target) => {
      const ping = pingOf(source, target);
      if (target.kind !== 'pod') return [ping];
      const large = { ...ping, kind: 'pod-pod MTU', packetBytes: mtuBytes };
      const tcp = { ...ping, kind: 'pod-pod tcp', target: { ...target, port: POD_PORT } };
      return [ping, large, tcp, { ...tcp, kind: 'pod-pod udp', target: { ...tcp.target, udp: true } }];
    });
}

/** A short packet, or a connection where the target has a port. */
export function pingOf(source: Source, target: End): Check {
  const kind = `${source.containerId === '' ? 'node' : 'pod'}-${target.kind}`;
  return { ...source, kind, family: familyOf(target.address), target, packetBytes: 0 };
}

/** `pod of node-1 → node-2:61000`. */
export function checkName({ containerId, node, target }: Check): string {
  return `${containerId === '' ? node : `pod of ${node}`} → ${endName(target)}`;
}

export function endName({ kind, node, port }: End): string {
  if (node === undefined) return kind;
  return kind === 'pod' ? `pod of ${node}` : kind === 'host-port' ? `${node}:${port}` : node;
}

/** A check with its result. */
export interface CheckResult {
  readonly check: Check;
  readonly result: ProbeResult;
}

export function isPassed({ result }: CheckResult): boolean {
  return result.error === '';
}

/** `no answer`, or the error in words. */
export function errorText({ result: { error, message } }: CheckResult): string {
  return error === 'ETIMEDOUT' ? 'no answer' : `${error} (${message})`;
}

export function groupedBy<Item>(items: readonly Item[], keyOf: (item: Item) => string) {
  const groups = new Map<string, [Item, ...Item[]]>();
  for (const item of items) {
    const group = groups.get(keyOf(item));
    if (group) group.push(item);
    else groups.set(keyOf(item), [item]);
  }
  return [...groups.values()];
}
