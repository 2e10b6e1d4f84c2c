import type { PodName } from '@podwire/shared/attachment/allocation';
import {
  formatHostPortKey,
  PORT_PROTOCOLS,
  type HostPort,
  type PortProtocol,
} from '@podwire/shared/attachment/host-port';
import type { Difference, PodNetwork } from '@podwire/shared/attachment/pod-network';
import { Failure } from '@podwire/shared/failure/failure';
import { FAMILIES, formatAddress, type Family } from '@podwire/shared/net/address';

import type { Condition } from '../conditions/conditions.js';
import { elementTexts, listedElements } from '../nft/table-form.js';
import { TableReconciler, type TableReconcilerOptions } from '../nft/table-reconciler.js';
import {
  ADDRESS_TYPE,
  concatJson,
  formatTableName,
  match,
  meta,
  payload,
  PROTOCOL,
  type FieldType,
  type Json,
  type JsonObject,
  type NftTable,
  type SetDefinition,
  type TableName,
} from '../nft/table.js';

/** The fields of a pod that host ports depend on. */
interface MappedPod extends Pick<PodNetwork, 'attachment' | 'hostInterfaceName' | 'addresses' | 'hostPorts'> {
  readonly pod: PodName | undefined;
}

/** Pods with host ports by host interface. */
type MappedPods = ReadonlyMap<string, MappedPod>;

export const HOST_PORT_TABLE: TableName = { family: 'inet', name: 'podwire_hostports' };

/** The maps of one kind of host ports: to the pod's address, and to its port. nft 1.0.6 reads no map with both. */
interface PortMaps {
  readonly toAddress: Readonly<Record<Family, string>>;
  readonly toPort: Readonly<Record<Family, string>>;
}

/** Host ports of any address of the node, and of one address. */
const ANY_ADDRESS: PortMaps = {
  toAddress: { 4: 'pod_address4', 6: 'pod_address6' },
  toPort: { 4: 'pod_port4', 6: 'pod_port6' },
};
const ONE_ADDRESS: PortMaps = {
  toAddress: { 4: 'pod_address_of4', 6: 'pod_address_of6' },
  toPort: { 4: 'pod_port_of4', 6: 'pod_port_of6' },
};

/** Pairs of sender and receiver whose packets need the node's address as their source. */
const MASQUERADED: Readonly<Record<Family, string>> = { 4: 'masqueraded4', 6: 'masqueraded6' };

/**
 * After kube-proxy and `portmap` (NF_IP_PRI_NAT_DST, -100), whose translations win, and before the translation of sources
 * (NF_IP_PRI_NAT_SRC, 100).
 */
const DESTINATION_PRIORITY = -90;
const SOURCE_PRIORITY = 90;

/** Numbers of `meta nfproto`. */
const NFPROTO: Readonly<Record<Family, number>> = { 4: 2, 6: 10 };

/** RTN_LOCAL: the packet's destination is an address of the node. */
const LOCAL = 2;

/** Source of the node's own connections to 127.0.0.1. Without masquerading the pod would reply to its own loopback interface. */
const LOOPBACK_SOURCE = '127.0.0.1';

const PORT: Json = { payload: { protocol: 'th', field: 'dport' } };

/**
 * The table that translates ports of the node to ports of pods. The mappings are elements of maps, so a lookup takes the same
 * time for any number of them.
 *
 * Clients keep their address, except for a pod that reaches itself through the node, and for the node's 127.0.0.1. The node's
 * `::1` is not translated: the kernel never sends a packet with that source out of another interface.
 */
export function hostPortTable(pods: MappedPods): NftTable {
  const elements = elementsOf([...pods.values()]);
  const chainOf = (name: string): NftTable['chains'][number] => ({
    name,
    hook: { type: 'nat', name, priority: DESTINATION_PRIORITY },
    rules: FAMILIES.flatMap((family) => destinationRules(family, name === 'output')),
  });
  return {
    ...HOST_PORT_TABLE,
    sets: setsOf().map((set) => ({ ...set, elements: elements.get(set.name) ?? [] })),
    chains: [
      chainOf('prerouting'),
      chainOf('output'),
      {
        name: 'postrouting',
        hook: { type: 'nat', name: 'postrouting', priority: SOURCE_PRIORITY },
        rules: FAMILIES.map((family) => {
          const ends = concatJson(payload(PROTOCOL[family], 'saddr'), payload(PROTOCOL[family], 'daddr'));
          return [match(ends, '==', `@${MASQUERADED[family]}`), { masquerade: null }];
        }),
      },
    ],
  };
}

