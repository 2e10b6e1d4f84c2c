import { addressOf, nodeNameOf } from '../ipam/population.js';
import type { ApiObject } from './api-server.js';

/** Size of a cluster. Each node has one pod of the namespace {@link AGENTS}, and pods of several other namespaces. */
export interface ClusterSize {
  readonly nodes: number;
  readonly namespaces: number;
  readonly podsPerNode: number;
}

export const POOL = '10.0.0.0/8';

/** Namespace of a DaemonSet, which all nodes run. */
export const AGENTS = 'agents';

/** Namespaces whose pods the policy of the DaemonSet allows: all nodes have their addresses. */
export const SHARED_NAMESPACES = 10;

export interface PodPlace {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  readonly node: number;
  /** Address; empty before the pod is started. */
  readonly address: string;
  readonly isFrontend: boolean;
}

export function namespaceName(index: number): string {
  return `team-${index}`;
}

/** Pods of a namespace are on consecutive nodes. */
export function podAt({ nodes, namespaces, podsPerNode }: ClusterSize, node: number, container: number): PodPlace {
  const address = addressOf(POOL, node, container);
  if (container === podsPerNode - 1) return podPlace(AGENTS, `agent-${node}`, { node, address, isFrontend: false });
  const number = container * nodes + node;
  const perNamespace = Math.ceil((nodes * (podsPerNode - 1)) / namespaces);
  const namespace = namespaceName(Math.floor(number / perNamespace));
  return podPlace(namespace, `web-${number}-${digits(number)}`, { node, address, isFrontend: number % 3 === 0 });
}

export function podPlace(
  namespace: string,
  name: string,
  rest: Pick<PodPlace, 'node' | 'address' | 'isFrontend'>,
): PodPlace {
  return {
    namespace,
    name,
    uid: `00000000-0000-4000-8000-${digits(hashOf(`${namespace}/${name}`)).padStart(12, '0')}`,
    ...rest,
  };
}

export function* podsOf(size: ClusterSize): Generator<PodPlace, void, void> {
  for (let node = 0; node < size.nodes; node++)
    for (let container = 0; container < size.podsPerNode; container++) yield podAt(size, node, container);
}

export function* nodeObjects({ nodes }: ClusterSize): Generator<ApiObject, void, void> {
  for (let node = 0; node < nodes; node++) {
    const conditions = [
      { type: 'Ready', status: 'True' },
      { type: 'NetworkUnavailable', status: 'False' },
    ];
    yield { ...{ metadata: { name: nodeNameOf(node) } }, ...{ spec: {}, status: { conditions } } };
  }
}

export function* namespaceObjects({ namespaces }: ClusterSize): Generator<ApiObject, void, void> {
  const names = Array.from({ length: namespaces }, (_, index) => namespaceName(index));
  for (const [index, name] of [...names, AGENTS].entries()) {
    const tier = index < SHARED_NAMESPACES ? 'shared' : 'own';
    yield { metadata: { name, ...{ labels: { 'kubernetes.io/metadata.name': name, tier } } } };
  }
}

/** Two policies for each namespace, and one for the DaemonSet. */
export function* policyObjects({ namespaces }: ClusterSize): Generator<ApiObject, void, void> {
  for (let index = 0; index < namespaces; index++) {
    const namespace = namespaceName(index);
    yield policy(namespace, 'default-deny', {});
    yield allowPolicy(namespace, 8080);
  }
  const peer = { namespaceSelector: { matchLabels: { tier: 'shared' } } };
  yield policy(AGENTS, 'from-shared', { ingress: [{ from: [peer] }] });
}

/** Allows frontends of the namespace. */
export function allowPolicy(namespace: string, port: number): ApiObject {
  const from = [{ podSelector: { matchLabels: { role: 'frontend' } } }];
  return policy(namespace, 'allow-frontend', { ingress: [{ from, ports: [{ protocol: 'TCP', port }] }] });
}

function policy(namespace: string, name: string, rules: object): ApiObject {
  const spec = { podSelector: {}, policyTypes: ['Ingress'], ...rules };
  return { metadata: { name, namespace }, ...{ spec } };
}

