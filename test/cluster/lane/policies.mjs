// Network policies from a pod's first instruction on, in both directions.
import process from 'node:process';

import { NAMESPACE } from '../../../deploy/kubernetes/checksum.mjs';
import { bracketed, expectNoDuplicates, url } from './cluster.mjs';
import { sleep, until } from './wait.mjs';

const ROUNDS = 5;
const PODS_COUNT = 50;
const FAULT_PODS_COUNT = 20;

/** Ports of the pods' program: for first datagrams, and for the targets' own ones to their senders. */
const [ALLOWED, FORBIDDEN, ALLOWED_BACK] = [9000, 9001, 9003];

const METRICS_PORT = 9091;

/** Kinds of new pods: the targets accept the first one alone. */
const NEW = ['welcome', 'unwelcome'];

function policies(namespace) {
  const apps = (...values) => ({ matchExpressions: [{ key: 'app', operator: 'In', values }] });
  const udp = (port) => [{ protocol: 'UDP', port }];
  const policy = (name, spec) => ({ metadata: { namespace, name }, spec });
  const toTargets = [{ to: [{ podSelector: apps('target') }], ports: udp(ALLOWED) }];
  const fromTargets = [{ from: [{ podSelector: apps('target') }], ports: udp(ALLOWED_BACK) }];
  return [
    policy('targets', {
      podSelector: apps('target'),
      ingress: [{ from: [{ podSelector: apps('welcome') }], ports: [...udp(ALLOWED), ...udp(FORBIDDEN)] }],
    }),
    policy('new', {
      podSelector: apps(...NEW),
      policyTypes: ['Ingress', 'Egress'],
      ingress: fromTargets,
      egress: toTargets,
    }),
  ];
}

/** Datagrams that came to a pod since the last call, as `<port> <sender>`. Its own node may call it. */
function newDatagrams(cluster, pod, known) {
  const [address] = cluster.addressesOf(pod);
  const node = cluster.nodes.find(({ name }) => name === pod.spec.nodeName);
  const all = cluster.call(`${url(address)}datagrams`, node).map(({ port, from }) => `${port} ${from}`);
  return all.slice(known.length);
}

/** Prints how many new pods were known to the other nodes before they started, and after. */
function printKnown({ nodes, families }) {
  for (const node of nodes) {
    const [address] = families.pick(node);
    const text = node.machine.run('wget', ['-qO-', `${url(address, METRICS_PORT)}metrics`]);
    const counts = text.matchAll(/^podwire_policy_known_everywhere_seconds_count\{pod="(\w+)"\} (\d+)/gm);
    process.stdout.write(`  ${node.name}: ${[...counts].map(([, pod, count]) => `${count} ${pod}`).join(', ')}\n`);
  }
}

const of = (pods, app) => pods.filter(({ metadata }) => metadata.labels.app === app);

/** Pods that accept datagrams of welcome pods alone. They stay, and new pods come and go beside them. */
class Targets {
  #cluster;
  #namespace;
  /** The datagrams that came to each of the pods so far. */
  #known;
  #first;

  constructor({ cluster, namespace }) {
    this.#cluster = cluster;
    this.#namespace = namespace;
  }

