import { performance } from 'node:perf_hooks';
import { readdirSync, readFileSync } from 'node:fs';
import process from 'node:process';

import type { Socket } from 'node:net';
import { EmbeddedStore } from '@podwire/ipam/engine/embedded/embedded-store';

import { freePort } from '../ipam/etcd.js';
import { Certificates, connectTls, type Identity } from '../ipam/network.js';
import { LightClient } from '../ipam/light-client.js';
import { IpamCaller, untilServing } from '../ipam/load.js';
import { nodeNameOf, populate } from '../ipam/population.js';
import { Place, startIpam, type IpamProcess } from '../ipam/processes.js';
import { CLUSTER_UID, PagedApiServer } from './api-server.js';
import {
  namespaceObjects,
  nodeObjects,
  podAt,
  podObject,
  podsOf,
  policyObjects,
  POOL,
  type ClusterSize,
} from './cluster.js';
import { PolicyNode } from './policy-nodes.js';

export const PODS = '/api/v1/pods';
export const POLICIES = '/apis/networking.k8s.io/v1/networkpolicies';

/** A cluster with its API server, and a datastore that has the addresses of all pods. */
export class Scene {
  readonly size: ClusterSize;
  readonly api: PagedApiServer;
  readonly #place: Place;
  readonly #certificates: Certificates;
  readonly #identities = new Map<string, Identity>();
  #port = 0;

  private constructor(size: ClusterSize, api: PagedApiServer, place: Place, certificates: Certificates) {
    this.size = size;
    this.#certificates = certificates;
    this.api = api;
    this.#place = place;
  }

  static async create(size: ClusterSize): Promise<Scene> {
    const place = new Place();
    const api = await PagedApiServer.start(place.folder);
    api.setList('/api/v1/nodes', nodeObjects(size));
    api.setList('/api/v1/namespaces', namespaceObjects(size));
    api.setList('/api/v1/namespaces/podwire-system/pods', []);
    api.setList(PODS, podObjects(size));
    api.setList(POLICIES, policyObjects(size));
    const scene = new Scene(size, api, place, await Certificates.create(place));
    await scene.#fill();
    return scene;
  }

  /** Starts podwire-ipam, which is stopped by the caller. */
  async start(env: Readonly<Record<string, string>> = {}): Promise<IpamProcess> {
    this.#port = await freePort();
    const network = `127.0.0.1:${this.#port}`;
    const own = {
      PODWIRE_IPAM_STORE_DIRECTORY: this.#place.path('store'),
      PODWIRE_IPAM_NODE_CONTROLLER: 'true',
      PODWIRE_IPAM_DEFAULT_POOL_CIDR: POOL,
    };
    const options = {
      IPAM_NODE_FLAGS: env.PODWIRE_IPAM_NETWORK_POLICIES === undefined ? (process.env.IPAM_NODE_OPTIONS ?? '') : '',
    };
    return startIpam(
      this.#place,
      { ...own, ...this.api.env, ...options, ...(await this.#certificates.serverSettings()), ...env },
      { network, launcher: this.api.launcher },
    );
  }

  /** Issues the certificates of all nodes, and of further callers. */
  async issue(...names: readonly string[]): Promise<void> {
    const nodes = Array.from({ length: this.size.nodes }, (_, node) => nodeNameOf(node));
    for (const name of [...nodes, ...names]) this.#identities.set(name, await this.#certificates.identity(name));
  }

  /** A connection over TLS. Each node has an address of its own. */
  async connect(name: string, number: number): Promise<Socket> {
    const identity = this.#identities.get(name);
    if (!identity) throw new Error(`${name} has no certificate`);
    return connectTls(this.#port, identity, `127.1.${Math.floor(number / 250)}.${(number % 250) + 1}`);
  }

  logs(): string {
    return readdirSync(this.#place.folder)
      .filter((name) => name.endsWith('.log'))
      .map((name) => readFileSync(this.#place.path(name), 'utf8').split('\n').slice(-6).join('\n'))
      .slice(-1)
      .join('\n');
  }

  async remove(): Promise<void> {
    await this.api.stop();
    this.#place.remove();
  }

  async #fill(): Promise<void> {
    const first = await this.start({ PODWIRE_IPAM_NETWORK_POLICIES: 'false' });
    const caller = new IpamCaller(first.socket);
    await untilServing(caller);
    caller.close();
    await first.process.stop();
    const store = await EmbeddedStore.open({ directory: this.#place.path('store'), pid: process.pid });
    const { nodes, podsPerNode: containersPerNode } = this.size;
    const podOf = (node: number, container: number) => podAt(this.size, node, container);
    await populate(store, {
      nodes,
      containersPerNode,
      pool: POOL,
      nodesPerTransaction: 50,
      podOf,
      kubernetesCluster: CLUSTER_UID,
    });
    await store.close();
  }
}

function* podObjects(size: ClusterSize) {
  for (const pod of podsOf(size)) yield podObject(pod);
}

export interface Start {
  readonly servingS: number;
  readonly followedS: number;
  readonly processorS: number;
}

/** Waits until a node gets its policies. @returns milliseconds since the start */
export async function untilFollowed(ipam: IpamProcess, startMs: number): Promise<number> {
  for (;;) {
    const client = new LightClient(ipam.socket);
    const connect = () => Promise.resolve(client);
    const node = new PolicyNode(0, connect, { added: () => undefined, received: () => undefined });
    await node.follow();
    while (!node.isComplete && node.failure === undefined) await new Promise((resolve) => setTimeout(resolve, 5));
    client.close();
    if (node.isComplete) return performance.now() - startMs;
    if (performance.now() - startMs > 300_000) throw new Error(`no policies: ${node.failure}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export { nodeNameOf };
