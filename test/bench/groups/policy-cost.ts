import { mkdirSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

import { SERVICE_ACCOUNT_DIRECTORY } from '@podwire/ipam/api-server/api';
import { ObjectServer } from '@podwire/ipam/testing/object-server';

import { makePod, removePod, type Pod } from '../../support/pods.js';
import { run } from '../../support/programs.js';
import { Stack } from '../../support/stack.js';
import { until } from '../../support/until.js';
import { CALLS, type Site } from '../cni/calls.js';
import { ExecTimer } from '../exec-timer.js';
import { median, quantile, type Figure } from '../figure.js';
import { Place, startIpam, type IpamProcess } from '../ipam/processes.js';

const WARM_UP = 500;
const PAIRS = 300;
const STORM_PODS = 110;
const STORM_CALLERS = 16;
const STORM_ROUNDS = 6;

/** As many select each pod. */
const POLICIES_COUNT = 10;

const NAMESPACES = '/api/v1/namespaces';
const PODS = `${NAMESPACES}/default/pods`;
const POLICIES = '/apis/networking.k8s.io/v1/namespaces/default/networkpolicies';
const CLUSTER_POLICIES = '/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies';

/** A pod that policies restrict, and that has to be known to another node before it starts; and one in a cluster without policies. */
const SIDES = ['restricted', 'open'] as const;
type Side = (typeof SIDES)[number];

const COMMANDS = ['ADD', 'DEL'] as const;
type Command = (typeof COMMANDS)[number];

type Measured = Record<Command, Record<Side, number[]>>;

interface Node {
  readonly stack: Stack;
  readonly timers: readonly ExecTimer[];
  readonly site: Site;
}

interface Bench {
  readonly server: ObjectServer;
  readonly nodes: Record<Side, Node>;
  readonly report: (line: string) => void;
}

/** The cost of network policies for ADD and DEL. All nodes and both podwire-ipam share one machine. */
export async function measurePolicyCost(report: (line: string) => void): Promise<Figure[]> {
  const place = new Place();
  const server = await ObjectServer.start();
  const ends: (() => Promise<void> | void)[] = [() => server.stop(), () => place.remove()];
  const startNode = async (ipam: IpamProcess, name: string, hasPolicies: boolean): Promise<Node> => {
    const env = { PODWIRE_NODE_NAME: name, PODWIRE_NODE_NETWORK_POLICIES: String(hasPolicies) };
    const stack = new Stack({ ipamSocket: ipam.socket, env });
    ends.unshift(() => stack.destroy());
    await stack.start('node');
    const timers = Array.from({ length: STORM_CALLERS }, () => new ExecTimer(place.folder, stack.netnsPath));
    ends.unshift(() => timers.forEach((timer) => timer.close()));
    return { stack, timers, site: { socket: stack.sockets.node, folder: stack.folder } };
  };
  const startIpamWith = async (hasPolicies: boolean): Promise<IpamProcess> => {
    const { host, port } = server.options;
    const ipam = await startIpam(place, {
      PODWIRE_IPAM_STORE_DIRECTORY: place.path(`store-${hasPolicies}`),
      PODWIRE_IPAM_NODE_CONTROLLER: 'true',
      PODWIRE_IPAM_NETWORK_POLICIES: String(hasPolicies),
      KUBERNETES_SERVICE_HOST: host,
      KUBERNETES_SERVICE_PORT: port,
    });
    ends.unshift(() => ipam.process.stop());
    return ipam;
  };
  try {
    mkdirSync(SERVICE_ACCOUNT_DIRECTORY, { recursive: true });
    run('mount', '--bind', server.options.directory, SERVICE_ACCOUNT_DIRECTORY);
    ends.unshift(() => void run('umount', SERVICE_ACCOUNT_DIRECTORY));
    putCluster(server);
    const ipam = await startIpamWith(true);
    const restricted = await startNode(ipam, 'node-1', true);
    const open = await startNode(await startIpamWith(false), 'node-1', false);
    const other = await startNode(ipam, 'node-2', true);
    await startWatcher(server, other);
    const bench = { server, nodes: { restricted, open }, report };
    return [...(await measurePods(bench)), ...(await measureStorms(bench))];
  } finally {
    for (const end of ends) await end();
  }
}

/** Two nodes, and policies that isolate each pod of the namespace `default` in both directions, and allow the pods of the other side. */
function putCluster(server: ObjectServer): void {
  server.undefinedCollections.add(CLUSTER_POLICIES);
  server.put(NAMESPACES, { metadata: { name: 'default', labels: {} } });
  for (const name of ['node-1', 'node-2']) server.put('/api/v1/nodes', { metadata: { name }, spec: {}, status: {} });
  const peers = [{ podSelector: { matchLabels: { app: 'web' } } }];
  for (let index = 0; index < POLICIES_COUNT; index++) {
    const ports = [{ protocol: 'TCP', port: 8000 + index }];
    const rules = { ingress: [{ from: peers, ports }], egress: [{ to: peers, ports }] };
    const spec = { podSelector: {}, policyTypes: ['Ingress', 'Egress'], ...rules };
    server.put(POLICIES, { metadata: { name: `web-${index}`, namespace: 'default' }, spec });
  }
}

function putPod(server: ObjectServer, name: string, nodeName: string): void {
  server.put(PODS, {
    metadata: { name, namespace: 'default', labels: { app: 'web' } },
    spec: { nodeName, containers: [{ name: 'web' }] },
    status: { phase: 'Pending' },
  });
}

/** A pod on another node, whose policies name each new pod. */
async function startWatcher(server: ObjectServer, { stack, timers, site }: Node): Promise<void> {
  putPod(server, 'watcher', 'node-2');
  await timers[0]?.succeed(CALLS.own('ADD', makePod('watcher'), site));
  const rules = () => run('nsenter', `--net=${stack.netnsPath}`, 'nft', 'list', 'table', 'inet', 'podwire_policy');
  await until(() => rules().includes('NetworkPolicy default/web-0'), rules);
}

/** Pods that Kubernetes has scheduled, and podwire-ipam has noticed. */
async function schedulePods({ server }: Bench, names: readonly string[]): Promise<readonly Pod[]> {
  const pods = names.map(makePod);
  for (const { name } of pods) putPod(server, name, 'node-1');
  await sleep(20 + names.length * 4);
  return pods;
}

function deletePods({ server }: Bench, pods: readonly Pod[]): void {
  for (const pod of pods) {
    server.delete(`${PODS}/${pod.name}`);
    removePod(pod);
  }
}

const measured = (): Measured => ({ ADD: { restricted: [], open: [] }, DEL: { restricted: [], open: [] } });

/** One pod at a time of each side, every second time in the other order. */
async function measurePods(bench: Bench): Promise<Figure[]> {
  const times = measured();
  for (let round = -WARM_UP; round < PAIRS; round++) {
    const order = round % 2 === 0 ? SIDES : SIDES.toReversed();
    const pods = await schedulePods(
      bench,
      order.map((side) => `pod-${round}-${side}`),
    );
    for (const command of COMMANDS)
      for (const [index, pod] of pods.entries()) {
        const side = order[index] ?? 'open';
        const elapsedMs = await callOne(bench.nodes[side], command, pod);
        if (round >= 0) times[command][side].push(elapsedMs);
      }
    deletePods(bench, pods);
  }
  return COMMANDS.map((command) => {
    const { restricted, open } = times[command];
    const show = (values: readonly number[]) =>
      `${median(values).toFixed(2)} ms (p99 ${quantile(values, 0.99).toFixed(2)})`;
    bench.report(`${command} p50: with policies ${show(restricted)}, without ${show(open)}`);
    const value = median(restricted) / median(open);
    return { name: `policies.${command.toLowerCase()}_vs_open`, value, unit: 'ratio', better: 'lower', goal: 1.15 };
  });
}

/** All pods of a node at once, of each side in turns, after one unmeasured round. */
async function measureStorms(bench: Bench): Promise<Figure[]> {
  const rates = measured();
  for (let round = 0; round <= STORM_ROUNDS; round++)
    for (const side of round % 2 === 0 ? SIDES : SIDES.toReversed()) {
      const names = Array.from({ length: STORM_PODS }, (_, index) => `storm-${round}-${side}-${index}`);
      const pods = await schedulePods(bench, names);
      for (const command of COMMANDS) {
        const rate = await callAll(bench.nodes[side], command, pods);
        if (round > 0) rates[command][side].push(rate);
      }
      deletePods(bench, pods);
    }
  return COMMANDS.map((command) => {
    const [restricted, open] = [median(rates[command].restricted), median(rates[command].open)];
    bench.report(
      `${STORM_PODS} pods, ${command}: with policies ${restricted.toFixed(0)}/s, without ${open.toFixed(0)}/s`,
    );
    const name = `policies.storm_${command.toLowerCase()}_vs_open`;
    return { name, value: restricted / open, unit: 'ratio', better: 'higher', goal: 0.9 };
  });
}

async function callOne({ timers, site }: Node, command: Command, pod: Pod, timer = timers[0]): Promise<number> {
  const timed = await timer?.succeed(CALLS.own(command, pod, site));
  return timed?.elapsedMs ?? 0;
}

/** @returns pods per second */
async function callAll(node: Node, command: Command, pods: readonly Pod[]): Promise<number> {
  const waiting = [...pods];
  const startMs = performance.now();
  const callers = node.timers.map(async (timer) => {
    for (let pod = waiting.pop(); pod; pod = waiting.pop()) await callOne(node, command, pod, timer);
  });
  await Promise.all(callers);
  return pods.length / ((performance.now() - startMs) / 1000);
}
