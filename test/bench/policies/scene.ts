import type { Socket } from 'node:net';
import process from 'node:process';

import { EmbeddedStore } from '@podwire/ipam/engine/embedded/embedded-store';

import { freePort } from '../ipam/etcd.js';
import { IpamCaller, untilServing } from '../ipam/load.js';
import { Certificates, connectTls, type Identity } from '../ipam/network.js';
import { nodeNameOf, populate } from '../ipam/population.js';
import { Place, startIpam, type IpamProcess } from '../ipam/processes.js';
import { CLUSTER_UID, PagedApiServer, type ApiObject } from './api-server.js';
import {
  namespaceObjects,
  nodeObjects,
  podAt,
  podsOf,
  policyObjects,
  POOL,
  type ClusterPod,
  type ClusterSize,
} from './cluster.js';
import { podObject, type PodStage } from './pod-object.js';

const PODS = '/api/v1/pods';
const POLICIES = '/apis/networking.k8s.io/v1/networkpolicies';

const NODES_PER_TRANSACTION = 50;

/** Addresses of nodes in one part of the loopback network. */
const NODES_PER_PART = 250;

/** A cluster: its API server, a datastore with the addresses of all pods, and the certificates of its nodes. */
export class Scene {
  readonly size: ClusterSize;
  readonly #place: Place;
  readonly #api: PagedApiServer;
  readonly #certificates: Certificates;
  readonly #identities = new Map<string, Identity>();
  #port = 0;

  private constructor(size: ClusterSize, place: Place, api: PagedApiServer, certificates: Certificates) {
    this.size = size;
    this.#place = place;
    this.#api = api;
    this.#certificates = certificates;
  }

  static async create(size: ClusterSize): Promise<Scene> {
    const place = new Place();
    const api = await PagedApiServer.start(place.folder);
    api.setList('/api/v1/nodes', nodeObjects(size));
    api.setList('/api/v1/namespaces', namespaceObjects(size));
    api.setList(`/api/v1/namespaces/podwire-system/pods`, []);
    api.setList(PODS, podObjects(size));
    api.setList(POLICIES, policyObjects(size));
    const scene = new Scene(size, place, api, await Certificates.create(place));
    await scene.#fill();
    return scene;
  }

  /** Starts podwire-ipam, one at a time; the caller stops it. */
  async start({ policies }: { readonly policies: boolean }): Promise<IpamProcess> {
    this.#port = await freePort();
    const env = {
      ...this.#api.env,
      ...(await this.#certificates.serverSettings()),
      PODWIRE_IPAM_STORE_DIRECTORY: this.#place.path('store'),
      PODWIRE_IPAM_NODE_CONTROLLER: 'true',
      PODWIRE_IPAM_NETWORK_POLICIES: String(policies),
    };
    const place = { network: `127.0.0.1:${this.#port}`, launcher: this.#api.launcher };
    return startIpam(this.#place, env, place);
  }

  /** Issues the certificates of all nodes, and of further ones. */
  async issueCertificates(...names: readonly string[]): Promise<void> {
    const nodes = Array.from({ length: this.size.nodes }, (_, node) => nodeNameOf(node));
    for (const name of [...nodes, ...names]) this.#identities.set(name, await this.#certificates.identity(name));
  }

  /**
   * Connects a node over TLS.
   * @param number - of the node's address: podwire-ipam limits the connections of each
   */
  connect(name: string, number: number): Promise<Socket> {
    const identity = this.#identities.get(name);
    if (!identity) throw new Error(`${name} has no certificate`);
    const address = `127.1.${Math.floor(number / NODES_PER_PART)}.${(number % NODES_PER_PART) + 1}`;
    return connectTls(this.#port, identity, address);
  }

  reportPod(pod: ClusterPod, stage: PodStage): void {
    this.#api.notify(PODS, stage === 'pending' ? 'ADDED' : 'MODIFIED', podObject(pod, stage));
  }

  reportPolicy(policy: ApiObject): void {
    this.#api.notify(POLICIES, 'MODIFIED', policy);
  }

  async remove(): Promise<void> {
    await this.#api.stop();
    this.#place.remove();
  }

  /** Has the service create its pool at a first start, and writes the rest directly. */
  async #fill(): Promise<void> {
    const first = await this.start({ policies: false });
    const caller = new IpamCaller(first.socket);
    await untilServing(caller);
    caller.close();
    await first.process.stop();
    const store = await EmbeddedStore.open({ directory: this.#place.path('store'), pid: process.pid });
    const { nodes, podsPerNode: containersPerNode } = this.size;
    await populate(store, {
      nodes,
      containersPerNode,
      pool: POOL,
      nodesPerTransaction: NODES_PER_TRANSACTION,
      podOf: (node, container) => podAt(this.size, node, container),
      kubernetesCluster: CLUSTER_UID,
    });
    await store.close();
  }
}

function* podObjects(size: ClusterSize): Generator<ApiObject, void, void> {
  for (const pod of podsOf(size)) yield podObject(pod);
}
