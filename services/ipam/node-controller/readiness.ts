import type { ClusterNode, NodePod } from '../api-server/objects.js';

/** The taint of examples/startup-taint.yaml: kubelets register nodes with it, and podwire-ipam removes it. */
export const STARTUP_TAINT = 'readiness.k8s.io/podwire-not-ready';

/** A change of a Node in the API server. Repeating it changes nothing. */
export interface NodePatch {
  readonly path: string;
  readonly contentType: string;
  readonly body: unknown;
  /** Effect in the log: `removed the taint …`. */
  readonly effect: string;
}

/** The names of nodes with a ready pod of podwire-node. */
export function nodesWithPod(pods: Iterable<NodePod>): ReadonlySet<string> {
  const names = new Set<string>();
  for (const { nodeName, isReady } of pods) if (isReady && nodeName !== '') names.add(nodeName);
  return names;
}

/**
 * Whether a node can run pods: Podwire's processes there are ready, and so is the kubelet, which it is once the
 * container runtime has found a network configuration that works.
 */
export function isServing(node: ClusterNode | undefined, withPod: ReadonlySet<string>): boolean {
  return node !== undefined && node.isReady && withPod.has(node.name);
}

/** Changes that a serving node needs: the condition NetworkUnavailable with the status False, and to lose the startup taint. */
export function patchesOf(node: ClusterNode, nowMs: number): NodePatch[] {
  const path = `/api/v1/nodes/${encodeURIComponent(node.name)}`;
  return [...taintPatches(node, path), ...conditionPatches(node, `${path}/status`, nowMs)];
}

function taintPatches({ taints, resourceVersion }: ClusterNode, path: string): NodePatch[] {
  const left = taints.filter(({ key }) => key !== STARTUP_TAINT);
  if (left.length === taints.length) return [];
  // The list is replaced as a whole. With the version, a change of another writer makes it a conflict.
  const body = { metadata: { resourceVersion }, spec: { taints: left.length > 0 ? left : null } };
  const effect = `removed the taint ${STARTUP_TAINT}`;
  return [{ path, contentType: 'application/merge-patch+json', body, effect }];
}

function conditionPatches({ networkUnavailable }: ClusterNode, path: string, nowMs: number): NodePatch[] {
  if (networkUnavailable === 'False') return [];
  const time = new Date(nowMs).toISOString().replace(/\.\d+Z$/, 'Z');
  const condition = {
    type: 'NetworkUnavailable',
    status: 'False',
    reason: 'PodwireIsUp',
    message: 'Podwire is running on this node',
    lastHeartbeatTime: time,
    lastTransitionTime: time,
  };
  const body = { status: { conditions: [condition] } };
  // Merges conditions by their type.
  const contentType = 'application/strategic-merge-patch+json';
  return [{ path, contentType, body, effect: 'set the condition NetworkUnavailable to False' }];
}