function destinationRules(family: Family, isOutput: boolean): readonly (readonly JsonObject[])[] {
  const protocol = PROTOCOL[family];
  const translate = ({ toAddress, toPort }: PortMaps, ...address: readonly Json[]): JsonObject => {
    const key = concatJson(...address, meta('l4proto'), PORT);
    const lookUp = (map: string): Json => ({ map: { key, data: `@${map}` } });
    return { dnat: { family: protocol, addr: lookUp(toAddress[family]), port: lookUp(toPort[family]) } };
  };
  const destination = payload(protocol, 'daddr');
  const isLocal = match({ fib: { result: 'type', flags: ['daddr'] } }, '==', LOCAL);
  const notLoopback = isOutput && family === 6 ? [match(destination, '!=', '::1')] : [];
  // nft lists no `nfproto` beside an address of the family.
  const isFamily = notLoopback.length > 0 ? notLoopback : [match(meta('nfproto'), '==', NFPROTO[family])];
  return [
    [...notLoopback, isLocal, translate(ONE_ADDRESS, destination)],
    [...isFamily, isLocal, translate(ANY_ADDRESS)],
  ];
}

function setsOf(): readonly SetDefinition[] {
  return FAMILIES.flatMap((family): SetDefinition[] => {
    const address = ADDRESS_TYPE[family];
    const key = ['inet_proto', 'inet_service'] as const;
    const mapsOf = ({ toAddress, toPort }: PortMaps, type: readonly FieldType[]): SetDefinition[] => [
      { name: toAddress[family], type, interval: false, valueType: address },
      { name: toPort[family], type, interval: false, valueType: 'inet_service' },
    ];
    return [
      ...mapsOf(ANY_ADDRESS, key),
      ...mapsOf(ONE_ADDRESS, [address, ...key]),
      { name: MASQUERADED[family], type: [address, address], interval: false },
    ];
  });
}

/** The elements for some pods, by set. */
function elementsOf(pods: readonly MappedPod[]): ReadonlyMap<string, readonly Json[]> {
  const elements = new Map<string, Json[]>();
  const masqueraded = new Set<string>();
  const add = (set: string, element: Json) => {
    const list = elements.get(set);
    if (list) list.push(element);
    else elements.set(set, [element]);
  };
  for (const { addresses, hostPorts } of pods)
    for (const address of addresses) {
      const { family } = address;
      const to = formatAddress(address);
      for (const { protocol, hostPort, podPort, hostAddress } of hostPorts) {
        if (hostAddress && hostAddress.family !== family) continue;
        const { toAddress, toPort } = hostAddress ? ONE_ADDRESS : ANY_ADDRESS;
        const key = concatJson(
          ...(hostAddress ? [formatAddress(hostAddress)] : []),
          PORT_PROTOCOLS[protocol],
          hostPort,
        );
        add(toAddress[family], [key, to]);
        add(toPort[family], [key, podPort]);
      }
      // Two pods have one address while it moves; the kernel lists an element once.
      if (masqueraded.has(to)) continue;
      masqueraded.add(to);
      add(MASQUERADED[family], concatJson(to, to));
      if (family === 4) add(MASQUERADED[family], concatJson(LOOPBACK_SOURCE, to));
    }
  return elements;
}

/** Deletes connection tracking entries of flows that were sent to some ports of the node, at least one. */
interface FlowDeleter {
  /** @throws Failure KERNEL_REFUSED */
  deletePortFlows(protocol: PortProtocol, ports: readonly number[]): Promise<number>;
}

interface HostPortsOptions extends Omit<TableReconcilerOptions, 'table'> {
  readonly kernel: FlowDeleter;
}

/**
 * Reconciles the table `inet podwire_hostports`, which leads ports of the node to pods. A node gets it with its first pod that has
 * host ports.
 */
export class HostPorts {
  readonly #reconciler: TableReconciler;
  readonly #nft: TableReconcilerOptions['nft'];
  readonly #kernel: FlowDeleter;
  #pods: MappedPods = new Map();

  constructor({ kernel, ...options }: HostPortsOptions) {
    this.#nft = options.nft;
    this.#kernel = kernel;
    this.#reconciler = new TableReconciler({ ...options, table: HOST_PORT_TABLE });
  }

