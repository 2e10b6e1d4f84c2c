// The scenarios, in order. Each gets a namespace of its own, which is removed before the check for leaks.
import { spawn } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { publish } from '../../../deploy/release/publish.mjs';
import { expectNoDuplicates, url } from './cluster.mjs';
import { dashboards } from './dashboards.mjs';
import { formerRelease } from './former-release.mjs';
import { expectHostPort, hostPort, nodePort, portmap } from './host-ports.mjs';
import { deletedBlock, deletedPool, leaderLost, moveOfDatastore, withoutApiServer } from './kubernetes-store.mjs';
import { expectUntouched } from './leaks.mjs';
import { EXTRA_PODS, OUTSIDE } from './network.mjs';
import { firstPackets, policiesThroughFaults } from './policies.mjs';
import { must, sleep, until } from './wait.mjs';

const PODS_COUNT = 40;
const ANNOTATION = 'cni.projectcalico.org';
const MINUTE_MS = 60_000;
const CHANGING_PODS_MAX = 32;

/** The first pod of each node makes what stays: blocks and the folder of runtimes. */
async function nodesReady({ cluster, namespace }) {
  await cluster.podwire.install();
  await cluster.podwire.ready(180);
  await cluster.nodesReady();
  await cluster.podwire.check();
  if (cluster.families.families.includes('ipv4')) await cluster.podwire.makeManualPool('extra', EXTRA_PODS);
  for (const { name } of cluster.nodes) await cluster.pod({ namespace, name: `first-on-${name}`, node: name });
  await cluster.running(namespace, cluster.nodes.length);
}

async function service(cluster, namespace, app) {
  const policy = cluster.families.name === 'dual' ? 'RequireDualStack' : 'SingleStack';
  const spec = { selector: { app }, ports: [{ port: 80, targetPort: 8080 }], ipFamilyPolicy: policy };
  const { spec: made } = await cluster.api.apply({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace, name: app },
    spec,
  });
  return made.clusterIPs;
}

/** Pods reach each other, both nodes, the service and a host outside; the nodes reach the pods. */
async function reachability({ cluster, namespace }) {
  await cluster.deployment({ namespace, name: 'web', replicas: PODS_COUNT });
  const clusterIps = await service(cluster, namespace, 'web');
  const pods = await cluster.running(namespace, PODS_COUNT);
  const perNode = cluster.nodes.map(({ name }) => pods.filter(({ spec }) => spec.nodeName === name).length);
  if (perNode.some((count) => count !== PODS_COUNT / 2)) throw new Error(`pods per node: ${perNode.join(', ')}`);
  const addresses = expectNoDuplicates(cluster, pods);
  const kubelets = cluster.nodes.flatMap((node) => cluster.families.pick(node)).map((ip) => `${url(ip, 10256)}livez`);
  const outside = cluster.families.pick(OUTSIDE).map((ip) => url(ip));
  const targets = [...addresses.map((ip) => url(ip)), ...clusterIps.map((ip) => url(ip, 80)), ...kubelets, ...outside];
  for (const node of cluster.nodes) cluster.sweep(addresses, targets, node);
}

/**
 * Each podwire-ipam shows all nodes and reaches them, and a silent node is named. An operator does it from the control
 * plane: no command runs in the pod of a node.
 */
async function wholeCluster({ cluster }) {
  const { podwire, nodes, controlPlane } = cluster;
  const silent = nodes.at(-1);
  const names = nodes.map(({ name }) => name).join();
  for (const pod of await podwire.serving()) {
    const run = async (...args) =>
      controlPlane.kubectl(['exec', '-n', 'podwire-system', pod, '-c', 'ipam', '--', 'podwirectl', ...args]);
    const connected = async () => {
      const { nodes: states } = JSON.parse(await run('status', '-o', 'json').catch(({ stdout }) => stdout)).nodes;
      const seen = states.filter(({ contact }) => contact === 'NODE_CONTACT_CONNECTED').map(({ name }) => name);
      return seen.join() === names;
    };
    await until(`${pod}: all nodes to be connected`, connected, 120);
    await run('status', '--wait', '--timeout', '60s');
    for (const { name } of nodes)
      for (const command of ['node status', 'pods', 'journal', 'latency', 'version'])
        await run(...command.split(' '), '--node', name);
  }
  const podwirectl = (...args) => podwire.podwirectl(args).catch(({ stdout }) => stdout);
  silent.machine.signal(/podwire-node/, 'SIGSTOP');
  try {
    const isNamed = async () => (await podwirectl('status')).includes(`node ${silent.name}: silent for`);
    await until('the silent node to be named', isNamed, 90);
    if (!(await podwirectl('get', 'nodes')).includes('silent')) throw new Error('get nodes: no node is silent');
  } finally {
    silent.machine.signal(/podwire-node/, 'SIGCONT');
  }
  await podwire.podwirectl(['status', '--wait', '--timeout', '90s']);
}

