import { addressOf, nodeNameOf } from '../ipam/population.js';
import type { ApiObject } from './api-server.js';

/** Size of a cluster. Each node has one pod of the namespace {@link AGENTS}, and pods of several other namespaces. */
export interface ClusterSize {
  readonly nodes: number;
  readonly namespaces: number;
  readonly podsPerNode: number;
}

export const POOL = '10.0.0.0/8';

/** Namespace of a DaemonSet. */
const AGENTS = 'agents';

/** Namespaces that may reach the DaemonSet's pods: every node has the addresses of their pods. */
export const SHARED_NAMESPACES = 10;

/** Port of the rule that {@link policyObjects} has; a policy with another one is a change. */
const PORT = 8080;

export interface ClusterPod {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  readonly node: number;
  readonly address: string;
  readonly isFrontend: boolean;
}

export function namespaceName(index: number): string {
  return `team-${index}`;
}

/** A pod of the cluster. The pods of a namespace are on consecutive nodes. */
export function podAt({ nodes, namespaces, podsPerNode }: ClusterSize, node: number, container: number): ClusterPod {
  const address = addressOf(POOL, node, container);
  const number = container * nodes + node;
  const uid = uidOf(number);
  if (container === podsPerNode - 1)
    return { namespace: AGENTS, name: `agent-${node}`, uid, node, address, isFrontend: false };
  const perNamespace = Math.ceil((nodes * (podsPerNode - 1)) / namespaces);
  const namespace = namespaceName(Math.floor(number / perNamespace));
  return { namespace, name: `web-${number}`, uid, node, address, isFrontend: number % 3 === 0 };
}

export function uidOf(number: number): string {
  return `00000000-0000-4000-8000-${number.toString(16).padStart(12, '0')}`;
}

export function* podsOf(size: ClusterSize): Generator<ClusterPod, void, void> {
  for (let node = 0; node < size.nodes; node++)
    for (let container = 0; container < size.podsPerNode; container++) yield podAt(size, node, container);
}

export function* nodeObjects({ nodes }: ClusterSize): Generator<ApiObject, void, void> {
  const conditions = [
    { type: 'Ready', status: 'True' },
    { type: 'NetworkUnavailable', status: 'False' },
  ];
  for (let node = 0; node < nodes; node++)
    yield { metadata: { name: nodeNameOf(node) }, spec: {}, status: { conditions } };
}

export function* namespaceObjects({ namespaces }: ClusterSize): Generator<ApiObject, void, void> {
  for (let index = 0; index < namespaces; index++) {
    const tier = index < SHARED_NAMESPACES ? 'shared' : 'own';
    yield { metadata: { name: namespaceName(index), labels: { tier } } };
  }
  yield { metadata: { name: AGENTS, labels: {} } };
}

/** Two policies of each namespace, and one of the DaemonSet. */
export function* policyObjects({ namespaces }: ClusterSize): Generator<ApiObject, void, void> {
  for (let index = 0; index < namespaces; index++) {
    const namespace = namespaceName(index);
    yield policyObject(namespace, 'default-deny', []);
    yield frontendPolicy(namespace, PORT);
  }
  const shared = { namespaceSelector: { matchLabels: { tier: 'shared' } } };
  yield policyObject(AGENTS, 'from-shared', [{ from: [shared] }]);
}

/** Allows connections from the namespace's frontends. */
export function frontendPolicy(namespace: string, port: number): ApiObject {
  const from = [{ podSelector: { matchLabels: { role: 'frontend' } } }];
  return policyObject(namespace, 'from-frontends', [{ from, ports: [{ protocol: 'TCP', port }] }]);
}

function policyObject(namespace: string, name: string, ingress: readonly object[]): ApiObject {
  return { metadata: { name, namespace }, spec: { podSelector: {}, policyTypes: ['Ingress'], ingress } };
}
