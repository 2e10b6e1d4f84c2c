import { FAILURE_CODES } from '../../failure/codes.js';
import { FINE_SECONDS, counter, gauge, histogram, type MetricCatalog } from './metric-entry.js';

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
  'sample-pool-use',
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
  'podwire.ipam.allocations': counter('{request}', 'Allocate requests: allocated, repeated, or the name of a failure', {
    labels: { result: ['allocated', 'repeated', ...FAILURES] },
  }),
  'podwire.ipam.nodes': counter('{node}', 'Changes of nodes', {
    labels: { event: ['registered', 'changed', 'deleted'] },
  }),
  'podwire.ipam.audit.findings': gauge('{finding}', 'Findings of the last audit, every 5 minutes', {
    labels: { kind: 'of the finding', severity: ['error', 'warning'] },
    when: 'after the first audit; 0 for a severity without findings',
  }),
  'podwire.ipam.audit.finding': gauge('', 'Always 1; names the object of one of at most 20 findings', {
    labels: { kind: 'of the finding', object: 'name of the object' },
    when: 'while there are findings',
  }),
  'podwire.ipam.nodes.conflicts': gauge(
    '{address}',
    'Addresses of pods on a node that the datastore has allocated to another holder',
    { labels: { node: 'that has them' }, when: 'while there are some' },
  ),
  'podwire.ipam.nodes.unreported': gauge(
    '{node}',
    'Nodes that run and have not reported what they hold for 10 minutes',
  ),
  'podwire.ipam.kubernetes.releases': counter('{object}', 'Deleted Nodes and Pods, by the release of their addresses', {
    labels: { object: ['node', 'pod'], result: ['released', 'refused', 'failed'] },
    when: 'with PODWIRE_IPAM_NODE_CONTROLLER=true',
  }),
  'podwire.ipam.kubernetes.requests': counter('{request}', 'Requests to the API server', {
    labels: { verb: 'of Kubernetes', kind: 'plural', code: 'HTTP status, or none' },
    when: 'after the first one',
  }),
  'podwire.ipam.kubernetes.watch.age': gauge('s', 'Time since the last event or bookmark of the most silent watch', {
    when: 'with PODWIRE_IPAM_STORE=kubernetes',
  }),
  'podwire.ipam.leader': gauge('', '1 while it holds the Lease', { when: 'with PODWIRE_IPAM_STORE=kubernetes' }),
  'podwire.ipam.kubernetes.handles': gauge(
    '{handle}',
    'IPAMHandles to be written or deleted, and handles whose ID is no object name',
    { labels: { state: ['pending', 'unnamed'] }, when: 'with PODWIRE_IPAM_KUBERNETES_HANDLES=deferred' },
  ),
  'podwire.ipam.kubernetes.annotations': gauge('{pod}', 'Pods whose annotations are to be written', {
    when: 'with PODWIRE_IPAM_POD_ANNOTATIONS=always',
  }),
  'podwire.ipam.policies': gauge('{policy}', 'NetworkPolicies and ClusterNetworkPolicies', {
    when: 'with PODWIRE_IPAM_NETWORK_POLICIES=true',
  }),
  'podwire.ipam.policies.nodes': gauge(
    '{node}',
    'Nodes that follow network policies; behind: a change waits, and the node has acknowledged none for 10 s',
    { labels: { state: ['following', 'behind'] }, when: 'with PODWIRE_IPAM_NETWORK_POLICIES=true' },
  ),
  'podwire.ipam.upkeep.failures': counter('{task}', 'Failed background tasks, which are retried', {
    labels: { task: UPKEEP_TASKS },
  }),
  'podwire.ipam.clocks.differ': counter('{look}', 'Checks that found a clock difference'),
  'podwire.ipam.allocations.in_use': gauge('{address}', 'Addresses in use, by their pool and the node that uses them', {
    labels: POOL_AND_NODE,
  }),
  'podwire.ipam.allocations.borrowed': gauge('{address}', 'Addresses in use from blocks of other nodes', {
    labels: POOL_AND_NODE,
  }),
  'podwire.ipam.allocations.leased': gauge('{address}', 'Addresses leased to nodes and not in use yet', {
    labels: POOL_AND_NODE,
  }),
  'podwire.ipam.allocations.cooling': gauge('{address}', 'Addresses that cool down after their release'),
  'podwire.ipam.namespace.addresses': gauge('{address}', 'Addresses in use by pods of a namespace', {
    labels: { namespace: 'the 20 largest, and _other' },
    when: 'while pods have addresses',
  }),
  'podwire.ipam.blocks': gauge('{block}', 'Blocks, by their pool and the node that owns them', {
    labels: POOL_AND_NODE,
  }),
  'podwire.ipam.ippool.size': gauge('{address}', 'Addresses of a pool', { labels: { ...POOL, family: FAMILIES } }),
  'podwire.ipam.ippool.reserved': gauge('{address}', 'Addresses of a pool that reservations cover, allocated or not', {
    labels: { ...POOL, family: FAMILIES },
  }),
  'podwire.ipam.ippool.available': gauge('{address}', 'Addresses of a pool that a pod can get, leased ones included', {
    labels: { ...POOL, family: FAMILIES },
  }),
  'podwire.store.duration': histogram('s', 'Time for which requests wait for the datastore', {
    labels: { operation: ['commit', 'revision'] },
    buckets: FINE_SECONDS,
  }),
  'podwire.store.transaction.operations': histogram('{operation}', 'Comparisons, puts and deletes of a transaction', {
    buckets: COUNTS,
  }),
  'podwire.store.conflicts': counter(
    '{transaction}',
    'Transactions that were decided again after another replica’s change',
  ),
  'podwire.store.endpoints.lost': counter('{endpoint}', 'Datastore endpoints abandoned after failures'),
} as const satisfies MetricCatalog;