async function scaling({ cluster, namespace }) {
  for (const replicas of [20, 60]) {
    await cluster.deployment({ namespace, name: 'web', replicas });
    expectNoDuplicates(cluster, await cluster.running(namespace, replicas));
  }
  await cluster.deployment({ namespace, name: 'web', replicas: 0 });
  await cluster.running(namespace, 0);
}

async function rollingUpdate({ cluster, namespace }) {
  await cluster.deployment({ namespace, name: 'web', replicas: 30 });
  await cluster.running(namespace, 30);
  await cluster.deployment({ namespace, name: 'web', replicas: 30, version: '2' });
  const isUpdated = async () => {
    const { metadata, status } = await cluster.api.get('Deployment', namespace, 'web');
    return status.observedGeneration === metadata.generation && status.updatedReplicas === 30 && status.replicas === 30;
  };
  await until('the update', isUpdated, 120);
  const pods = await cluster.running(namespace, 30);
  const addresses = expectNoDuplicates(cluster, pods);
  cluster.sweep(
    addresses.slice(0, 5),
    addresses.map((ip) => url(ip)),
  );
}

async function namespaceDeletion({ cluster, namespace }) {
  await cluster.deployment({ namespace, name: 'web', replicas: 30 });
  await cluster.running(namespace, 30);
  await cluster.removeNamespace(namespace);
}

async function staticPod({ cluster, namespace }) {
  const [node] = cluster.nodes;
  const file = node.startStaticPod({ namespace });
  const [found] = await cluster.running(namespace, 1);
  const addresses = cluster.addressesOf(found);
  cluster.sweep(
    addresses,
    addresses.map((ip) => url(ip)),
    cluster.nodes[1],
  );
  rmSync(file);
  await cluster.running(namespace, 0);
}

async function annotations({ cluster, namespace }) {
  const [first, second] = cluster.nodes;
  const wanted = '10.65.200.7';
  const requests = [
    { name: 'address', node: first.name, annotations: { [`${ANNOTATION}/ipAddrs`]: JSON.stringify([wanted]) } },
    { name: 'pool', node: second.name, annotations: { [`${ANNOTATION}/ipv4pools`]: JSON.stringify(['extra']) } },
  ];
  for (const request of requests) await cluster.pod({ namespace, ...request });
  const pods = await cluster.running(namespace, requests.length);
  const addressOf = (name) => pods.find(({ metadata }) => metadata.name === name).status.podIP;
  if (addressOf('address') !== wanted)
    throw new Error(`pod "address": has ${addressOf('address')}, requested ${wanted}`);
  if (!addressOf('pool').startsWith('10.66.'))
    throw new Error(`pod "pool": has ${addressOf('pool')}, not of pool "extra"`);
  // A pod of the pool with VXLAN and one of the pool without, on two nodes.
  const both = [addressOf('address'), addressOf('pool')];
  cluster.sweep(
    both,
    both.map((ip) => url(ip)),
    second,
  );
}

/** Lets pods come and go while `disturb` runs, and some more. @returns how many rounds were done */
async function whilePodsChange({ cluster, namespace }, disturb) {
  let isDone = false;
  let rounds = 0;
  const change = async () => {
    while (!isDone) {
      // Pods that cannot go meanwhile would add up.
      if ((await cluster.api.list('Pod', namespace)).length > CHANGING_PODS_MAX) {
        await sleep(1000);
        continue;
      }
      rounds += 1;
      await cluster.deployment({
        namespace,
        name: 'changing',
        replicas: rounds % 2 === 0 ? 4 : 16,
        version: String(rounds % 3),
      });
      await sleep(3000);
    }
  };
  const changing = change();
  try {
    await disturb();
  } finally {
    isDone = true;
    await changing;
  }
  await cluster.deployment({ namespace, name: 'changing', replicas: 12 });
  const pods = await cluster.running(namespace, 12);
  const addresses = expectNoDuplicates(cluster, pods);
  cluster.sweep(
    addresses,
    addresses.map((ip) => url(ip)),
  );
}

