// Upgrade from the former release and back, while pods run, ping each other, and change. Run by `--former-image` and
// `--former-manifests`.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { ROOT } from './guide.mjs';
import { startPings } from './pings.mjs';
import { sleep, until } from './wait.mjs';

const PODS_COUNT = 30;
const DELETED_COUNT = 10;

/** Time in which load runs before a change and after it, so that figures can be compared. */
const QUIET_MS = 15_000;

/** A pod may meet one hand-over, and the kubelet's pause before it tries again. */
const POD_START_MAX_MS = 60_000;

/** Pings that may be without an answer: pings on their way when the ping ends. */
const LOST_MAX = 5;

/** Handles that stay without pods: addresses of tunnels. */
const NOT_OF_PODS = /-tunnel-addr-/;

const RUNS_SECONDS = 120;

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

class ReleaseChange {
  #cluster;
  #namespace;
  #churn;
  #expected;

  constructor(cluster, namespace) {
    this.#cluster = cluster;
    this.#namespace = namespace;
  }

  async startLoad() {
    await this.#cluster.deployment({ namespace: this.#namespace, name: 'stays', replicas: PODS_COUNT });
    this.#expected = await this.#cluster.running(this.#namespace, PODS_COUNT);
    this.#churn = new Churn(this.#cluster, this.#namespace);
    await this.measure('before', () => sleep(QUIET_MS));
  }

  stopLoad() {
    return this.#churn.stop();
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
      addresses.map((address) => `http://${address}:8080/`),
    );
  }

  async #items(kind) {
    return JSON.parse(await this.#cluster.podwire.podwirectl(['get', kind, '-A', '-o', 'json'])).items;
  }

  /** podwire-ipam records every address for its pod. */
  async expectBound() {
    const isBound = async () => {
      const endpoints = await this.#items('workloadendpoints');
      const found = new Set(endpoints.flatMap(({ spec }) => spec.ipNetworks.map((each) => `${spec.pod} ${each}`)));
      const wanted = this.#expected.map((pod) => `${pod.metadata.name} ${this.#cluster.addressesOf(pod)[0]}/32`);
      const missing = wanted.filter((each) => !found.has(each));
      if (missing.length > 0) throw new Error(`not recorded: ${missing.join(', ')}`);
      return true;
    };
    await until('addresses to be bound', isBound, 30);
    // The exit code 4 of a finding is an error of `podwirectl`.
    await this.#cluster.podwire.podwirectl(['audit', '--timeout', '30s']);
  }

  /** Pods of before the change can be deleted and replaced. */
  async settle(name) {
    await this.expectBound();
    await this.#deleteSome();
    await this.measure(name, () => sleep(QUIET_MS));
    await this.expectBound();
  }

  /** Deletes some pods of before the change: their addresses are free afterwards. */
  async #deleteSome() {
    const gone = this.#expected.splice(0, DELETED_COUNT);
    const remove = ({ metadata }) => this.#cluster.api.remove('Pod', this.#namespace, metadata.name);
    await Promise.all(gone.map(remove));
    const names = new Set(gone.map(({ metadata }) => metadata.name));
    const areFree = async () => (await this.#items('workloadendpoints')).every(({ spec }) => !names.has(spec.pod));
    await until('addresses to be free', areFree, 60);
    const complete = async () => (await this.#staying()).length === PODS_COUNT;
    await until(`${PODS_COUNT} pods`, complete, 60);
    const isRunning = async () => {
      const pods = await this.#staying();
      return pods.every(({ status }) => status.phase === 'Running' && status.podIPs) ? pods : undefined;
    };
    this.#expected = await until('new pods to run', isRunning, RUNS_SECONDS);
  }

  /** Expects podwire-ipam to have addresses of nodes only. */
  async expectAllFree() {
    const { api } = this.#cluster;
    await api.remove('Deployment', this.#namespace, 'stays');
    const areGone = async () => (await api.list('Pod', this.#namespace)).length === 0;
    await until('pods to go', areGone, RUNS_SECONDS);
    const areFree = async () => {
      const handles = (await this.#items('handles')).map(({ metadata }) => metadata.name);
      const left = handles.filter((name) => !NOT_OF_PODS.test(name));
      if (left.length > 0) throw new Error(`handles left: ${left.join(', ')}`);
      return true;
    };
    await until('addresses to be free', areFree, 60);
  }
}

/** The commands below "Upgrade" in the changelog's latest section. */
function commandsOfChangelog() {
  const [, text] = readFileSync(join(ROOT, 'CHANGELOG.md'), 'utf8').split('**Upgrade.**');
  return /```console\n([^`]*)```/.exec(text)[1].trim().split('\n');
}

async function upgrade({ podwire, controlPlane }) {
  await podwire.installByManifests();
  for (const command of commandsOfChangelog()) await controlPlane.shell(command);
  await sleep(QUIET_MS);
}

/** Pods keep addresses and traffic, and nothing of either release is left. */
export async function formerRelease({ cluster, namespace }) {
  const { podwire } = cluster;
  const releases = new ReleaseChange(cluster, namespace);
  const downgrade = async () => {
    await podwire.installFormer();
    await sleep(QUIET_MS);
  };
  await podwire.installFormer();
  await cluster.nodesReady();
  await releases.startLoad();
  await releases.measure('upgrade', () => upgrade(cluster));
  await releases.settle('after the upgrade');
  await releases.measure('downgrade', async () => {
    await podwire.stopLeasing();
    await downgrade();
  });
  await releases.settle('after the downgrade');
  await releases.measure('second upgrade', () => upgrade(cluster));
  await releases.settle('after the second upgrade');
  await releases.measure('downgrade with leases', downgrade);
  await releases.expectBound();
  await podwire.freeLeases();
  await releases.settle('after the downgrade with leases');
  await releases.stopLoad();
  await releases.expectAllFree();
}
