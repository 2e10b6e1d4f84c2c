// A load of pods for a change of Podwire under them: 30 pods ping each other and must stay as they are, while other pods come
// and go.
import process from 'node:process';

import { url } from './cluster.mjs';
import { startPings } from './pings.mjs';
import { sleep, until } from './wait.mjs';

const PODS_COUNT = 30;
const DELETED_COUNT = 10;

/** Time in which load runs before a change and after it, so that figures can be compared. */
export const QUIET_MS = 15_000;

/** A pod may meet one hand-over, and the kubelet's pause before it tries again. */
const POD_START_MAX_MS = 60_000;

/** Pings that may be without an answer: pings on their way when the ping ends. */
const LOST_MAX = 5;

/** Handles that stay without pods and leases: addresses of tunnels. */
const OF_TUNNELS = /-tunnel-addr-/;

const RUNS_SECONDS = 120;

/** Nodes report their addresses once a minute. */
const RECORDED_SECONDS = 90;

/** Makes and deletes pods on a node, one after the other. */
class Churn {
  #isOver = false;
  #done;
  #startsMs = [];

  constructor(cluster, namespace) {
    const onNode = async ({ name: node }) => {
      for (let round = 0; !this.#isOver; round += 1) await this.#change({ cluster, namespace, node, round });
    };
    this.#done = Promise.all(cluster.nodes.map(onNode));
    // `stop` reports it.
    this.#done.catch(() => undefined);
  }

  async #change({ cluster, namespace, node, round }) {
    const name = `change-${node}-${round}`;
    const { api } = cluster;
    const beganMs = Date.now();
    await cluster.pod({ namespace, name, node });
    const isRunning = async () => (await api.get('Pod', namespace, name)).status.phase === 'Running';
    await until(`${name} to run`, isRunning, RUNS_SECONDS);
    this.#startsMs.push(Date.now() - beganMs);
    await api.remove('Pod', namespace, name);
  }

  /** @returns number and longest time of the starts since the last call */
  takeFigures() {
    const startsMs = this.#startsMs.splice(0);
    return { pods: startsMs.length, longestStartMs: Math.max(0, ...startsMs) };
  }

  async stop() {
    this.#isOver = true;
    await this.#done;
  }
}

/** Unchanging parts of a pod: itself, its containers, its addresses. */
function identityOf({ metadata, status }) {
  const restarts = status.containerStatuses.map(({ restartCount }) => restartCount);
  return JSON.stringify([metadata.name, metadata.uid, restarts, status.podIPs]);
}

async function itemsOf({ podwire }, kind) {
  return JSON.parse(await podwire.podwirectl(['get', kind, '-A', '-o', 'json'])).items;
}

/** podwire-ipam records the first address of each pod for it. */
export async function expectRecorded(cluster, pods) {
  const wanted = pods.map((pod) => `${pod.metadata.name} ${cluster.addressesOf(pod)[0]}/32`);
  const areRecorded = async () => {
    const endpoints = await itemsOf(cluster, 'workloadendpoints');
    const found = new Set(endpoints.flatMap(({ spec }) => spec.ipNetworks.map((each) => `${spec.pod} ${each}`)));
    const missing = wanted.filter((each) => !found.has(each));
    if (missing.length > 0) throw new Error(`not recorded: ${missing.join(', ')}`);
    return true;
  };
  await until('addresses to be recorded', areRecorded, RECORDED_SECONDS);
  // The exit code 4 of a finding is an error of `podwirectl`.
  await cluster.podwire.podwirectl(['audit', '--timeout', '30s']);
}

export class PodLoad {
  #cluster;
  #namespace;
  #churn;
  #expected;

  constructor(cluster, namespace) {
    this.#cluster = cluster;
    this.#namespace = namespace;
  }

  async start() {
    await this.#cluster.deployment({ namespace: this.#namespace, name: 'stays', replicas: PODS_COUNT });
    this.#expected = await this.#cluster.running(this.#namespace, PODS_COUNT);
    this.#churn = new Churn(this.#cluster, this.#namespace);
    await this.measure('before', () => sleep(QUIET_MS));
  }

