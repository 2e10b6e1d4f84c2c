// Installs Podwire as deploy/README.md says, changes its values, and removes it: the one step that knows the manifests.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { NAMESPACE, RENDER } from '../../../deploy/kubernetes/checksum.mjs';
import { makeAuthority } from './certificates.mjs';
import { Guide } from './guide.mjs';
import { NODES, PODS } from './network.mjs';
import { COLLECTOR } from './observability.mjs';
import { PODWIRE_ETCD_ADDRESS, PodwireEtcd } from './podwire-etcd.mjs';
import { until } from './wait.mjs';

const NODE_POD = 'app.kubernetes.io/name=podwire-node';
export const CONTROL_PLANE_ROLE = 'node-role.kubernetes.io/control-plane';
const SECRETS = { etcd: 'podwire-etcd', authority: 'podwire-authority' };

/** Commands of podwirectl about the node where it runs. */
const OF_NODES = ['node', 'gc', 'journal', 'pods', 'latency', 'trace'];

/** Programs of an administrator. */
const ADMINISTRATION = ['kubectl', 'helm', 'openssl', 'sed'];

/** Tag of the next release: the same image by another name. */
const NEXT_TAG = 'next';

/** Tag of the former release, whose image has the name of this one. */
const FORMER_TAG = 'former';

export class Podwire {
  #cluster;
  #values;
  #store;
  #storeGuide;

  constructor(cluster) {
    this.#cluster = cluster;
    this.guide = new Guide('deploy/README.md');
    this.#storeGuide = new Guide('deploy/kubernetes/README.md');
    // A scenario moves the datastore.
    this.#store = cluster.store;
    // A cluster of one family, IPv4, with the embedded store needs no value.
    this.isDefault = !this.isReplicated && cluster.families.name === 'ipv4' && cluster.e2e === undefined;
    this.#values = this.isDefault ? {} : { ...this.#familyValues(), ...this.#storeValues() };
  }

  get isReplicated() {
    return this.#store !== 'embedded';
  }

