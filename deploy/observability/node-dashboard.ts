import { NODES, percentile, type DashboardDefinition } from './panels.js';

const PODWIRE = 'and on (job, instance) podwire_build_info';

/** The dashboard of nodes. */
export const NODE: DashboardDefinition = {
  uid: 'podwire-node',
  title: 'Podwire: node',
  rows: [
    {
      title: 'State',
      panels: [
        {
          title: 'Ready',
          description: '1: STATUS succeeds, and the node is Ready.',
          kind: 'lines',
          unit: 'short',
          width: 8,
          queries: [{ expression: `min by (instance) (podwire_plugin_ready{${NODES}})`, legend: '{{instance}}' }],
        },
        {
          title: 'Services that serve',
          description: '0: the process runs but answers no request with success.',
          kind: 'lines',
          unit: 'short',
          width: 8,
          queries: [{ expression: 'min by (job, instance) (podwire_ready)', legend: '{{job}} {{instance}}' }],
        },
        {
          title: 'Conditions',
          description:
            'Parts of the cluster’s state that the node cannot apply. "podwirectl node status" explains them.',
          kind: 'stack',
          unit: 'short',
          width: 8,
          queries: [
            {
              expression: `max by (instance, reason) (podwire_dataplane_conditions{${NODES}}) or on () vector(0)`,
              legend: '{{instance}} {{reason}}',
            },
          ],
        },
        {
          title: 'Pending releases',
          description: 'Addresses of deleted pods that podwire-ipam has not released yet.',
          kind: 'lines',
          unit: 'short',
          width: 8,
          queries: [
            { expression: `max by (instance) (podwire_plugin_journal_entries{${NODES}})`, legend: '{{instance}}' },
          ],
        },
        {
          title: 'Age of the oldest pending release',
          description: 'Rises for as long as podwire-ipam does not answer. "podwirectl journal" has the reason.',
          kind: 'lines',
          unit: 's',
          width: 8,
          queries: [
            {
              expression: `max by (instance) (podwire_plugin_journal_oldest_age_seconds{${NODES}})`,
              legend: '{{instance}}',
            },
          ],
        },
        {
          title: 'Connected to podwire-ipam',
          description: '1: podwire-node receives changes of the cluster.',
          kind: 'lines',
          unit: 'short',
          width: 8,
          queries: [
            { expression: `min by (instance) (podwire_dataplane_ipam_connected{${NODES}})`, legend: '{{instance}}' },
          ],
        },
      ],
    },
    {
      title: 'Kernel',
      panels: [
        {
          title: 'Routes to other nodes',
          description: 'Wanted by the cluster, and present in the kernel.',
          kind: 'lines',
          unit: 'short',
          width: 8,
          queries: [
            {
              expression: `max by (instance, state) (podwire_dataplane_routes{${NODES}})`,
              legend: '{{instance}} {{state}}',
            },
          ],
        },
        {
          title: 'Drift',
          description: 'Objects of Podwire that another program changed. They were repaired.',
          kind: 'stack',
          unit: 'short',
          width: 8,
          queries: [
            {
              expression: `sum by (instance, object) (increase(podwire_dataplane_node_drift_total{${NODES}}[$__rate_interval]))`,
              legend: '{{instance}} {{object}}',
            },
          ],
        },
        {
          title: 'Refusals of the kernel by errno',
          description: 'Some are expected: ENODEV and ENOENT for objects that are already gone.',
          kind: 'stack',
          unit: 'short',
          width: 8,
          queries: [
            {
              expression: `sum by (errno) (increase(podwire_dataplane_netlink_errors_total{${NODES}}[$__rate_interval])) or on () vector(0)`,
              legend: '{{errno}}',
            },
          ],
        },
        {
          title: 'Kernel requests and lock waits',
          description: 'p99 by operation.',
          kind: 'lines',
          unit: 's',
          width: 12,
          queries: [
            {
              expression: percentile(
                0.99,
                'podwire_operation_duration_seconds',
                `operation=~"kernel.*|dataplane.*",${NODES}`,
                ['operation'],
              ),
              legend: '{{operation}}',
            },
          ],
        },
        {
          title: 'Calls of podwire-ipam',
          description:
            'p99 at the client, by method. The difference from the server’s time is connecting and transport.',
          kind: 'lines',
          unit: 's',
          width: 12,
          queries: [
            {
              expression: percentile(0.99, 'rpc_client_call_duration_seconds', NODES, ['rpc_method']),
              legend: '{{rpc_method}}',
            },
          ],
        },
      ],
    },
    {
      title: 'Leased addresses',
      panels: [
        {
          title: 'Leases left',
          description: 'Addresses that the next pods get without podwire-ipam. At 0, ADDs wait for podwire-ipam.',
          kind: 'lines',
          unit: 'short',
          width: 12,
          queries: [
            {
              expression: `min by (instance, family) (podwire_leases_available{${NODES}})`,
              legend: '{{instance}} {{family}}',
            },
          ],
        },
        {
          title: 'Addresses of ADDs by source',
          description:
            'node: a lease, or a repeated ADD. ipam: podwire-ipam allocated it, because the pod requests something (request), or the node had no lease (unavailable, exhausted).',
          kind: 'stack',
          unit: 'short',
          width: 12,
          queries: [
            {
              expression: `sum by (source, reason) (rate(podwire_plugin_addresses_total{${NODES}}[$__rate_interval]))`,
              legend: '{{source}} {{reason}}',
            },
          ],
        },
        {
          title: 'Bindings and returns to do',
          description: 'Pods that podwire-ipam does not know yet, and deleted ones that it does not know to be gone.',
          kind: 'lines',
          unit: 'short',
          width: 12,
          queries: [
            {
              expression: `max by (instance, action) (podwire_leases_unsettled{${NODES}})`,
              legend: '{{instance}} {{action}}',
            },
          ],
        },
        {
          title: 'Time of a refill, p99',
          description: 'From the request for further leases until the node has them.',
          kind: 'lines',
          unit: 's',
          width: 12,
          queries: [{ expression: percentile(0.99, 'podwire_leases_refill_duration_seconds', NODES), legend: 'p99' }],
        },
      ],
    },
    {
      title: 'Processes',
      panels: [
        {
          title: 'Processor',
          description: 'Cores.',
          kind: 'lines',
          unit: 'short',
          width: 8,
          queries: [
            {
              expression: `sum by (job, instance) (rate(process_cpu_time_seconds_total[$__rate_interval])) ${PODWIRE}`,
              legend: '{{job}} {{instance}}',
            },
          ],
        },
        {
          title: 'Resident memory',
          description: 'Of each process.',
          kind: 'lines',
          unit: 'bytes',
          width: 8,
          queries: [{ expression: `process_memory_usage_bytes ${PODWIRE}`, legend: '{{job}} {{instance}}' }],
        },
        {
          title: 'Used heap',
          description: 'Of each process.',
          kind: 'lines',
          unit: 'bytes',
          width: 8,
          queries: [{ expression: `v8js_memory_heap_used_bytes ${PODWIRE}`, legend: '{{job}} {{instance}}' }],
        },
        {
          title: 'Delay of the event loop',
          description: 'p99. Above 50 ms the process has too little CPU.',
          kind: 'lines',
          unit: 's',
          width: 8,
          queries: [{ expression: `nodejs_eventloop_delay_p99_seconds ${PODWIRE}`, legend: '{{job}} {{instance}}' }],
        },
        {
          title: 'Open files',
          description: 'File descriptors of each process.',
          kind: 'lines',
          unit: 'short',
          width: 8,
          queries: [{ expression: `process_unix_file_descriptor_count ${PODWIRE}`, legend: '{{job}} {{instance}}' }],
        },
        {
          title: 'Releases',
          description: 'The release of each process.',
          kind: 'table',
          unit: 'short',
          width: 8,
          queries: [{ expression: 'max by (job, instance, version, node_version) (podwire_build_info)' }],
        },
      ],
    },
  ],
};
