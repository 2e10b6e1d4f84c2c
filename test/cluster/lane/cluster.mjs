// The cluster as scenarios see it: nodes, API, pods, and Podwire.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { ControlPlane } from './control-plane.mjs';
import { CONTROL_PLANE_ROLE, Podwire } from './install.mjs';
import { makeNetwork, nodesOf } from './network.mjs';
import { Node } from './node.mjs';
import { Observability } from './observability.mjs';
import { makePodImage, POD_IMAGE } from './pod-image.mjs';
import { must, until } from './wait.mjs';

/** Seconds for a state that a cluster reaches soon on two shared processors. */
const SOON = 120;

export class Cluster {
  /**
   * `former`: image archive and manifests of the former release, undefined if it is not tested. `e2e`: groups and images of
   * Kubernetes' own tests, undefined without them.
   */
  constructor({ folder, cgroup, programs, families, store, kubeProxy, e2e, ...podwire }) {
    Object.assign(this, { folder, cgroup, programs, families, store, kubeProxy, e2e, ...podwire });
    this.podwire = new Podwire(this);
  }

  /** Starts everything; the nodes stay NotReady until Podwire is installed. */
  async start() {
    const path = ['kubernetes', 'containerd', 'runc', 'etcd', 'helm'].map((group) => this.programs[group]).join(':');
    makeNetwork(join(this.programs.pod, 'pod'));
    this.controlPlane = new ControlPlane({ folder: this.folder, path });
    this.api = await this.controlPlane.start(this.families);
    const { folder, cgroup, programs, controlPlane, families, kubeProxy } = this;
    // The etcd cluster, whose dashboards are looked at.
    const isTraced = this.store === 'etcd';
    if (isTraced) {
      this.observability = new Observability({ folder, programs });
      await this.observability.start();
    }
    const plugins = this.e2e === undefined ? ['loopback', 'portmap', 'bandwidth'] : ['loopback'];
    const settings = { folder, cgroup, path, programs, controlPlane, families, isTraced, kubeProxy, plugins };
    const places = nodesOf(this.e2e !== undefined);
    this.nodes = places.map((node) => new Node({ node, ...settings }));
    await Promise.all(this.nodes.map((node) => node.start()));
    const images = [makePodImage(this.folder, join(this.programs.pod, 'pod'))];
    if (this.e2e !== undefined) images.push(this.e2e.images);
    for (const node of this.nodes) for (const image of images) node.importImage(image);
    await until('nodes to register', async () => (await this.api.list('Node')).length === places.length, SOON);
    if (this.e2e === undefined) await this.#labelControlPlane(places);
  }

