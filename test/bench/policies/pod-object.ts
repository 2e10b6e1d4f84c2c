import { nodeNameOf } from '../ipam/population.js';
import type { ApiObject } from './api-server.js';
import type { ClusterPod } from './cluster.js';

/** States that the API server reports of a new pod, in this order. */
export type PodStage = 'pending' | 'scheduled' | 'creating' | 'running';

const TIME = '2026-11-20T10:00:00Z';

/** A pod of a Deployment as the API server sends it: 4 KiB, most of which podwire-ipam does not need. */
export function podObject(pod: ClusterPod, stage: PodStage = 'running'): ApiObject {
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: metadataOf(pod),
    spec: specOf(pod, stage),
    status: statusOf(pod, stage),
  };
}

function metadataOf({ namespace, name, uid, isFrontend }: ClusterPod) {
  return {
    name,
    namespace,
    generateName: `${name}-`,
    uid,
    resourceVersion: '900000',
    generation: 1,
    creationTimestamp: TIME,
    labels: { app: name, role: isFrontend ? 'frontend' : 'backend', team: namespace, 'pod-template-hash': '6b9f7d5c8' },
    annotations: {
      'prometheus.io/scrape': 'true',
      'prometheus.io/port': '9090',
      'kubectl.kubernetes.io/restartedAt': TIME,
    },
    ownerReferences: [
      {
        apiVersion: 'apps/v1',
        kind: 'ReplicaSet',
        name: `${name}-set`,
        uid,
        controller: true,
        blockOwnerDeletion: true,
      },
    ],
    managedFields: [
      managedFields('kube-controller-manager', [
        'containers',
        'dnsPolicy',
        'restartPolicy',
        'schedulerName',
        'volumes',
      ]),
      managedFields('kubelet', ['conditions', 'containerStatuses', 'hostIP', 'phase', 'podIP', 'podIPs', 'startTime']),
    ],
  };
}

function managedFields(manager: string, fields: readonly string[]) {
  const entries = fields.map((field) => [`f:${field}`, { '.': {}, 'k:{"type":"Ready"}': { 'f:status': {} } }] as const);
  return {
    manager,
    operation: 'Update',
    apiVersion: 'v1',
    time: TIME,
    fieldsType: 'FieldsV1',
    fieldsV1: { 'f:spec': Object.fromEntries(entries) },
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
  initialDelaySeconds: 5,
  timeoutSeconds: 1,
  periodSeconds: 10,
  successThreshold: 1,
  failureThreshold: 3,
};

function specOf({ namespace, name, node }: ClusterPod, stage: PodStage) {
  return {
    volumes: [{ name: 'config', configMap: { name: `${name}-config`, defaultMode: 420 } }, TOKEN_VOLUME],
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
          { name: TOKEN_VOLUME.name, mountPath: '/var/run/secrets/kubernetes.io/serviceaccount', readOnly: true },
        ],
        livenessProbe: PROBE,
        readinessProbe: PROBE,
        terminationMessagePath: '/dev/termination-log',
        terminationMessagePolicy: 'File',
        imagePullPolicy: 'IfNotPresent',
      },
    ],
    restartPolicy: 'Always',
    terminationGracePeriodSeconds: 30,
    dnsPolicy: 'ClusterFirst',
    serviceAccountName: 'default',
    ...(stage === 'pending' ? {} : { nodeName: nodeNameOf(node) }),
    securityContext: {},
    schedulerName: 'default-scheduler',
    tolerations: ['not-ready', 'unreachable'].map((condition) => {
      const key = `node.kubernetes.io/${condition}`;
      return { key, operator: 'Exists', effect: 'NoExecute', tolerationSeconds: 300 };
    }),
    priority: 0,
    enableServiceLinks: true,
    preemptionPolicy: 'PreemptLowerPriority',
  };
}

const CONDITIONS = ['PodReadyToStartContainers', 'Initialized', 'Ready', 'ContainersReady', 'PodScheduled'];

function statusOf({ namespace, address }: ClusterPod, stage: PodStage) {
  const isRunning = stage === 'running';
  const hostIP = '192.168.0.1';
  const container = {
    name: 'web',
    state: isRunning ? { running: { startedAt: TIME } } : { waiting: { reason: 'ContainerCreating' } },
    lastState: {},
    ready: isRunning,
    restartCount: 0,
    image: `registry.example.com/${namespace}/web:v1.42.7`,
    imageID: `registry.example.com/${namespace}/web@sha256:${'0123456789abcdef'.repeat(4)}`,
    containerID: `containerd://${'fedcba9876543210'.repeat(4)}`,
    started: isRunning,
  };
  return {
    phase: isRunning ? 'Running' : 'Pending',
    conditions: CONDITIONS.map((type) => {
      return { type, status: isRunning ? 'True' : 'False', lastProbeTime: null, lastTransitionTime: TIME };
    }),
    startTime: TIME,
    containerStatuses: isRunning || stage === 'creating' ? [container] : [],
    ...(isRunning ? { hostIP, hostIPs: [{ ip: hostIP }], podIP: address, podIPs: [{ ip: address }] } : {}),
    qosClass: 'Burstable',
  };
}