  async start() {
    const { api, nodes } = this.#cluster;
    for (const policy of policies(this.#namespace))
      await api.apply({ apiVersion: 'networking.k8s.io/v1', kind: 'NetworkPolicy', ...policy });
    await this.#deploy('target', nodes.length);
    const targets = await this.#cluster.running(this.#namespace, nodes.length);
    this.#first = expectNoDuplicates(this.#cluster, targets).flatMap((ip) =>
      [ALLOWED, FORBIDDEN].map((port) => `${bracketed(ip)}:${port}`),
    );
    this.#known = new Map(targets.map((pod) => [pod, []]));
  }

  /**
   * Each new pod sends a datagram to each target, at an allowed and at a forbidden port, as its first instruction; each target that
   * gets one sends two to the pod, of which one is allowed.
   * @param during - called while the pods start, with a target
   * @returns the datagrams that must not have come, and the lost ones
   */
  async round(podsCount, during = () => undefined) {
    const targets = [...this.#known.keys()];
    const starting = NEW.map((name) => this.#deploy(name, podsCount, this.#first));
    await during(targets);
    await Promise.all(starting);
    const pods = await this.#cluster.running(this.#namespace, targets.length + NEW.length * podsCount);
    // Datagrams that are still on their way have come then.
    await sleep(1000);
    const addresses = (list) => list.flatMap((pod) => this.#cluster.addressesOf(pod));
    const welcome = new Set(addresses(of(pods, 'welcome')).map((ip) => `${ALLOWED} ${ip}`));
    const found = targets.map((target) => this.#faults(target, welcome));
    const back = new Set(addresses(targets).map((ip) => `${ALLOWED_BACK} ${ip}`));
    for (const pod of of(pods, 'welcome')) found.push(this.#faults(pod, back));
    for (const pod of of(pods, 'unwelcome')) found.push(this.#faults(pod, new Set()));
    for (const name of NEW) await this.#deploy(name, 0, this.#first);
    await this.#cluster.running(this.#namespace, targets.length);
    return { wrong: found.flatMap(({ wrong }) => wrong), lost: found.flatMap(({ lost }) => lost) };
  }

  #deploy(name, replicas, first) {
    return this.#cluster.deployment({ namespace: this.#namespace, name, replicas, first });
  }

  #faults(pod, expected) {
    const known = this.#known.get(pod) ?? [];
    const came = newDatagrams(this.#cluster, pod, known);
    known.push(...came);
    const text = (each, what) => `${pod.metadata.name}: ${each} ${what}`;
    return {
      wrong: came.filter((each) => !expected.has(each)).map((each) => text(each, 'must not pass')),
      lost: [...expected].filter((each) => !came.includes(each)).map((each) => text(each, 'is lost')),
    };
  }
}

function expectNone(what, list) {
  if (list.length > 0) throw new Error(`${what}: ${list.length} datagrams\n${list.join('\n')}`);
}

export async function firstPackets({ cluster, namespace }) {
  const targets = new Targets({ cluster, namespace });
  await targets.start();
  for (let round = 1; round <= ROUNDS; round += 1) {
    const { wrong, lost } = await targets.round(PODS_COUNT);
    printKnown(cluster);
    expectNone(`round ${round}`, [...wrong, ...lost]);
  }
}

/** Some pods that wait until other nodes know them, twice: Prometheus has no rate of a series' first value. */
export async function restrictedLoad({ cluster, namespace }) {
  const targets = new Targets({ cluster, namespace });
  await targets.start();
  for (let round = 1; round <= 2; round += 1) await targets.round(4);
}

const IPAM = /podwire-ipam/;
const NODE = /podwire-node/;
const SILENT_MS = 8000;

/** Faults while pods start. Before policies are known a pod is isolated, so datagrams may be lost. */
const FAULTS = {
  'kill -9 of podwire-node': (machines) => machines.forEach((machine) => machine.kill(NODE)),
  'kill -9 of podwire-ipam': (machines) => machines.forEach((machine) => machine.kill(IPAM)),
  'silent podwire-ipam': (machines) => silent(machines, IPAM),
  'silent podwire-node': (machines) => silent(machines.slice(1), NODE),
};

async function silent(machines, pattern) {
  for (const machine of machines) machine.signal(pattern, 'SIGSTOP');
  await sleep(SILENT_MS);
  for (const machine of machines) machine.signal(pattern, 'SIGCONT');
}

/** podwirectl beside the podwire-ipam that serves policies. @returns the output, also of a denied connection */
async function policyctl(cluster, args) {
  const pods = await cluster.api.list('Pod', NAMESPACE, 'app.kubernetes.io/name=podwire-ipam');
  const failures = [];
  for (const { metadata } of pods) {
    const exec = ['exec', '-n', NAMESPACE, metadata.name, '-c', 'ipam', '--', 'podwirectl', 'policy', ...args];
    try {
      return cluster.controlPlane.kubectl(exec);
    } catch (error) {
      if (/exit code 4/.test(error.message)) return error.stdout;
      failures.push(error.message);
    }
  }
  throw new Error(failures.join('\n'));
}

/** The answers that operators get for a dropped datagram, and of an allowed one. */
async function expectExplained(cluster, namespace, target) {
  const pods = await cluster.running(namespace, cluster.nodes.length + NEW.length * FAULT_PODS_COUNT);
  const expectText = (text, ...parts) => {
    const missing = parts.filter((part) => !text.includes(part));
    if (missing.length > 0) throw new Error(`no ${missing.join(', ')} in:\n${text}`);
  };
  const to = `${namespace}/${target.metadata.name}:${ALLOWED}/udp`;
  const answerFor = (app) => policyctl(cluster, ['explain', `${namespace}/${of(pods, app)[0].metadata.name}`, to]);
  expectText(await answerFor('welcome'), `NetworkPolicy ${namespace}/targets, ingress[0]`, 'enforces these policies');
  const policy = `NetworkPolicy ${namespace}/targets`;
  expectText(await answerFor('unwelcome'), 'denied', `isolated by ${policy}: no rule matches`);
  expectText(await policyctl(cluster, ['list', '-n', namespace]), policy, `NetworkPolicy ${namespace}/new`);
  const drops = () => cluster.podwire.podwirectlOn(target.spec.nodeName, ['policy', 'drops', '-n', namespace]);
  await until('the drop', async () => (await drops()).includes(policy), 10, drops);
}

/** No forbidden datagram passes at any time; afterwards all allowed ones arrive, and operators see why the remaining ones do not. */
export async function policiesThroughFaults({ cluster, namespace }) {
  const { podwire, nodes } = cluster;
  const machines = nodes.map(({ machine }) => machine);
  const targets = new Targets({ cluster, namespace });
  await targets.start();
  for (const [name, cause] of Object.entries(FAULTS)) {
    const { wrong, lost } = await targets.round(FAULT_PODS_COUNT, async () => {
      await sleep(1000);
      await cause(machines);
    });
    process.stdout.write(`  ${name}: ${lost.length} datagrams lost\n`);
    expectNone(name, wrong);
  }
  await podwire.ready(120);
  await until(
    'all nodes to follow',
    async () => {
      const { nodes: followers } = JSON.parse(await policyctl(cluster, ['status', '-o', 'json']));
      return (
        followers.length === nodes.length && followers.every(({ following, behind }) => following && behind !== true)
      );
    },
    60,
  );
  const { wrong, lost } = await targets.round(FAULT_PODS_COUNT, ([target]) =>
    expectExplained(cluster, namespace, target),
  );
  expectNone('after all faults', [...wrong, ...lost]);
}