function daemonSetRestart({ cluster, namespace }) {
  return whilePodsChange({ cluster, namespace }, async () => {
    await cluster.podwire.restart();
    await cluster.podwire.ready(180);
  });
}

function upgrade({ cluster, namespace }) {
  return whilePodsChange({ cluster, namespace }, async () => {
    await cluster.podwire.upgrade();
    await cluster.podwire.downgrade();
  });
}

const PROCESSES = [/podwire-node/, /podwire-ipam/];

function killedProcesses({ cluster, namespace }) {
  return whilePodsChange({ cluster, namespace }, async () => {
    for (const process of PROCESSES) {
      for (const { name, machine } of cluster.nodes) {
        if (machine.kill(process) === 0 && name === 'node-a') throw new Error(`${name}: no process ${process}`);
        await sleep(2000);
      }
    }
    await cluster.podwire.ready(120);
    await cluster.nodesReady();
  });
}

function runtimeRestart({ cluster, namespace }) {
  return whilePodsChange({ cluster, namespace }, async () => {
    for (const node of cluster.nodes) {
      node.machine.kill(/^(\S*\/)?kubelet /);
      node.machine.kill(/^(\S*\/)?containerd -c/);
      await sleep(5000);
    }
    await cluster.nodesReady();
  });
}

/** The disk keeps the static pod and its host port, which its next sandbox requests. */
async function reboot({ cluster, namespace }) {
  const node = cluster.nodes[1];
  const name = `static-${node.name}`;
  const port = 18090;
  const manifest = node.startStaticPod({ namespace, ports: [{ containerPort: 8080, hostPort: port }] });
  await cluster.deployment({ namespace, name: 'web', replicas: 10 });
  await cluster.running(namespace, 11);
  await node.machine.powerOff();
  // Otherwise the states below could be earlier ones.
  await cluster.nodeLost(node.name);
  await node.start();
  await cluster.podwire.ready(180);
  await cluster.nodesReady();
  const pods = await cluster.running(namespace, 11, 180);
  const addresses = expectNoDuplicates(cluster, pods);
  cluster.sweep(
    addresses,
    addresses.map((ip) => url(ip)),
  );
  expectHostPort(cluster, { pod: pods.find(({ metadata }) => metadata.name === name), name, node, port });
  rmSync(manifest);
  await cluster.running(namespace, 10);
}

/** A node is lost, Podwire and the API server forget it, and later it returns with its disk. */
async function nodeRemoval({ cluster, namespace }) {
  await cluster.deployment({ namespace, name: 'web', replicas: 8 });
  await cluster.running(namespace, 8);
  const node = cluster.nodes[1];
  await node.machine.powerOff();
  await cluster.api.remove('Node', undefined, node.name);
  // The controller of the node's pods waits longer than a test needs to.
  for (const { metadata, spec } of await cluster.api.list('Pod', namespace)) {
    if (spec.nodeName === node.name) await cluster.api.remove('Pod', namespace, metadata.name, 0);
  }
  await cluster.podwire.forget(node.name);
  await cluster.running(namespace, 8);
  await node.start();
  await cluster.podwire.ready(180);
  await cluster.nodesReady();
  await cluster.deployment({ namespace, name: 'later', replicas: 8 });
  const addresses = expectNoDuplicates(cluster, await cluster.running(namespace, 16));
  cluster.sweep(
    addresses,
    addresses.map((ip) => url(ip)),
  );
}

async function forcedDeletion({ cluster, namespace }) {
  const names = Array.from({ length: 10 }, (_, index) => `forced-${index}`);
  const nodeOf = (index) => cluster.nodes[index % cluster.nodes.length].name;
  await Promise.all(names.map((name, index) => cluster.pod({ namespace, name, node: nodeOf(index) })));
  await cluster.running(namespace, names.length);
  await Promise.all(names.map((name) => cluster.api.remove('Pod', namespace, name, 0)));
  await cluster.running(namespace, 0);
}

/** Pods that are deleted meanwhile go in time, and their addresses are released afterwards. */
async function withoutIpam({ cluster, namespace }) {
  await cluster.deployment({ namespace, name: 'web', replicas: 20 });
  await cluster.running(namespace, 20);
  await cluster.podwire.withoutIpam(async () => {
    const endMs = Date.now() + MINUTE_MS;
    await cluster.deployment({ namespace, name: 'web', replicas: 0 });
    await cluster.running(namespace, 0, 60);
    // The count includes leased addresses.
    await cluster.deployment({ namespace, name: 'late', replicas: 4 });
    expectNoDuplicates(cluster, await cluster.running(namespace, 4, 60));
    await sleep(Math.max(0, endMs - Date.now()));
  });
}

