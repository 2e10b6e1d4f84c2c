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

  #pools() {
    const { families } = this.#cluster.families;
    return [
      ...families.map((family) => [`pods-${family}`, PODS[family], '--nat-outgoing', 'true']),
      ['extra', EXTRA_PODS, '--assignment', 'manual', '--vxlan', 'always'],
    ];
  }

  async #makePools() {
    for (const pool of this.#pools()) {
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

  /**
   * Removes Podwire as an operator does: without pools the dataplane removes routes, tunnels and NAT. The installer ends
   * with the DaemonSet, before the files are removed: it would restore them.
   */
  async uninstall() {
    const { api, nodes } = this.#cluster;
    for (const [name] of this.#pools()) await this.podwirectl(['pools', 'drain', name, '--yes']);
    const list = async () => JSON.parse(await this.podwirectl(['pools', 'list', '-o', 'json']));
    await until(
      'pools to go',
      async () => ((await list()).pools ?? []).length === 0,
      60,
      () => {
        return this.podwirectl(['pools', 'list']);
      },
    );
    await api.remove('DaemonSet', NAMESPACE, 'podwire-node');
    await until('pods of Podwire to go', async () => (await api.list('Pod', NAMESPACE)).length === 0, 60);
    await Promise.all(nodes.map((node) => this.#removeFiles(node)));
    await api.remove('Namespace', undefined, NAMESPACE);
    await api.removed('Namespace', undefined, NAMESPACE, 60);
  }

  /** Runs `podwire uninstall` on a node, then removes the state. */
  async #removeFiles({ name, machine }) {
    const { api, image } = this.#cluster;
    const folders = { 'cni-bin': '/opt/cni/bin', 'cni-net': '/etc/cni/net.d' };
    const container = {
      name: 'uninstall',
      image,
      command: ['podwire', 'uninstall'],
      env: [{ name: 'PODWIRE_INSTALL_ROOT', value: '/host' }],
      volumeMounts: Object.entries(folders).map(([each, path]) => ({ name: each, mountPath: `/host${path}` })),
    };
    const spec = {
      nodeName: name,
      hostNetwork: true,
      restartPolicy: 'Never',
      tolerations: [{ operator: 'Exists' }],
      securityContext: { runAsUser: 0 },
      automountServiceAccountToken: false,
      containers: [container],
      volumes: Object.entries(folders).map(([each, path]) => ({ name: each, hostPath: { path } })),
    };
    const pod = `uninstall-${name}`;
    await api.apply({ apiVersion: 'v1', kind: 'Pod', metadata: { namespace: NAMESPACE, name: pod }, spec });
    const isDone = async () => (await api.get('Pod', NAMESPACE, pod)).status.phase === 'Succeeded';
    await until(`${name}: podwire uninstall`, isDone, 60);
    machine.run('rm', ['-rf', '/var/lib/podwire', '/run/podwire']);
  }
}