/** A pod of an ordinary Deployment as the API server sends it: about 4 KiB, most of which podwire-ipam ignores. */
export function podObject(
  pod: PodPlace,
  stage: 'pending' | 'scheduled' | 'creating' | 'running' = 'running',
): ApiObject {
  const { namespace, name, uid, node, address, isFrontend } = pod;
  const set = name.replace(/-[0-9a-f]+$/, '');
  const time = '2026-11-20T10:00:00Z';
  const isRunning = stage === 'running';
  const conditions = ['PodReadyToStartContainers', 'Initialized', 'Ready', 'ContainersReady', 'PodScheduled'];
  return {
    ...{ apiVersion: 'v1', kind: 'Pod' },
    metadata: {
      ...{ name, namespace },
      ...{ generateName: `${set}-`, uid, resourceVersion: '900000', generation: 1, creationTimestamp: time },
      ...{
        labels: {
          app: set,
          role: isFrontend ? 'frontend' : 'backend',
          'pod-template-hash': digits(hashOf(set)),
          team: namespace,
        },
        annotations: {
          'prometheus.io/scrape': 'true',
          'prometheus.io/port': '9090',
          'kubectl.kubernetes.io/restartedAt': time,
        },
        ownerReferences: [
          { apiVersion: 'apps/v1', kind: 'ReplicaSet', name: set, uid, controller: true, blockOwnerDeletion: true },
        ],
        managedFields: [
          managedFields('kube-controller-manager', MANAGED_SPEC),
          managedFields('kubelet', MANAGED_STATUS),
        ],
      },
    },
    ...{
      spec: {
        volumes: [{ name: 'config', configMap: { name: `${set}-config`, defaultMode: 420 } }, TOKEN_VOLUME],
        containers: [
          {
            name: 'web',
            image: `registry.example.com/${namespace}/web:v1.42.7`,
            ports: [
              { name: 'http', containerPort: 8080, protocol: 'TCP' },
              { name: 'metrics', containerPort: 9090, protocol: 'TCP' },
            ],
            env: Array.from({ length: 6 }, (_, index) => ({
              name: `SETTING_${index}`,
              value: `value of setting ${index}`,
            })),
            resources: { limits: { cpu: '1', memory: '512Mi' }, requests: { cpu: '100m', memory: '128Mi' } },
            volumeMounts: [
              { name: 'config', mountPath: '/etc/web', readOnly: true },
              { name: TOKEN_VOLUME.name, readOnly: true, mountPath: '/var/run/secrets/kubernetes.io/serviceaccount' },
            ],
            livenessProbe: PROBE,
            readinessProbe: PROBE,
            ...{
              terminationMessagePath: '/dev/termination-log',
              terminationMessagePolicy: 'File',
              imagePullPolicy: 'IfNotPresent',
            },
          },
        ],
        ...{
          restartPolicy: 'Always',
          terminationGracePeriodSeconds: 30,
          dnsPolicy: 'ClusterFirst',
          serviceAccountName: 'default',
        },
        ...(stage === 'pending' ? {} : { nodeName: nodeNameOf(node) }),
        ...{
          securityContext: {},
          schedulerName: 'default-scheduler',
          priority: 0,
          enableServiceLinks: true,
          preemptionPolicy: 'PreemptLowerPriority',
        },
        tolerations: ['not-ready', 'unreachable'].map((key) => {
          return { key: `node.kubernetes.io/${key}`, operator: 'Exists', effect: 'NoExecute', tolerationSeconds: 300 };
        }),
      },
      status: {
        phase: isRunning ? 'Running' : 'Pending',
        conditions:
          stage === 'pending'
            ? []
            : conditions.map((type) => {
                return { type, status: isRunning ? 'True' : 'False', lastProbeTime: null, lastTransitionTime: time };
              }),
        ...(isRunning
          ? { podIP: address, podIPs: [{ ip: address }], hostIP: '192.168.0.1', hostIPs: [{ ip: '192.168.0.1' }] }
          : {}),
        startTime: time,
        containerStatuses:
          stage === 'creating' || isRunning
            ? [
                {
                  name: 'web',
                  state: isRunning ? { running: { startedAt: time } } : { waiting: { reason: 'ContainerCreating' } },
                  ...{ lastState: {}, ready: isRunning, restartCount: 0, started: isRunning },
                  image: `registry.example.com/${namespace}/web:v1.42.7`,
                  imageID: `registry.example.com/${namespace}/web@sha256:${'0123456789abcdef'.repeat(4)}`,
                  containerID: `containerd://${'fedcba9876543210'.repeat(4)}`,
                },
              ]
            : [],
        qosClass: 'Burstable',
      },
    },
  };
}

const TOKEN_VOLUME = {
  name: 'kube-api-access-x7k2p',
  projected: {
    sources: [
      { serviceAccountToken: { expirationSeconds: 3607, path: 'token' } },
      { configMap: { name: 'kube-root-ca.crt', items: [{ key: 'ca.crt', path: 'ca.crt' }] } },
      {
        downwardAPI: {
          items: [{ path: 'namespace', fieldRef: { apiVersion: 'v1', fieldPath: 'metadata.namespace' } }],
        },
      },
    ],
    defaultMode: 420,
  },
};

const PROBE = {
  httpGet: { path: '/healthz', port: 'http', scheme: 'HTTP' },
  ...{ initialDelaySeconds: 5, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3 },
};

const MANAGED_SPEC = [
  'f:containers',
  'f:dnsPolicy',
  'f:enableServiceLinks',
  'f:restartPolicy',
  'f:schedulerName',
  'f:securityContext',
  'f:terminationGracePeriodSeconds',
  'f:volumes',
];
const MANAGED_STATUS = [
  'f:conditions',
  'f:containerStatuses',
  'f:hostIP',
  'f:hostIPs',
  'f:phase',
  'f:podIP',
  'f:podIPs',
  'f:startTime',
];

function managedFields(manager: string, fields: readonly string[]): object {
  const entries = fields.map((field) => [field, { '.': {}, 'k:{"type":"Ready"}': { 'f:status': {} } }]);
  return {
    ...{ manager, operation: 'Update', apiVersion: 'v1', time: '2026-11-20T10:00:00Z', fieldsType: 'FieldsV1' },
    fieldsV1: { 'f:spec': Object.fromEntries(entries) },
  };
}

function digits(value: number): string {
  return value.toString(16).padStart(8, '0');
}

function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < text.length; index++) hash = Math.imul(hash ^ text.charCodeAt(index), 0x01000193) >>> 0;
  return hash;
}
