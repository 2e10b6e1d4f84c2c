import { hostname } from 'node:os';

/** The service in traces and metrics. Calico's kube-controllers have the same default port. */
export const TELEMETRY = {
  service: 'podwire-ipam',
  instance: hostname(),
  metricsPort: 9094,
  /** Names of Calico's kube-controllers for the same values, so that existing dashboards find them at the endpoint. */
  aliases: {
    'podwire.ipam.allocations.in_use': 'ipam_allocations_in_use',
    'podwire.ipam.allocations.borrowed': 'ipam_allocations_borrowed',
    'podwire.ipam.blocks': 'ipam_blocks',
    'podwire.ipam.ippool.size': 'ipam_ippool_size',
  },
} as const;
