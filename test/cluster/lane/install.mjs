// Installs Podwire, and removes it: the one step that knows the manifests.
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { ETCD_ADDRESS } from './control-plane.mjs';
import { EXTRA_PODS, PODS } from './network.mjs';
import { until } from './wait.mjs';

const MANIFEST = join(dirname(fileURLToPath(import.meta.url)), '..', 'podwire.yaml');
export const NAMESPACE = 'podwire-system';
const NODE_POD = 'app.kubernetes.io/name=podwire-node';

function conflist(families) {
  const has = (family) => String(families.families.includes(family));
  const ipam = { type: 'podwire-ipam', assign_ipv4: has('ipv4'), assign_ipv6: has('ipv6') };
  const capabilities = { 'io.kubernetes.cri.pod-annotations': true };
  const podwire = { type: 'podwire', capabilities, ipam };
  const portmap = { type: 'portmap', capabilities: { portMappings: true }, snat: true, backend: 'nftables' };
  const versions = { cniVersion: '1.0.0', cniVersions: ['0.4.0', '1.0.0', '1.1.0'] };
  return JSON.stringify({ ...versions, name: 'k8s-pod-network', plugins: [podwire, portmap] });
}

export class Podwire {
  #cluster;

  constructor(cluster) {
    this.#cluster = cluster;
  }

  #manifest(image) {
    const values = { IMAGE: image, ETCD: ETCD_ADDRESS, CONFLIST: JSON.stringify(conflist(this.#cluster.families)) };
    return readFileSync(MANIFEST, 'utf8').replaceAll(/__(\w+)__/g, (_, name) => values[name]);
  }

  /** Applies the manifests and makes the pools. Nodes become Ready afterwards. */
  async install() {
    this.#cluster.controlPlane.kubectl(['apply', '-f', '-'], this.#manifest(this.#cluster.image));
    await this.#makePools();
  }

  /** The pod of a node, by the node's name. */
  async podOn(node) {
    const pods = await this.#cluster.api.list('Pod', NAMESPACE, NODE_POD);
    const pod = pods.find(({ spec, metadata }) => spec.nodeName === node && !metadata.deletionTimestamp);
    if (pod === undefined) throw new Error(`${node}: no pod of Podwire`);
    return pod.metadata.name;
  }

  async podwirectl(args, node = 'node-a') {
    const exec = ['exec', '-n', NAMESPACE, await this.podOn(node), '-c', 'plugin', '--', 'podwirectl'];
    return this.#cluster.controlPlane.kubectl([...exec, ...args]);
  }

  async #makePools() {
    const pools = [
      ...this.#cluster.families.families.map((family) => [`pods-${family}`, PODS[family], '--nat-outgoing', 'true']),
      ['extra', EXTRA_PODS, '--assignment', 'manual', '--vxlan', 'always'],
    ];
    for (const pool of pools) {
      await until(`pool ${pool[0]}`, async () => Boolean(await this.podwirectl(['pools', 'create', ...pool])), 60);
    }
  }

  /** All containers of all nodes run and pass their probes. */
  async ready(timeoutSeconds) {
    const { api } = this.#cluster;
    const state = async () => {
      const { metadata, status } = await api.get('DaemonSet', NAMESPACE, 'podwire-node');
      const wanted = status.desiredNumberScheduled;
      const isUpToDate = status.observedGeneration === metadata.generation && status.updatedNumberScheduled === wanted;
      return isUpToDate && wanted === this.#cluster.nodes.length && status.numberReady === wanted;
    };
    await until('DaemonSet podwire-node', state, timeoutSeconds);
  }

  async restart() {
    const template = { metadata: { annotations: { 'cluster-test/restarted': String(Date.now()) } } };
    await this.#cluster.api.patch('DaemonSet', NAMESPACE, 'podwire-node', { spec: { template } });
  }

  /** Runs `during` while podwire-ipam does not answer: its processes are frozen, as a dead machine's are silent. */
  async withoutIpam(during) {
    const signal = (name) => this.#cluster.nodes.forEach(({ machine }) => machine.signal(/podwire-ipam/, name));
    signal('SIGSTOP');
    try {
      await during();
    } finally {
      signal('SIGCONT');
    }
  }

  /** Removes Podwire as its operator would: the configuration and programs of each node, then the namespace. */
  async uninstall() {
    for (const { name } of this.#cluster.nodes) await this.#removeFrom(name);
    await this.#cluster.api.remove('Namespace', undefined, NAMESPACE);
    await this.#cluster.api.removed('Namespace', undefined, NAMESPACE, 60);
  }

  async #removeFrom(node) {
    // The container that restores the files ends first.
    const machine = this.#cluster.nodes.find(({ name }) => name === node).machine;
    const pod = await this.podOn(node);
    const exec = ['exec', '-n', NAMESPACE, pod, '-c', 'install', '--', 'podwire', 'uninstall'];
    this.#cluster.controlPlane.kubectl(exec);
    machine.run('rm', ['-rf', '/var/lib/podwire']);
  }
}