/** Deletions go through, pods start, and addresses of the deleted pods are released afterwards. */
async function withoutEtcd({ cluster, namespace }) {
  await cluster.deployment({ namespace, name: 'web', replicas: 20 });
  await cluster.running(namespace, 20);
  await cluster.podwire.etcd.outage(MINUTE_MS, async () => {
    await cluster.deployment({ namespace, name: 'web', replicas: 0 });
    await cluster.running(namespace, 0, 60);
    await cluster.deployment({ namespace, name: 'late', replicas: 4 });
    // The count includes leased addresses.
    await cluster.running(namespace, 4, 60);
  });
  const pods = await cluster.running(namespace, 4);
  const addresses = expectNoDuplicates(cluster, pods);
  cluster.sweep(
    addresses,
    addresses.map((ip) => url(ip)),
  );
}

/** The addresses of running pods come from the backup, and stay. */
async function backup({ cluster, namespace }) {
  const { podwire } = cluster;
  await cluster.deployment({ namespace, name: 'web', replicas: 6 });
  const before = expectNoDuplicates(cluster, await cluster.running(namespace, 6));
  await podwire.backUpAndRestore();
  await cluster.deployment({ namespace, name: 'web', replicas: 12 });
  const after = expectNoDuplicates(cluster, await cluster.running(namespace, 12));
  const lost = before.filter((address) => !after.includes(address));
  if (lost.length > 0) throw new Error(`addresses of pods changed: ${lost.join(', ')}`);
}

/** The nodes are as before the installation. */
async function uninstall({ cluster, untouched }) {
  await cluster.podwire.uninstall();
  await expectUntouched(cluster, untouched);
}

/** The other way of installing, with the guide's commands. */
async function withHelm({ cluster, namespace, untouched }) {
  const { podwire } = cluster;
  await podwire.installWithHelm();
  await cluster.nodesReady();
  await cluster.deployment({ namespace, name: 'web', replicas: 4 });
  const pods = await cluster.running(namespace, 4);
  await podwire.testWithHelm();
  await podwire.upgradeWithHelm();
  await podwire.rollBackWithHelm();
  const addresses = expectNoDuplicates(cluster, pods);
  cluster.sweep(
    addresses,
    addresses.map((ip) => url(ip)),
  );
  await cluster.removeNamespace(namespace);
  await podwire.uninstallWithHelm();
  await expectUntouched(cluster, untouched);
}

async function withFormerRelease({ cluster, namespace, untouched }) {
  await formerRelease({ cluster, namespace });
  await uninstall({ cluster, untouched });
}

/**
 * A release in a registry: helm installs its chart, and each node pulls its image. Registries with one storage listen on the
 * loopback address of each machine, as containerd trusts no other address without TLS.
 */
async function fromRegistry({ cluster, namespace, untouched }) {
  const { podwire, controlPlane, nodes, release, folder } = cluster;
  const registry = '127.0.0.1:5000';
  const config = join(folder, 'registry.yml');
  const storage = `storage: { filesystem: { rootdirectory: ${join(folder, 'registry')} } }`;
  writeFileSync(config, `version: 0.1\n${storage}\nhttp: { addr: ${registry} }\n`);
  const own = spawn('docker-registry', ['serve', config], { stdio: 'ignore' });
  for (const { machine } of nodes) machine.spawn('docker-registry', ['serve', config]);
  try {
    await until(
      'the registry',
      () => must('bash', ['-c', `exec 3<>/dev/tcp/${registry.replace(':', '/')} && echo up`]),
      20,
    );
    publish({ ...release, registry });
    for (const node of nodes) node.removeImage(cluster.image);
    controlPlane.editManifest('uninstall.yaml', cluster.image, `${registry}/podwire:${release.version}`);
    await podwire.installFromRegistry({ registry, version: release.version });
    await cluster.nodesReady();
    await cluster.deployment({ namespace, name: 'web', replicas: 4 });
    await cluster.running(namespace, 4);
    await cluster.removeNamespace(namespace);
    await uninstall({ cluster, untouched });
  } finally {
    own.kill();
  }
}

