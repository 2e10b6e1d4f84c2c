// Scenarios of the store `kubernetes`: its replicas, faults of the API server, objects that an administrator deletes, and
// moving a datastore into it.
import { rmSync } from 'node:fs';

import { NAMESPACE } from '../../../deploy/kubernetes/checksum.mjs';
import { expectNoDuplicates, url } from './cluster.mjs';
import { NOT_OF_PODS_IN_IPAM } from './leaks.mjs';
import { DELETED_PODS } from './network.mjs';
import { expectRecorded, PodLoad } from './pod-load.mjs';
import { until } from './wait.mjs';

const MINUTE_MS = 60_000;

/** Changes the number of pods, which then answer each other. @returns them */
async function scale({ cluster, namespace }, replicas) {
  await cluster.deployment({ namespace, name: 'web', replicas });
  const pods = await cluster.running(namespace, replicas);
  sweep(cluster, expectNoDuplicates(cluster, pods));
  return pods;
}

function sweep(cluster, addresses) {
  const urls = addresses.map((address) => url(address));
  cluster.sweep(addresses, urls);
}

/** @throws Error when an address of before the change is not one of the pods after it */
function expectKept(cluster, { before, after }) {
  const kept = new Set(expectNoDuplicates(cluster, after));
  const lost = before.flatMap((pod) => cluster.addressesOf(pod)).filter((address) => !kept.has(address));
  if (lost.length > 0) throw new Error(`addresses of pods changed: ${lost.join(', ')}`);
}

/** A leader whose process is frozen loses the Lease; one whose pod is deleted hands it over. */
export async function leaderLost({ cluster, namespace }) {
  const { podwire, api } = cluster;
  await scale({ cluster, namespace }, 8);
  const changeOf = ({ name }) => until('another leader', async () => (await podwire.leader()).name !== name, 60);
  const silent = await podwire.leader();
  const signal = (name) => silent.node.machine.signal(/podwire-ipam/, name);
  signal('SIGSTOP');
  try {
    await changeOf(silent);
    await scale({ cluster, namespace }, 24);
  } finally {
    signal('SIGCONT');
  }
  const deleted = await podwire.leader();
  if (deleted.name === silent.name) throw new Error(`${silent.name}: leads again, though another one has the Lease`);
  await scale({ cluster, namespace }, 4);
  await api.remove('Pod', NAMESPACE, deleted.name);
  await changeOf(deleted);
  await scale({ cluster, namespace }, 16);
  await podwire.ready(120);
}

/** Pods keep their connections, and a static pod starts with a leased address. */
export async function withoutApiServer({ cluster, namespace }) {
  const [node] = cluster.nodes;
  const port = 18091;
  const before = await scale({ cluster, namespace }, 8);
  let manifest;
  await cluster.controlPlane.outage(MINUTE_MS, async () => {
    manifest = node.startStaticPod({ namespace, ports: [{ containerPort: 8080, hostPort: port }] });
    const answers = () => cluster.families.pick(node).every((ip) => cluster.call(url(ip, port), node).name !== '');
    await until('the static pod', answers, 45);
    sweep(cluster, expectNoDuplicates(cluster, before));
  });
  expectKept(cluster, { before, after: await cluster.running(namespace, 9) });
  await cluster.podwire.ready(120);
  await cluster.nodesReady();
  rmSync(manifest);
  await cluster.running(namespace, 8);
  await scale({ cluster, namespace }, 16);
}

/** The pool serves no new pod, and ends with its last address. */
export async function deletedPool({ cluster, namespace }) {
  const { api, controlPlane, nodes, podwire } = cluster;
  const [first, second] = nodes;
  const name = 'deleted';
  await podwire.makeManualPool(name, DELETED_PODS);
  const pod = (podName, node) => {
    const annotations = { 'cni.projectcalico.org/ipv4pools': JSON.stringify([name]) };
    return cluster.pod({ namespace, name: podName, node, annotations });
  };
  await pod('before', first.name);
  const [{ status }] = await cluster.running(namespace, 1);
  await controlPlane.shell(`kubectl delete ippool ${name} --wait=false`);
  await pod('after', second.name);
  const refusals = () => controlPlane.kubectl(['-n', namespace, 'get', 'events', '--field-selector=type=Warning']);
  await until('a refusal of the new pod', () => refusals().includes(`pool "${name}"`), 60, refusals);
  await api.remove('Pod', namespace, 'after', 0);
  await cluster.running(namespace, 1);
  cluster.sweep([status.podIP], [url(status.podIP)], second);
  const pools = () => controlPlane.kubectl(['get', 'ippools', '-o', 'name']);
  const exists = () => new RegExp(`/${name}$`, 'm').test(pools());
  if (!exists()) throw new Error(`pool "${name}": gone, though a pod has an address of it`);
  await api.remove('Pod', namespace, 'before');
  await until(`pool "${name}" to go`, () => !exists(), 60, pools);
}

/** The nodes report the addresses of their pods, so that podwire-ipam makes the block again. */
export async function deletedBlock({ cluster, namespace }) {
  const before = await scale({ cluster, namespace }, 12);
  const blocks = [...new Set(before.map(({ status }) => blockOf(status.podIP)))];
  await cluster.controlPlane.shell(`kubectl delete ipamblock ${blocks.join(' ')}`);
  // They need more addresses than the deleted blocks had, so that each free one is allocated.
  const after = await scale({ cluster, namespace }, 100);
  expectKept(cluster, { before, after });
  await expectRecorded(cluster, after);
}

/** Name of the block (64 addresses) of an IPv4 address. */
function blockOf(address) {
  const bytes = address.split('.');
  return [...bytes.slice(0, 3), Number(bytes[3]) & 192, 26].join('-');
}

/** Pods keep addresses and traffic, and other pods come and go meanwhile. */
export async function moveOfDatastore({ cluster, namespace }) {
  const { podwire } = cluster;
  const load = new PodLoad(cluster, namespace);
  await podwire.installEmbedded();
  await cluster.nodesReady();
  await load.start();
  await load.measure('move to kubernetes', () => podwire.moveToKubernetes());
  await load.settle('after the move');
  await load.measure('move to embedded', () => podwire.moveBack());
  await podwire.removeDefinitions();
  await load.settle('after the way back');
  await load.stop();
  await load.expectAllFree(NOT_OF_PODS_IN_IPAM);
}
