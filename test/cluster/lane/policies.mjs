// Network policies from a pod's first instruction on, in both directions.
import process from 'node:process';

import { bracketed, expectNoDuplicates, url } from './cluster.mjs';
import { sleep } from './wait.mjs';

const ROUNDS = 5;
const PODS_COUNT = 50;

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

/** @returns the datagrams that must not have come, and the ones that have not come */
function faults(came, expected) {
  const wrong = came.filter((each) => !expected.has(each)).map((each) => `${each} must not pass`);
  const lost = [...expected].filter((each) => !came.includes(each)).map((each) => `${each} is lost`);
  return [...wrong, ...lost];
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

/**
 * Each new pod sends a datagram to each target, at an allowed and at a forbidden port, as its first instruction; each target that
 * gets one sends two to the pod, of which one is allowed.
 */
export async function firstPackets({ cluster, namespace }) {
  const { api } = cluster;
  for (const policy of policies(namespace))
    await api.apply({ apiVersion: 'networking.k8s.io/v1', kind: 'NetworkPolicy', ...policy });
  await cluster.deployment({ namespace, name: 'target', replicas: cluster.nodes.length });
  const targets = await cluster.running(namespace, cluster.nodes.length);
  const targetAddresses = expectNoDuplicates(cluster, targets);
  const first = targetAddresses.flatMap((ip) => [ALLOWED, FORBIDDEN].map((port) => `${bracketed(ip)}:${port}`));
  const known = new Map(targets.map((pod) => [pod, []]));
  let count = 0;
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const name of NEW) await cluster.deployment({ namespace, name, replicas: PODS_COUNT, first });
    const pods = await cluster.running(namespace, targets.length + NEW.length * PODS_COUNT);
    const of = (app) => pods.filter(({ metadata }) => metadata.labels.app === app);
    count += NEW.length * PODS_COUNT;
    // Datagrams that are still on their way have come then.
    await sleep(1000);
    const found = [];
    for (const target of targets) {
      const expected = new Set(
        of('welcome')
          .flatMap((pod) => cluster.addressesOf(pod))
          .map((ip) => `${ALLOWED} ${ip}`),
      );
      const came = newDatagrams(cluster, target, known.get(target));
      known.get(target).push(...came);
      found.push(...faults(came, expected).map((text) => `${target.metadata.name}: ${text}`));
    }
    for (const name of NEW) {
      const expected = new Set(name === 'welcome' ? targetAddresses.map((ip) => `${ALLOWED_BACK} ${ip}`) : []);
      for (const pod of of(name))
        found.push(...faults(newDatagrams(cluster, pod, []), expected).map((text) => `${pod.metadata.name}: ${text}`));
    }
    printKnown(cluster);
    if (found.length > 0) throw new Error(`${found.length} of ${count} pods' datagrams\n${found.join('\n')}`);
    for (const name of NEW) await cluster.deployment({ namespace, name, replicas: 0, first });
    await cluster.running(namespace, targets.length);
  }
}
