// A node: a machine with containerd, kubelet and kube-proxy.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { kubeconfig } from './control-plane.mjs';
import { ROOT } from './guide.mjs';
import { Machine } from './machine.mjs';
import { addressesOf, PODS, SERVICE_OF_DNS } from './network.mjs';
import { COLLECTOR } from './observability.mjs';
import { PAUSE_IMAGE, POD_IMAGE } from './pod-image.mjs';
import { must, until } from './wait.mjs';

const CONTAINERD = (runc) => `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "${PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
  BinaryName = "${runc}"
`;

const KUBELET = {
  apiVersion: 'kubelet.config.k8s.io/v1beta1',
  kind: 'KubeletConfiguration',
  authentication: { anonymous: { enabled: true }, webhook: { enabled: false } },
  authorization: { mode: 'AlwaysAllow' },
  failCgroupV1: false,
  cgroupDriver: 'cgroupfs',
  protectKernelDefaults: true,
  failSwapOn: false,
  containerRuntimeEndpoint: 'unix:///run/containerd/containerd.sock',
  volumePluginDir: '/var/lib/kubelet/volumeplugins',
  staticPodPath: '/var/lib/kubelet/manifests',
  podLogsDir: '/var/log/pods',
  clusterDomain: 'cluster.local',
  evictionHard: { 'memory.available': '50Mi' },
};

/** Settings from deploy/observability/README.md. */
const TRACING = {
  kubelet: { tracing: { endpoint: COLLECTOR.grpc, samplingRatePerMillion: 1_000_000 } },
  containerd: {
    OTEL_EXPORTER_OTLP_ENDPOINT: COLLECTOR.http,
    OTEL_EXPORTER_OTLP_PROTOCOL: 'http/protobuf',
    OTEL_SERVICE_NAME: 'containerd',
  },
};

/** No value of conntrack is set: they are the host's. */
const PROXY = (name, families, mode) => ({
  apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
  kind: 'KubeProxyConfiguration',
  mode,
  hostnameOverride: name,
  clusterCIDR: families.pick(PODS).join(','),
  clientConnection: { kubeconfig: '/var/lib/cluster/admin' },
  conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
});

export class Node {
  constructor({ node, folder, cgroup, path, programs, controlPlane, families, isTraced, kubeProxy, plugins }) {
    Object.assign(this, { ...node, programs, families, isTraced });
    this.folder = join(folder, node.name);
    this.machine = new Machine({ name: node.name, folder: this.folder, cgroup, path, ...addressesOf(node) });
    const disk = join(this.folder, 'var', 'lib');
    mkdirSync(join(disk, 'cluster'), { recursive: true });
    mkdirSync(join(disk, 'kubelet', 'manifests'), { recursive: true });
    mkdirSync(join(this.folder, 'opt', 'cni', 'bin'), { recursive: true });
    const write = (name, text) => writeFileSync(join(disk, 'cluster', name), text);
    write('containerd.toml', CONTAINERD(join(programs.runc, 'runc')));
    const kubelet = { ...KUBELET, clusterDNS: families.pick(SERVICE_OF_DNS) };
    write('kubelet.yaml', JSON.stringify(isTraced ? { ...kubelet, ...TRACING.kubelet } : kubelet));
    write('proxy.yaml', JSON.stringify(PROXY(node.name, families, kubeProxy)));
    write('kubeconfig', kubeconfig(controlPlane.ca, node.name));
    write('admin', kubeconfig(controlPlane.ca, 'admin'));
    must('cp', [...plugins.map((name) => join(programs.plugins, name)), join(this.folder, 'opt', 'cni', 'bin')]);
  }

  /** Starts the machine and what its init system starts. */
  async start() {
    await this.machine.start();
    this.#startContainerd();
    await until(`${this.name}: containerd`, () => this.machine.enter(['ctr', 'version']).status === 0, 20);
    this.#startKubelet();
    this.machine.spawn('kube-proxy', ['--config=/var/lib/cluster/proxy.yaml']);
  }

  #startContainerd() {
    const tracing = this.isTraced ? TRACING.containerd : {};
    this.machine.spawn('containerd', ['-c', '/var/lib/cluster/containerd.toml'], tracing);
  }

  #startKubelet() {
    this.machine.spawn('kubelet', [
      '--config=/var/lib/cluster/kubelet.yaml',
      '--kubeconfig=/var/lib/cluster/kubeconfig',
      `--hostname-override=${this.name}`,
      `--node-ip=${this.families.pick(this).join(',')}`,
      '--root-dir=/var/lib/kubelet',
      '--cert-dir=/var/lib/kubelet/pki',
    ]);
  }

  /** @returns the manifest's file: without it the pod ends */
  startStaticPod({ namespace, ports = [] }) {
    const file = join(this.folder, 'var', 'lib', 'kubelet', 'manifests', 'static.json');
    const containers = [{ name: 'pod', image: POD_IMAGE, imagePullPolicy: 'Never', args: ['serve', '8080'], ports }];
    const pod = {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'static', namespace },
      spec: { containers, terminationGracePeriodSeconds: 2 },
    };
    writeFileSync(file, JSON.stringify(pod));
    return file;
  }

  importImage(archive) {
    this.machine.run('ctr', ['-n', 'k8s.io', 'images', 'import', archive]);
  }

  /** Gives an image another tag. */
  tagImage(image, tag) {
    this.machine.run('ctr', ['-n', 'k8s.io', 'images', 'tag', '--force', image, image.replace(/:[^:]*$/, `:${tag}`)]);
  }

  /** Removes an image with all its names and content, so that the next pod pulls it. */
  removeImage(image) {
    const list = 'ctr -n k8s.io images ls';
    const names = `${list} | awk -v digest=$(${list} | awk '$1 == "${image}" { print $3 }') '$3 == digest { print $1 }'`;
    this.shell(`ctr -n k8s.io images rm --sync $(${names})`);
  }

  /** Runs a command line in the repository's folder. @returns its output. @throws Error when it fails */
  shell(line) {
    return this.machine.run('sh', ['-c', `cd '${ROOT}' && ${line}`]);
  }
}
