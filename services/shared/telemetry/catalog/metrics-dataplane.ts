import { COARSE_SECONDS, counter, FINE_SECONDS, gauge, histogram, type MetricCatalog } from './metric-entry.js';

const BIRD = 'with PODWIRE_ROUTING=bird';

/** Metrics of podwire-node's dataplane. */
export const DATAPLANE_METRICS = {
  'podwire.dataplane.nft.writes': counter(
    '{write}',
    'Writes of nftables tables; drift: another program had changed the table',
    { labels: { table: 'names of tables', reason: ['wanted', 'found', 'drift'] }, when: 'after the first write' },
  ),
  'podwire.dataplane.nft.gap': histogram('s', 'Time from another program’s change of a table until it is restored', {
    labels: { table: 'names of tables' },
    when: 'after the first such change',
    buckets: COARSE_SECONDS,
  }),
  'podwire.dataplane.netlink.errors': counter(
    '{error}',
    'Requests that the kernel refused, some as expected, as for a deleted device',
    { labels: { errno: 'names of errno.h' }, when: 'after the first one' },
  ),
  'podwire.dataplane.attachments.records.refused': counter('{record}', 'Changes of records that could not be stored'),
  'podwire.dataplane.attachments.dead': counter(
    '{attachment}',
    'Attachments whose namespaces disappeared without a DEL',
  ),
  'podwire.dataplane.routes': gauge('{route}', 'Routes to other nodes: required, and present in the kernel', {
    labels: { state: ['wanted', 'present'] },
    when: 'once the cluster and the kernel have been read',
  }),
  'podwire.dataplane.node.drift': counter('{object}', 'Objects of Podwire that another program changed', {
    labels: { object: ['device', 'address', 'neighbour', 'forwarding', 'route', 'sysctl'] },
  }),
  'podwire.dataplane.node.checks': counter('{check}', 'Full checks of the kernel, about every 90 s', {
    labels: { result: ['clean', 'drift', 'failed'] },
  }),
  'podwire.dataplane.node.check.duration': histogram('s', 'Time for reading the kernel in full', {
    when: 'after the first check',
    buckets: COARSE_SECONDS,
  }),
  'podwire.dataplane.conditions': gauge('{condition}', 'Current conditions of the node, as in GetNodeStatus', {
    labels: { reason: 'of the condition' },
    when: 'while there are conditions',
  }),
  'podwire.policy.known_everywhere': histogram(
    's',
    'Time until every node whose policies name a new pod has its addresses in force; the pod waited, or had started',
    {
      labels: { pod: ['waited', 'started'] },
      when: 'with PODWIRE_NODE_NETWORK_POLICIES=true, after the first such pod',
      buckets: FINE_SECONDS,
    },
  ),
  'podwire.policy.drops': counter(
    '{packet}',
    'Packets dropped by network policies, of each interface at most 5 per second; the pod’s direction and namespace',
    {
      labels: { direction: ['ingress', 'egress'], namespace: 'of the pod; empty if it is not known' },
      when: 'with PODWIRE_NODE_NETWORK_POLICIES=true, after the first such packet',
    },
  ),
  'podwire.dataplane.ipam.connected': gauge('', '1 while the watch of podwire-ipam is connected, else 0'),
  'podwire.dataplane.bird.sessions': gauge('{session}', 'BGP sessions', {
    labels: { established: ['true', 'false'] },
    when: BIRD,
  }),
} as const satisfies MetricCatalog;