  stop() {
    return this.#churn.stop();
  }

  /** @throws Error when podwire-ipam does not know a pod's address, or the audit has findings */
  expectRecorded() {
    return expectRecorded(this.#cluster, this.#expected);
  }

  async #staying() {
    const pods = await this.#cluster.api.list('Pod', this.#namespace, 'app=stays');
    return pods.filter(({ metadata }) => !metadata.deletionTimestamp);
  }

  /** Prints what pods noticed of a change. @throws Error when one was restarted, or a start took too long */
  async measure(name, change) {
    this.#churn.takeFigures();
    const pings = startPings(this.#cluster, this.#expected);
    const beganMs = Date.now();
    await change();
    const seconds = Math.round((Date.now() - beganMs) / 1000);
    const { pods, longestStartMs } = this.#churn.takeFigures();
    const { sent, lost, gapMs } = await pings.stop();
    const ofPings = `${lost} of ${sent} pings lost, longest gap ${gapMs} ms`;
    process.stdout.write(`  ${name}: ${seconds} s; ${ofPings}; ${pods} pods, longest start ${longestStartMs} ms\n`);
    if (lost > LOST_MAX) throw new Error(`${name}: ${ofPings}`);
    if (longestStartMs > POD_START_MAX_MS) throw new Error(`${name}: a pod started after ${longestStartMs} ms`);
    const after = new Set((await this.#staying()).map(identityOf));
    const changed = this.#expected.map(identityOf).filter((pod) => !after.has(pod));
    if (changed.length > 0) throw new Error(`${name}: pods changed: ${changed.join(', ')}`);
    const addresses = this.#expected.flatMap((pod) => this.#cluster.addressesOf(pod));
    this.#cluster.sweep(
      addresses,
      addresses.map((address) => url(address)),
    );
  }

  /** Pods of before the change can be deleted and replaced. */
  async settle(name) {
    await this.expectRecorded();
    await this.#deleteSome();
    await this.measure(name, () => sleep(QUIET_MS));
    await this.expectRecorded();
  }

  /** Deletes some pods of before the change: their addresses are free afterwards. */
  async #deleteSome() {
    const gone = this.#expected.splice(0, DELETED_COUNT);
    const remove = ({ metadata }) => this.#cluster.api.remove('Pod', this.#namespace, metadata.name);
    await Promise.all(gone.map(remove));
    const names = new Set(gone.map(({ metadata }) => metadata.name));
    const areFree = async () =>
      (await itemsOf(this.#cluster, 'workloadendpoints')).every(({ spec }) => !names.has(spec.pod));
    await until('addresses to be free', areFree, 60);
    const complete = async () => (await this.#staying()).length === PODS_COUNT;
    await until(`${PODS_COUNT} pods`, complete, 60);
    const isRunning = async () => {
      const pods = await this.#staying();
      return pods.every(({ status }) => status.phase === 'Running' && status.podIPs) ? pods : undefined;
    };
    this.#expected = await until('new pods to run', isRunning, RUNS_SECONDS);
  }

  /** Deletes the pods, and expects podwire-ipam to have handles of nodes only. */
  async expectAllFree(ofNodes = OF_TUNNELS) {
    const { api } = this.#cluster;
    await api.remove('Deployment', this.#namespace, 'stays');
    const areGone = async () => (await api.list('Pod', this.#namespace)).length === 0;
    await until('pods to go', areGone, RUNS_SECONDS);
    const areFree = async () => {
      const handles = (await itemsOf(this.#cluster, 'handles')).map(({ metadata }) => metadata.name);
      const left = handles.filter((name) => !ofNodes.test(name));
      if (left.length > 0) throw new Error(`handles left: ${left.join(', ')}`);
      return true;
    };
    await until('addresses to be free', areFree, 60);
  }
}