  /** One control-plane node keeps the embedded datastore; with another store each runs a podwire-ipam. */
  async #labelControlPlane(places) {
    const label = { metadata: { labels: { [CONTROL_PLANE_ROLE]: '' } } };
    for (const { name } of this.store === 'embedded' ? places.slice(0, 1) : places) {
      await this.api.patch('Node', undefined, name, label);
    }
  }

  async nodesReady(timeoutSeconds = SOON) {
    await until(
      'nodes to be Ready',
      async () => (await this.api.list('Node')).every(isReady),
      timeoutSeconds,
      () => {
        return this.controlPlane.kubectl(['get', 'nodes']);
      },
    );
  }

  /** Waits until the control plane has noticed that a node is gone. */
  async nodeLost(name) {
    await until(`${name} to be NotReady`, async () => !isReady(await this.api.get('Node', undefined, name)), SOON);
  }

  async namespace(name) {
    await this.api.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name } });
    // Pods without a service account are refused, and the controller makes it a moment later.
    await until('service account', async () => Boolean(await this.api.get('ServiceAccount', name, 'default')), SOON);
  }

  async removeNamespace(name) {
    await this.api.remove('Namespace', undefined, name);
    await this.api.removed('Namespace', undefined, name, SOON);
  }

  /** Writes the state of pods and the latest events beside the logs, before a failed scenario's objects are removed. */
  diagnose(name) {
    const commands = [
      ['get', 'nodes,pods', '-A', '-o', 'wide'],
      ['get', 'events', '-A', '--sort-by=.lastTimestamp'],
      ['describe', 'pods', '-n', 'podwire-system'],
    ];
    const outputs = commands.map((args) => {
      try {
        return this.controlPlane.kubectl(args);
      } catch (error) {
        return error.message;
      }
    });
    writeFileSync(
      join(this.controlPlane.logs, `failed ${name.replaceAll(/\W+/g, ' ').trim()}.txt`),
      outputs.join('\n'),
    );
  }

  /** Pods that serve HTTP on port 8080. `annotations` apply to each pod; `first`: where its first datagrams go. */
  deployment({ namespace, name, replicas, annotations = {}, version = '1', ports = [], strategy, first }) {
    const labels = { app: name };
    return this.api.apply({
      apiVersion: 'apps/v1',
      kind: 'Deployment',
      metadata: { namespace, name },
      spec: {
        replicas,
        selector: { matchLabels: labels },
        ...(strategy === undefined ? {} : { strategy }),
        template: {
          metadata: { labels, annotations: { version, ...annotations } },
          spec: podSpec({ ports, spread: labels, first }),
        },
      },
    });
  }

  pod({ namespace, name, node, annotations = {}, ports = [] }) {
    const metadata = { namespace, name, annotations, labels: { app: name } };
    return this.api.apply({ apiVersion: 'v1', kind: 'Pod', metadata, spec: { ...podSpec({ ports }), nodeName: node } });
  }

  /** Waits until exactly `count` pods run. @returns them */
  async running(namespace, count, timeoutSeconds = SOON) {
    const isRunning = (pod) => !pod.metadata.deletionTimestamp && isReady(pod);
    const found = async () => {
      const pods = await this.api.list('Pod', namespace);
      return pods.length === count && pods.every(isRunning) ? pods : undefined;
    };
    const events = () => this.controlPlane.kubectl(['get', 'events', '-n', namespace, '--sort-by=.lastTimestamp']);
    return until(`${count} running pods in ${namespace}`, found, timeoutSeconds, () => tail(events(), 8));
  }

  /** Lets all `from` (addresses) and the node request all `to` (URLs). @throws Error with the failures */
  sweep(from, to, node = this.nodes[0]) {
    const servers = from.map((address) => `${bracketed(address)}:8080`);
    const program = join(this.programs.pod, 'pod');
    node.machine.run(program, ['sweep', servers.join(','), to.join(',')]);
  }

  /** Answer of a URL, asked from a node. */
  call(url, node = this.nodes[0]) {
    return JSON.parse(node.machine.run(join(this.programs.pod, 'pod'), ['call', url]));
  }

  /** Answer of a URL, asked from the host outside. */
  callFromOutside(url) {
    return JSON.parse(must('ip', ['netns', 'exec', 'outside', join(this.programs.pod, 'pod'), 'call', url]));
  }

  /** The addresses of a pod, one of each family of the cluster. */
  addressesOf(pod) {
    const addresses = (pod.status.podIPs ?? []).map(({ ip }) => ip);
    if (addresses.length !== this.families.families.length) {
      throw new Error(`${pod.metadata.name}: has ${addresses.join(', ') || 'no address'}, not one of each family`);
    }
    return addresses;
  }
}

function isReady({ status }) {
  return status.conditions?.some(({ type, status: is }) => type === 'Ready' && is === 'True') ?? false;
}

function podSpec({ ports, spread, first = [] }) {
  const args = ['serve', '8080', ...(first.length === 0 ? [] : [first.join(',')])];
  return {
    terminationGracePeriodSeconds: 2,
    // Every node has the image, and no account's token is needed.
    automountServiceAccountToken: false,
    ...(spread === undefined ? {} : { topologySpreadConstraints: [spreadOver(spread)] }),
    containers: [{ name: 'pod', image: POD_IMAGE, imagePullPolicy: 'Never', args, ports }],
  };
}

function spreadOver(labels) {
  const topology = { topologyKey: 'kubernetes.io/hostname', whenUnsatisfiable: 'ScheduleAnyway' };
  return { maxSkew: 1, ...topology, labelSelector: { matchLabels: labels } };
}

export function bracketed(address) {
  return address.includes(':') ? `[${address}]` : address;
}

/** Where a pod or node serves HTTP. */
export const url = (address, port = 8080) => `http://${bracketed(address)}:${port}/`;

/** @returns the addresses of the pods. @throws Error when two pods have the same one */
export function expectNoDuplicates(cluster, pods) {
  const addresses = pods.flatMap((pod) => cluster.addressesOf(pod));
  const duplicates = addresses.filter((address, index) => addresses.indexOf(address) !== index);
  if (duplicates.length > 0) throw new Error(`addresses of several pods: ${duplicates.join(', ')}`);
  return addresses;
}

export function tail(text, count) {
  return `\n${text.trim().split('\n').slice(-count).join('\n')}`;
}