  get #isOnKubernetes() {
    return this.#store === 'kubernetes';
  }

  /** The guides whose commands a full run executes. */
  get guides() {
    return [
      ...(this.isDefault ? [this.guide] : []),
      ...(this.#cluster.store === 'kubernetes' ? [this.#storeGuide] : []),
    ];
  }

  #familyValues() {
    const { families } = this.#cluster;
    const pools = families.families.map((family) => ({
      name: `pods-${family}`,
      cidr: PODS[family],
      encapsulation: 'vxlan',
      natOutgoing: true,
    }));
    const serviceFamily = families.name === 'ipv6' ? { serviceFamily: 'IPv6' } : {};
    return { pools, ipam: { ...serviceFamily, ...this.#placeValues() } };
  }

  /** Kubernetes leaves control-plane nodes out of its hints about zones, so no node of its own tests has this role. */
  #placeValues() {
    if (this.#cluster.e2e === undefined) return {};
    const nodeSelector = { [CONTROL_PLANE_ROLE]: null };
    return this.isReplicated ? { nodeSelector } : { nodeName: NODES[0].name, nodeSelector };
  }

  #storeValues() {
    if (!this.isReplicated) return {};
    // Audits often, so that its findings are seen soon.
    const settings = { PODWIRE_IPAM_MAINTENANCE_INTERVAL_SECONDS: '10' };
    const shared = { store: this.#store, authoritySecretName: SECRETS.authority, settings };
    const ipam = { ...this.#familyValues().ipam, ...shared };
    if (this.#isOnKubernetes) return { ipam };
    return {
      ipam: { ...ipam, etcd: { endpoints: [PODWIRE_ETCD_ADDRESS], secretName: SECRETS.etcd } },
      telemetry: { endpoint: COLLECTOR.http },
      dashboards: { enabled: true },
    };
  }

  get #ipam() {
    return this.isReplicated ? { kind: 'Deployment', replicas: 2 } : { kind: 'StatefulSet', replicas: 1 };
  }

  /** Executes a command of the guide, as an administrator or on all nodes. */
  async execute(line) {
    const { controlPlane, nodes, imageArchive } = this.#cluster;
    const [program] = line.split(' ');
    // run.mjs has built the image.
    if (program === 'npm') return;
    if (ADMINISTRATION.includes(program)) await controlPlane.shell(line);
    else if (program === 'ctr') {
      for (const node of nodes) node.shell(line.replace(/deploy\/image\/build\/\S+/, imageArchive));
    } else if (program === 'podwirectl') await this.#executePodwirectl(line.split(' ').slice(1));
    else throw new Error(`deploy/README.md: the lane cannot execute: ${line}`);
  }

  async #executePodwirectl(args) {
    if (!OF_NODES.includes(args[0])) return this.podwirectl(args);
    for (const { name } of this.#cluster.nodes) await this.podwirectlOn(name, args);
  }

  follow(section, block, pattern) {
    return this.guide.follow(section, block, (line) => this.execute(line), pattern);
  }

  /** Nodes become Ready afterwards. */
  async install() {
    const { controlPlane } = this.#cluster;
    await this.#checkByServer();
    if (this.isDefault) return this.follow('Installing', 0);
    await this.follow('Installing', 0, /^ctr /);
    if (this.#isOnKubernetes) return this.#followStoreGuide('The store kubernetes', 0, /^(?!.* exec )/);
    if (this.isReplicated) {
      this.#makeAuthority();
      await this.#prepareEtcd();
    }
    await controlPlane.shell(`helm install ${this.#release()} --create-namespace`);
  }

  /** The API server accepts the manifests. The namespace must exist for this: a dry run makes none. */
  async #checkByServer() {
    const { controlPlane } = this.#cluster;
    await controlPlane.shell(`kubectl create namespace ${NAMESPACE}`);
    await controlPlane.shell('kubectl apply --dry-run=server -f deploy/kubernetes/podwire.yaml');
    if (this.#store !== 'etcd') await controlPlane.shell(`kubectl delete namespace ${NAMESPACE}`);
  }

  /** podwirectl answers in the pod of podwire-ipam, and says on a node that pods can be added. */
  async check() {
    await this.follow('Installing', 2);
    if (this.#isOnKubernetes) await this.#followStoreGuide('The store kubernetes', 0, / exec /);
  }

  /** The first node has the embedded datastore. */
  #followStoreGuide(section, block, pattern) {
    const [{ name }] = this.#cluster.nodes;
    const ofCluster = (line) => {
      const isInstallation = /^helm install podwire /.test(line);
      return `${line.replace('node-1', name)}${isInstallation ? ` --values ${this.#valuesFile()}` : ''}`;
    };
    return this.#storeGuide.follow(section, block, (line) => this.execute(ofCluster(line)), pattern);
  }

  /** The definitions of a former installation go; with the embedded store, pods get addresses of the same pools. */
  async installEmbedded() {
    const { controlPlane, nodes } = this.#cluster;
    await this.removeDefinitions();
    this.#store = 'embedded';
    this.#values = merge(this.#familyValues(), { ipam: { nodeName: nodes[0].name } });
    await controlPlane.shell(`helm install ${this.#release()} --create-namespace`);
    await this.ready(180);
  }

  removeDefinitions() {
    return this.#followStoreGuide('Removing the definitions', 0);
  }

  /** Moves the embedded datastore into the API server. */
  async moveToKubernetes() {
    const [{ name }] = this.#cluster.nodes;
    this.#cluster.controlPlane.editManifest('examples/transfer.yaml', 'node-1', name);
    await this.#followStoreGuide('Moving a datastore', 0);
    this.#store = 'kubernetes';
    await this.ready(180);
  }

  async moveBack() {
    this.#cluster.nodes[0].machine.run('rm', ['-r', '/var/lib/podwire/server/ipam']);
    await this.#followStoreGuide('Moving a datastore', 1);
    this.#store = 'embedded';
    await this.ready(180);
  }

  async #prepareEtcd() {
    const { controlPlane, folder, programs } = this.#cluster;
    this.etcd = new PodwireEtcd({ folder, path: programs.etcd });
    await this.etcd.start();
    const files = Object.entries(this.etcd.clientFiles()).map(([name, path]) => `--from-file=${name}=${path}`);
    controlPlane.kubectl(['-n', NAMESPACE, 'create', 'secret', 'generic', SECRETS.etcd, ...files]);
  }

  #makeAuthority() {
    const { controlPlane, folder } = this.#cluster;
    const { cert, key } = makeAuthority(folder, 'podwire-authority');
    const files = [`--cert=${cert}`, `--key=${key}`];
    controlPlane.kubectl(['-n', NAMESPACE, 'create', 'secret', 'tls', SECRETS.authority, ...files]);
  }

  /** Arguments of helm that install or upgrade. */
  #release() {
    return `podwire deploy/kubernetes/chart --namespace ${NAMESPACE} --values ${this.#valuesFile()}`;
  }

  #valuesFile() {
    const file = join(this.#cluster.folder, 'values.json');
    writeFileSync(file, JSON.stringify(this.#values));
    return file;
  }

  /** Changes values of the chart, and waits until all pods have them. */
  async configure(change) {
    this.#values = merge(this.#values, change);
    const { controlPlane } = this.#cluster;
    if (this.isDefault) {
      const manifest = await controlPlane.shell(`helm ${RENDER.join(' ')} --values ${this.#valuesFile()}`);
      controlPlane.kubectl(['apply', '-f', '-'], manifest);
    } else {
      await controlPlane.shell(`helm upgrade ${this.#release()}`);
    }
    await this.ready(180);
  }

  #tagImages() {
    for (const node of this.#cluster.nodes) node.tagImage(this.#cluster.image, NEXT_TAG);
  }

  /** Upgrades to an image of another name, and back. */
  async upgrade() {
    this.#tagImages();
    await this.configure({ image: { tag: NEXT_TAG } });
  }

  downgrade() {
    return this.configure({ image: { tag: '' } });
  }

  /** Applies the manifests of the former release, with its image. */
  async installFormer() {
    const { controlPlane, nodes, image, imageArchive, former } = this.#cluster;
    for (const node of nodes) {
      node.importImage(former.imageArchive);
      node.tagImage(image, FORMER_TAG);
      node.importImage(imageArchive);
    }
    const manifest = readFileSync(join(former.manifests, 'podwire.yaml'), 'utf8');
    controlPlane.kubectl(['apply', '-f', '-'], manifest.replaceAll(image, image.replace(/:[^:]*$/, `:${FORMER_TAG}`)));
    await this.ready(180);
  }

  async installByManifests() {
    await this.follow('Installing', 0, /^kubectl apply/);
    await this.ready(180);
  }

  /** Nodes return the addresses that no pod has. */
  async stopLeasing() {
    await this.follow('Downgrading', 0, /^kubectl /);
    const areReturned = async () => JSON.parse(await this.podwirectl(['leases', '-o', 'json'])).nodes.length === 0;
    await until('leases to be returned', areReturned, 30);
  }

  /** Frees addresses that nodes have leased and do not use. */
  async freeLeases() {
    for (const { name } of this.#cluster.nodes) {
      await this.guide.follow('Downgrading', 1, (line) => this.execute(line.replace('node-1', name)));
    }
  }

  /** The pod of a node, by the node's name. */
  async podOn(node) {
    const pods = await this.#cluster.api.list('Pod', NAMESPACE, NODE_POD);
    const pod = pods.find(({ spec, metadata }) => spec.nodeName === node && !metadata.deletionTimestamp);
    if (pod === undefined) throw new Error(`${node}: no pod of Podwire`);
    return pod.metadata.name;
  }

  /** podwirectl beside podwire-ipam, whose unix socket permits every call. */
  async podwirectl(args) {
    const { controlPlane } = this.#cluster;
    const pod = this.#isOnKubernetes ? (await this.leader()).name : `${this.#ipam.kind.toLowerCase()}/podwire-ipam`;
    return controlPlane.kubectl(['exec', '-n', NAMESPACE, pod, '-c', 'ipam', '--', 'podwirectl', ...args]);
  }

  /** The pod that holds the Lease of the store `kubernetes`, and its node. */
  async leader() {
    const leaders = () => this.#cluster.api.list('Pod', NAMESPACE, 'podwire.dev/leader=true');
    await until('one podwire-ipam to lead', async () => (await leaders()).length === 1, 60);
    const [{ metadata, spec }] = await leaders();
    return { name: metadata.name, node: this.#cluster.nodes.find(({ name }) => name === spec.nodeName) };
  }

  /** Names of the pods of podwire-ipam that serve: all, or the leader. */
  async serving() {
    if (this.#isOnKubernetes) return [(await this.leader()).name];
    const pods = await this.#cluster.api.list('Pod', NAMESPACE, 'app.kubernetes.io/name=podwire-ipam');
    return pods.map(({ metadata }) => metadata.name);
  }

  /** podwirectl beside podwire-node of a node. */
  async podwirectlOn(node, args) {
    const exec = ['exec', '-n', NAMESPACE, await this.podOn(node), '-c', 'node', '--', 'podwirectl'];
    return this.#cluster.controlPlane.kubectl([...exec, ...args]);
  }

  /** All containers of podwire-ipam and of all nodes run and pass their probes. */
  async ready(timeoutSeconds) {
    const { api, nodes } = this.#cluster;
    const isNodeReady = async () => {
      const { metadata, status } = await api.get('DaemonSet', NAMESPACE, 'podwire-node');
      const wanted = status.desiredNumberScheduled;
      const isUpToDate = status.observedGeneration === metadata.generation && status.updatedNumberScheduled === wanted;
      return isUpToDate && wanted === nodes.length && status.numberReady === wanted;
    };
    const isIpamReady = async () => {
      const { kind, replicas } = this.#ipam;
      const { metadata, status } = await api.get(kind, NAMESPACE, 'podwire-ipam');
      const isUpToDate = status.observedGeneration === metadata.generation && status.updatedReplicas === replicas;
      return isUpToDate && status.readyReplicas === replicas && status.replicas === replicas;
    };
    const state = async () => (await isIpamReady()) && (await isNodeReady());
    const describe = () => this.#cluster.controlPlane.kubectl(['get', 'pods', '-n', NAMESPACE, '-o', 'wide']);
    await until('podwire-ipam and podwire-node', state, timeoutSeconds, describe);
  }

  async restart() {
    const template = { metadata: { annotations: { 'cluster-test/restarted': String(Date.now()) } } };
    await this.#cluster.api.patch('DaemonSet', NAMESPACE, 'podwire-node', { spec: { template } });
  }

  /** A pool that pods get by their annotation only. */
  makeManualPool(name, cidr) {
    return this.podwirectl(['create', 'ippool', name, `cidr=${cidr}`, 'assignmentMode=Manual']);
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

  /** Saves the embedded datastore, loses it, and restores it. */
  async backUpAndRestore() {
    const [{ machine }] = this.#cluster.nodes;
    const restore = (line) => {
      const imports = line.replace('podwire-ipam export /var/lib/podwire/backup.jsonl', 'podwire-ipam import');
      for (const args of ['--dry-run /var/lib/podwire/backup.jsonl', '/var/lib/podwire/backup.jsonl']) {
        this.#onIpamNode(`${imports} ${args}`);
      }
    };
    await this.follow('Backup and restore', 0, /scale .*=0/);
    await this.#ipamPods(0);
    await this.guide.follow(
      'Backup and restore',
      0,
      (line) => {
        this.#onIpamNode(line);
        machine.run('sh', ['-c', 'rm /var/lib/podwire/server/ipam/*']);
        restore(line);
      },
      /^ctr /,
    );
    await this.follow('Backup and restore', 0, /scale .*=1/);
    await this.ready(120);
    machine.run('rm', ['/var/lib/podwire/server/backup.jsonl']);
  }

  #onIpamNode(line) {
    this.#cluster.nodes[0].shell(line);
  }

  async #ipamPods(count) {
    const list = () => this.#cluster.api.list('Pod', NAMESPACE, 'app.kubernetes.io/name=podwire-ipam');
    await until(`${count} pods of podwire-ipam`, async () => (await list()).length === count, 60);
  }

  /** Releases the addresses of a node that does not come back. */
  forget(node) {
    return this.guide.follow('Uninstalling', 3, (line) => this.execute(line.replace('node-1', node)));
  }

  async installWithHelm() {
    await this.follow('Installing', 1);
    await this.ready(180);
  }

  /** Installs the chart and the image of a registry, as deploy/release/README.md says. */
  async installFromRegistry({ registry, version }) {
    const chart = `oci://${registry}/charts/podwire --version ${version} --plain-http`;
    const values = `--values ${this.#valuesFile()} --set image.repository=${registry}/podwire`;
    const { controlPlane } = this.#cluster;
    await controlPlane.shell(`helm install podwire ${chart} --namespace ${NAMESPACE} --create-namespace ${values}`);
    await this.ready(180);
  }

  /** Runs the chart's test. @throws Error when a path is broken, or none was tested */
  async testWithHelm() {
    const output = await this.#cluster.controlPlane.shell(`helm -n ${NAMESPACE} test podwire --logs`);
    if (!/([1-9]\d*) of \1 paths passed between 2 nodes, 0 broken/.test(output))
      throw new Error(`helm test: ${output}`);
  }

  async upgradeWithHelm() {
    this.#tagImages();
    const ofNextRelease = (line) => (line.startsWith('helm ') ? `${line} --set image.tag=${NEXT_TAG}` : line);
    await this.guide.follow('Upgrading', 0, (line) => this.execute(ofNextRelease(line)));
    await this.ready(180);
  }

  async rollBackWithHelm() {
    await this.stopLeasing();
    await this.freeLeases();
    await this.follow('Downgrading', 0, /^helm /);
    await this.ready(180);
  }

  /** Uninstalls by the guide. */
  async uninstall() {
    const { api } = this.#cluster;
    await this.follow('Uninstalling', 0);
    await api.removed('Namespace', undefined, NAMESPACE, 60);
  }

  async uninstallWithHelm() {
    await this.follow('Uninstalling', 1);
  }
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

function merge(values, change) {
  const merged = { ...values };
  for (const [key, value] of Object.entries(change)) {
    merged[key] = isObject(value) && isObject(values[key]) ? merge(values[key], value) : value;
  }
  return merged;
}
