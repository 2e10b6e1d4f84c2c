import { COARSE_SECONDS, type MetricCatalog } from './metric-entry.js';

/** Metrics of the addresses that podwire-ipam has leased to the node. */
export const NODE_METRICS = {
  'podwire.leases.available': {
    kind: 'gauge',
    unit: '{address}',
    about: 'Leased addresses that pods of this node can get without podwire-ipam',
    labels: { family: ['ipv4', 'ipv6'] },
  },
  'podwire.leases.unsettled': {
    kind: 'gauge',
    unit: '{attachment}',
    about: 'Attachments whose addresses are still to be bound or returned in podwire-ipam',
    labels: { action: ['bind', 'return'] },
  },
  'podwire.leases.unsettled.age': {
    kind: 'gauge',
    unit: 's',
    about: 'Age of the oldest unsettled attachment; 0 if there is none',
  },
  'podwire.leases.refill.duration': {
    kind: 'histogram',
    unit: 's',
    about: 'Time for leasing addresses from podwire-ipam',
    labels: { family: ['ipv4', 'ipv6'] },
    buckets: COARSE_SECONDS,
    when: 'after the first refill',
  },
  'podwire.leases.recalls': {
    kind: 'counter',
    unit: '{recall}',
    about: 'Recalls of the leased addresses for pods of other nodes',
  },
  'podwire.leases.bindings.refused': {
    kind: 'counter',
    unit: '{binding}',
    about: 'Addresses of pods that podwire-ipam does not record for them',
  },
  'podwire.leases.reused': {
    kind: 'counter',
    unit: '{address}',
    about: 'Addresses of deleted pods that went to the next pods of the node while podwire-ipam was unreachable',
  },
  'podwire.inventory.returned': {
    kind: 'counter',
    unit: '{address}',
    about: 'Addresses without a record that the inventory found and the node returned',
  },
  'podwire.inventory.conflicts': {
    kind: 'gauge',
    unit: '{address}',
    about: 'Addresses of pods of this node that have another holder in the datastore',
  },
} as const satisfies MetricCatalog;