  /**
   * Restores the host ports of the recorded pods, oldest first; of two pods with one port the later one has it. Call once, before
   * any pod is wired.
   * @param ending - pods whose end was interrupted: their ports may have been ended without their flows
   * @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED; it is retried automatically
   */
  async start(networks: readonly MappedPod[], ending: readonly MappedPod[] = []): Promise<void> {
    const pods = new Map<string, MappedPod>();
    const taken = new Set<string>();
    // The record of a pod that died without a DEL may name ports that another pod has by now.
    for (const network of networks.toReversed()) {
      const hostPorts = network.hostPorts.filter((port) => !taken.has(formatHostPortKey(port)));
      for (const port of hostPorts) taken.add(formatHostPortKey(port));
      if (hostPorts.length > 0) pods.set(network.hostInterfaceName, { ...network, hostPorts });
    }
    this.#pods = pods;
    await this.#reconciler.setWanted(pods.size > 0 ? hostPortTable(pods) : 'absent');
    await this.#deleteFlows(ending.flatMap(({ hostPorts }) => hostPorts));
  }

  /**
   * Leads a pod's host ports to it; they replace its earlier ones. Resolves when that is in force. Idempotent.
   * @throws Failure HOST_PORT_TAKEN if another pod has one of them, and then nothing changes; KERNEL_UNSUPPORTED or
   * KERNEL_REFUSED, which is retried unless {@link forget} comes first
   */
  async install(network: MappedPod): Promise<void> {
    const before = this.#pods.get(network.hostInterfaceName);
    if (!before && network.hostPorts.length === 0) return;
    this.#rejectTaken(network);
    await this.#replace(before, network.hostPorts.length > 0 ? network : undefined);
  }

  /** The pod's elements that the table lacks, or has with another value. @throws Failure as {@link install} */
  async differences(network: MappedPod): Promise<readonly Difference[]> {
    if (network.hostPorts.length === 0) return [];
    const objects = (await this.#nft.read(HOST_PORT_TABLE)) ?? [];
    return [...elementsOf([network])].flatMap(([set, elements]) => {
      const listed = listedElements(objects, set);
      const missing = elementTexts(elements).filter((text) => !listed.has(text));
      const object = (element: string) => `element ${element} of ${set} in table ${formatTableName(HOST_PORT_TABLE)}`;
      return missing.map((element) => ({ object: object(element), wanted: 'present', actual: 'missing' }));
    });
  }

  /** Ends the host ports of an interface whose attachment ends. Idempotent. @throws Failure as {@link install} */
  release(hostInterfaceName: string): Promise<void> {
    return this.forget(hostInterfaceName);
  }

  /** Ends the host ports of an interface. Idempotent. @throws Failure as {@link install} */
  async forget(hostInterfaceName: string): Promise<void> {
    const before = this.#pods.get(hostInterfaceName);
    if (before) await this.#replace(before, undefined);
  }

  /** Conditions; empty when the table is as wanted. */
  conditions(): readonly Condition[] {
    const effect = 'host ports of pods are not reachable, and pods with host ports are refused';
    return this.#reconciler.conditions({ reason: 'HostPortsUnavailable' }, effect);
  }

  /** Leaves the table in force. */
  stop(): Promise<void> {
    return this.#reconciler.stop();
  }

  /** @throws Failure HOST_PORT_TAKEN */
  #rejectTaken({ hostInterfaceName, hostPorts }: MappedPod): void {
    const keys = new Set(hostPorts.map(formatHostPortKey));
    for (const holder of this.#pods.values()) {
      const taken = holder.hostPorts.map(formatHostPortKey).find((key) => keys.has(key));
      if (taken !== undefined && holder.hostInterfaceName !== hostInterfaceName) throw takenFailure(taken, holder);
    }
  }

  async #replace(before: MappedPod | undefined, after: MappedPod | undefined): Promise<void> {
    const pods = new Map(this.#pods);
    if (before) pods.delete(before.hostInterfaceName);
    if (after) pods.set(after.hostInterfaceName, after);
    this.#pods = pods;
    await this.#reconciler.setWanted(hostPortTable(pods));
    await this.#deleteFlows([...(before?.hostPorts ?? []), ...(after?.hostPorts ?? [])]);
  }

  /** A UDP client keeps its flow, which leads to the former pod or to the node; connections of TCP and SCTP end with their pod. */
  async #deleteFlows(hostPorts: readonly HostPort[]): Promise<void> {
    const udpPorts = new Set(hostPorts.flatMap(({ protocol, hostPort }) => (protocol === 'udp' ? [hostPort] : [])));
    if (udpPorts.size > 0) await this.#kernel.deletePortFlows('udp', [...udpPorts]);
  }
}

function takenFailure(port: string, { pod, attachment }: MappedPod): Failure {
  const holder = pod ? `pod ${pod.namespace}/${pod.name}` : `container ${attachment.containerId}`;
  const message = `host port ${port}: ${holder} of this node has it; wait for its end, or choose another port`;
  return new Failure('HOST_PORT_TAKEN', message);
}