async function withMovedDatastore({ cluster, namespace, untouched }) {
  await moveOfDatastore({ cluster, namespace });
  await uninstall({ cluster, untouched });
}

const isDefault = ({ family, store }) => family === 'ipv4' && store === 'embedded';
const isOnEtcd = ({ store }) => store === 'etcd';
const isOnKubernetes = ({ store }) => store === 'kubernetes';
const isDual = ({ family }) => family === 'dual';
/** Cases that no setting of Podwire changes: this cluster has time, beside the one on etcd. */
const isIpv6 = ({ family }) => family === 'ipv6';

/**
 * `leavesPodwire: false`: the scenario ends with a check of its own. `serves`: the clusters that it is for. `after`: the
 * scenario that has to run before.
 */
const SCENARIOS = [
  { name: 'nodes become Ready', run: nodesReady },
  { name: `${PODS_COUNT} pods reach each other, nodes, service, outside`, run: reachability },
  { name: 'status and nodes from each podwire-ipam', run: wholeCluster },
  { name: 'scale 20, 60, 0', run: scaling, serves: isIpv6 },
  { name: 'rolling update', run: rollingUpdate, serves: isIpv6 },
  { name: 'namespace deletion', run: namespaceDeletion, serves: isIpv6 },
  { name: 'static pod', run: staticPod, serves: isIpv6 },
  { name: 'hostPort', run: hostPort },
  { name: 'hostPort through portmap, and back', run: portmap, serves: isIpv6 },
  { name: 'node port with the number of a hostPort', run: nodePort },
  {
    name: 'first packets of 500 pods under network policies',
    run: firstPackets,
    serves: isDual,
  },
  { name: 'network policies while processes fail and pods start', run: policiesThroughFaults, serves: isDual },
  { name: 'annotations for address and pool', run: annotations, serves: ({ family }) => family !== 'ipv6' },
  { name: 'dashboards answer from a collector and Prometheus', run: dashboards, serves: isOnEtcd },
  { name: 'DaemonSet restart while pods change', run: daemonSetRestart, serves: isDefault },
  { name: 'image upgrade and downgrade while pods change', run: upgrade, serves: isDefault },
  {
    name: 'kill -9 of each process while pods change',
    run: killedProcesses,
    serves: ({ family }) => family !== 'ipv6',
  },
  { name: 'kubelet and containerd restart while pods change', run: runtimeRestart, serves: isDefault },
  { name: 'node reboot', run: reboot, serves: isIpv6 },
  { name: 'node removal and return', run: nodeRemoval, serves: isDefault },
  { name: 'forced deletion', run: forcedDeletion, serves: isDefault },
  { name: 'podwire-ipam down for a minute', run: withoutIpam, serves: isDefault },
  { name: 'etcd down for a minute', run: withoutEtcd, serves: isOnEtcd },
  { name: 'backup and restore', run: backup, serves: isDefault },
  { name: 'leader of podwire-ipam silent, then deleted', run: leaderLost, serves: isOnKubernetes },
  { name: 'API server down for a minute', run: withoutApiServer, serves: isOnKubernetes },
  { name: 'kubectl delete ippool', run: deletedPool, serves: isOnKubernetes },
  { name: 'kubectl delete ipamblock', run: deletedBlock, serves: isOnKubernetes },
  { name: 'uninstall', run: uninstall, leavesPodwire: false },
  {
    name: 'move from the embedded store and back',
    run: withMovedDatastore,
    leavesPodwire: false,
    serves: isOnKubernetes,
    after: 'uninstall',
  },
  {
    name: 'helm: install, upgrade, roll back, uninstall',
    run: withHelm,
    leavesPodwire: false,
    serves: isDefault,
    after: 'uninstall',
  },
  {
    name: 'upgrade from the former release and back',
    run: withFormerRelease,
    leavesPodwire: false,
    serves: (cluster) => isDefault(cluster) && cluster.former !== undefined,
    after: 'uninstall',
  },
  // The last one: a kubelet that has pulled an image does not accept the same one under the name that was imported.
  {
    name: 'release from a registry',
    run: fromRegistry,
    leavesPodwire: false,
    serves: (cluster) => isDefault(cluster) && cluster.release !== undefined,
    after: 'uninstall',
  },
];

/** The scenarios of a cluster, by family, store, and whether there is a former release. */
export function scenariosOf(cluster) {
  return SCENARIOS.filter(({ serves = () => true }) => serves(cluster));
}
