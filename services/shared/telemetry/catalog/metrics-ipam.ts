import { FAILURE_CODES } from '../../failure/codes.js';
import { FINE_SECONDS, type MetricCatalog } from './metric-entry.js';

/** Background work of podwire-ipam, as the label `task` names it. */
const UPKEEP_TASKS = [
  'begin-epoch',
  'check-etcd-certificate',
  'collect-garbage',
  'end-restore-wait',
  'finish-node-deletions',
  'finish-pool-deletions',
  'keep-certificate-authority',
  'publish-pool-status',
  'release-deleted-nodes',
  'release-deleted-pods',
  'remove-old-history',
  'remove-old-release-marks',
  'review-node-tokens',
  'write-history',
] as const;

export type UpkeepTaskName = (typeof UPKEEP_TASKS)[number];

const COUNTS = [1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000];

const FAMILIES = ['ipv4', 'ipv6'];
const FAILURES = Object.keys(FAILURE_CODES);
const POOL = { ippool: 'names of pools, or no_ippool' };
const POOL_AND_NODE = { ...POOL, node: 'names of nodes, unknown_node or no_affinity' };

/** Metrics of podwire-ipam. Counters are per replica. Gauges describe the whole datastore and are the same on every replica. */
export const IPAM_METRICS = {
  'podwire.ipam.allocations': {
    kind: 'counter',
    unit: '{request}',
    about: 'Allocate requests: allocated, repeated, or the name of a failure',
    labels: { result: ['allocated', 'repeated', ...FAILURES] },
  },
  'podwire.ipam.nodes': {
    kind: 'counter',
    unit: '{node}',
    about: 'Changes of nodes',
    labels: { event: ['registered', 'changed', 'deleted'] },
  },
  'podwire.ipam.audit.findings': {
    kind: 'gauge',
    unit: '{finding}',
    about: 'Findings of the last audit, every 5 minutes',
    labels: { kind: 'of the finding', severity: ['error', 'warning'] },
    when: 'after the first audit; 0 for a severity without findings',
  },
  'podwire.ipam.audit.finding': {
    kind: 'gauge',
    unit: '',
    about: 'Always 1; names the object of one of at most 20 findings',
    labels: { kind: 'of the finding', object: 'name of the object' },
    when: 'while there are findings',
  },
  'podwire.ipam.nodes.conflicts': {
    kind: 'gauge',
    unit: '{address}',
    about: 'Addresses of pods on a node that the datastore has allocated to another holder',
    labels: { node: 'that has them' },
    when: 'while there are some',
  },
  'podwire.ipam.nodes.unreported': {
    kind: 'gauge',
    unit: '{node}',
    about: 'Nodes that run and have not reported what they hold for 10 minutes',
  },
  'podwire.ipam.kubernetes.releases': {
    kind: 'counter',
    unit: '{object}',
    about: 'Deleted Nodes and Pods, by the release of their addresses',
    labels: { object: ['node', 'pod'], result: ['released', 'refused', 'failed'] },
    when: 'with PODWIRE_IPAM_NODE_CONTROLLER=true',
  },
  'podwire.ipam.kubernetes.requests': {
    kind: 'counter',
    unit: '{request}',
    about: 'Requests to the API server',
    labels: { verb: 'of Kubernetes', kind: 'plural', code: 'HTTP status, or none' },
    when: 'after the first one',
  },
  'podwire.ipam.kubernetes.watch.age': {
    kind: 'gauge',
    unit: 's',
    about: 'Time since the last event or bookmark of the most silent watch',
    when: 'with PODWIRE_IPAM_STORE=kubernetes',
  },
  'podwire.ipam.leader': {
    kind: 'gauge',
    unit: '',
    about: '1 while it holds the Lease',
    when: 'with PODWIRE_IPAM_STORE=kubernetes',
  },
  'podwire.ipam.kubernetes.handles': {
    kind: 'gauge',
    unit: '{handle}',
    about: 'IPAMHandles to be written or deleted, and handles whose ID is no object name',
    labels: { state: ['pending', 'unnamed'] },
    when: 'with PODWIRE_IPAM_KUBERNETES_HANDLES=deferred',
  },
  'podwire.ipam.kubernetes.annotations': {
    kind: 'gauge',
    unit: '{pod}',
    about: 'Pods whose annotations are to be written',
    when: 'with PODWIRE_IPAM_POD_ANNOTATIONS=always',
  },
  'podwire.ipam.policies': {
    kind: 'gauge',
    unit: '{policy}',
    about: 'NetworkPolicies and ClusterNetworkPolicies',
    when: 'with PODWIRE_IPAM_NETWORK_POLICIES=true',
  },
  'podwire.ipam.policies.nodes': {
    kind: 'gauge',
    unit: '{node}',
    about: 'Nodes that follow network policies; behind: a change waits, and the node has acknowledged none for 10 s',
    labels: { state: ['following', 'behind'] },
    when: 'with PODWIRE_IPAM_NETWORK_POLICIES=true',
  },
  'podwire.ipam.upkeep.failures': {
    kind: 'counter',
    unit: '{task}',
    about: 'Failed background tasks, which are retried',
    labels: { task: UPKEEP_TASKS },
  },
  'podwire.ipam.clocks.differ': { kind: 'counter', unit: '{look}', about: 'Checks that found a clock difference' },
  'podwire.ipam.allocations.in_use': {
    kind: 'gauge',
    unit: '{address}',
    about: 'Addresses in use, by their pool and the node that uses them',
    labels: POOL_AND_NODE,
  },
  'podwire.ipam.allocations.borrowed': {
    kind: 'gauge',
    unit: '{address}',
    about: 'Addresses in use from blocks of other nodes',
    labels: POOL_AND_NODE,
  },
  'podwire.ipam.allocations.leased': {
    kind: 'gauge',
    unit: '{address}',
    about: 'Addresses leased to nodes and not in use yet',
    labels: POOL_AND_NODE,
  },
  'podwire.ipam.allocations.cooling': {
    kind: 'gauge',
    unit: '{address}',
    about: 'Addresses that cool down after their release',
  },
  'podwire.ipam.blocks': {
    kind: 'gauge',
    unit: '{block}',
    about: 'Blocks, by their pool and the node that owns them',
    labels: POOL_AND_NODE,
  },
  'podwire.ipam.ippool.size': {
    kind: 'gauge',
    unit: '{address}',
    about: 'Addresses of a pool',
    labels: { ...POOL, family: FAMILIES },
  },
  'podwire.ipam.ippool.reserved': {
    kind: 'gauge',
    unit: '{address}',
    about: 'Addresses of a pool that reservations cover, allocated or not',
    labels: { ...POOL, family: FAMILIES },
  },
  'podwire.ipam.ippool.available': {
    kind: 'gauge',
    unit: '{address}',
    about: 'Addresses of a pool that a pod can get, leased ones included',
    labels: { ...POOL, family: FAMILIES },
  },
  'podwire.store.duration': {
    kind: 'histogram',
    unit: 's',
    about: 'Time for which requests wait for the datastore',
    labels: { operation: ['commit', 'revision'] },
    buckets: FINE_SECONDS,
  },
  'podwire.store.transaction.operations': {
    kind: 'histogram',
    unit: '{operation}',
    about: 'Comparisons, puts and deletes of a transaction',
    buckets: COUNTS,
  },
  'podwire.store.conflicts': {
    kind: 'counter',
    unit: '{transaction}',
    about: 'Transactions that were decided again after another replica’s change',
  },
  'podwire.store.endpoints.lost': {
    kind: 'counter',
    unit: '{endpoint}',
    about: 'Datastore endpoints abandoned after failures',
  },
} as const satisfies MetricCatalog;
