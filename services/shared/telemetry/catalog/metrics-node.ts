import { COARSE_SECONDS, gauge, histogram, type MetricCatalog } from './metric-entry.js';

/** Metrics of the addresses that podwire-ipam has leased to the node. */
export const NODE_METRICS = {
  'podwire.leases.available': gauge(
    '{address}',
    'Leased addresses that pods of this node can get without podwire-ipam',
    { labels: { family: ['ipv4', 'ipv6'] } },
  ),
  'podwire.leases.unsettled': gauge(
    '{attachment}',
    'Attachments whose addresses are still to be bound or returned in podwire-ipam',
    { labels: { action: ['bind', 'return'] } },
  ),
  'podwire.leases.unsettled.age': gauge('s', 'Age of the oldest unsettled attachment; 0 if there is none'),
  'podwire.leases.refill.duration': histogram('s', 'Time for leasing addresses from podwire-ipam', {
    labels: { family: ['ipv4', 'ipv6'] },
    buckets: COARSE_SECONDS,
    when: 'after the first refill',
  }),
} as const satisfies MetricCatalog;
