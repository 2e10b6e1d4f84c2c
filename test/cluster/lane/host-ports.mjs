// Scenarios of host ports: natively, through portmap, and beside kube-proxy.
import { bracketed } from './cluster.mjs';
import { GATEWAY } from './network.mjs';
import { sleep, until } from './wait.mjs';

const SOON = 60;

/** In the range of node ports. */
const NODE_PORT = 31080;

const LOOPBACK = '127.0.0.1';

const url = (address, port) => `http://${bracketed(address)}:${port}/`;

/**
 * Answers to a port of a node, each with the place that it was requested from.
 * @returns answers (name, client) by place
 */
function callNodePort(cluster, { node, port }) {
  const other = cluster.nodes.find(({ name }) => name !== node.name);
  const answers = {};
  for (const family of cluster.families.families) {
    const target = url(node[family], port);
    answers[`${family} from the node`] = cluster.call(target, node);
    answers[`${family} from another node`] = cluster.call(target, other);
    answers[`${family} from outside`] = cluster.callFromOutside(target);
    if (family === 'ipv4') answers[LOOPBACK] = cluster.call(url(LOOPBACK, port), node);
  }
  return answers;
}

/** @throws Error with each place where another pod answers. `onLoopback`: the pod that answers at 127.0.0.1 */
function expectAnswers(answers, name, onLoopback = name) {
  const expected = (place) => (place === LOOPBACK ? onLoopback : name);
  const wrong = Object.entries(answers).filter(([place, answer]) => answer.name !== expected(place));
  const texts = wrong.map(([place, answer]) => `${place}: ${answer.name} answers`);
  if (wrong.length > 0) throw new Error(`${name}: ${texts.join(', ')}`);
}

/** The pod answers from everywhere, itself included, and sees the address of a client outside. */
export function expectHostPort(cluster, { pod, name, node, port }) {
  const answers = callNodePort(cluster, { node, port });
  expectAnswers(answers, name);
  for (const family of cluster.families.families) {
    const { client } = answers[`${family} from outside`];
    if (client !== GATEWAY[family]) throw new Error(`${name}: sees ${client}, not the client ${GATEWAY[family]}`);
  }
  const itself = cluster.families.pick(node).map((ip) => url(ip, port));
  cluster.sweep(cluster.addressesOf(pod), itself, node);
}

async function podWithHostPort(cluster, { namespace, name, hostPort, count }) {
  const [node] = cluster.nodes;
  await cluster.pod({ namespace, name, node: node.name, ports: [{ containerPort: 8080, hostPort }] });
  const pods = await cluster.running(namespace, count);
  return { node, name, port: hostPort, pod: pods.find(({ metadata }) => metadata.name === name) };
}

/** The default: podwire-node leads the ports. */
export async function hostPort({ cluster, namespace }) {
  expectHostPort(cluster, await podWithHostPort(cluster, { namespace, name: 'port', hostPort: 18080, count: 1 }));
}

/** A value that an operator changes later: portmap in the chain, and back. */
export async function portmap({ cluster, namespace }) {
  for (const [at, hostPorts] of ['portmap', 'native'].entries()) {
    await cluster.podwire.configure({ cni: { hostPorts } });
    for (const node of cluster.nodes) {
      const isLedByPodwire = () => {
        const { plugins } = JSON.parse(node.machine.run('cat', ['/etc/cni/net.d/10-podwire.conflist']));
        return plugins[0].capabilities.portMappings === true;
      };
      await until(`${node.name}: ${hostPorts}`, () => isLedByPodwire() === (hostPorts === 'native'), SOON);
    }
    // The runtime reads the file a moment later.
    await sleep(1000);
    const ports = { namespace, name: hostPorts, hostPort: 18081 + at, count: 1 + at };
    expectHostPort(cluster, await podWithHostPort(cluster, ports));
  }
}

/** A Service takes the number of a pod's host port: its node port wins until it is removed. */
export async function nodePort({ cluster, namespace }) {
  const { api, nodes } = cluster;
  const found = await podWithHostPort(cluster, { namespace, name: 'port', hostPort: NODE_PORT, count: 1 });
  expectHostPort(cluster, found);
  await cluster.pod({ namespace, name: 'endpoint', node: nodes[1].name });
  await cluster.running(namespace, 2);
  const metadata = { namespace, name: 'endpoint' };
  const ports = [{ port: 80, targetPort: 8080, nodePort: NODE_PORT }];
  const ipFamilyPolicy = cluster.families.name === 'dual' ? 'RequireDualStack' : 'SingleStack';
  const spec = { type: 'NodePort', selector: { app: 'endpoint' }, ports, ipFamilyPolicy };
  await api.apply({ apiVersion: 'v1', kind: 'Service', metadata, spec });
  // In nftables mode kube-proxy has no node ports of 127.0.0.1.
  const onLoopback = cluster.kubeProxy === 'nftables' ? 'port' : 'endpoint';
  const isTaken = () => {
    expectAnswers(callNodePort(cluster, found), 'endpoint', onLoopback);
    return true;
  };
  await until('the node port', isTaken, SOON);
  await api.remove('Service', namespace, 'endpoint');
  const isBack = () => {
    expectHostPort(cluster, found);
    return true;
  };
  await until('the host port', isBack, SOON);
}
