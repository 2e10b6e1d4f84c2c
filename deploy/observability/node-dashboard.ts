import { NODES, percentile, query, type DashboardDefinition } from './panels.js';

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
          width: 8,
          queries: [query(`min by (instance) (podwire_plugin_ready{${NODES}})`, '{{instance}}')],
        },
        {
          title: 'Services that serve',
          description: '0: the process runs but answers no request with success.',
          width: 8,
          queries: [query('min by (job, instance) (podwire_ready)', '{{job}} {{instance}}')],
        },
        {
          title: 'Conditions',
          description:
            'Parts of the cluster’s state that the node cannot apply. "podwirectl node status" explains them.',
          kind: 'stack',
          width: 8,
          queries: [
            query(
              `max by (instance, reason) (podwire_dataplane_conditions{${NODES}}) or on () vector(0)`,
              '{{instance}} {{reason}}',
            ),
          ],
        },
        {
          title: 'Pending releases',
          description: 'Addresses of deleted pods that podwire-ipam has not released yet.',
          width: 8,
          queries: [query(`max by (instance) (podwire_plugin_journal_entries{${NODES}})`, '{{instance}}')],
        },
        {
          title: 'Age of the oldest pending release',
          description: 'Rises for as long as podwire-ipam does not answer. "podwirectl journal" has the reason.',
          unit: 's',
          width: 8,
          queries: [query(`max by (instance) (podwire_plugin_journal_oldest_age_seconds{${NODES}})`, '{{instance}}')],
        },
        {
          title: 'Connected to podwire-ipam',
          description: '1: podwire-node receives changes of the cluster.',
          width: 8,
          queries: [query(`min by (instance) (podwire_dataplane_ipam_connected{${NODES}})`, '{{instance}}')],
        },
      ],
    },
    {
      title: 'Kernel',
      panels: [
        {
          title: 'Routes to other nodes',
          description: 'Wanted by the cluster, and present in the kernel.',
          width: 8,
          queries: [query(`max by (instance, state) (podwire_dataplane_routes{${NODES}})`, '{{instance}} {{state}}')],
        },
        {
          title: 'Drift',
          description: 'Objects of Podwire that another program changed. They were repaired.',
          kind: 'stack',
          width: 8,
          queries: [
            query(
              `sum by (instance, object) (increase(podwire_dataplane_node_drift_total{${NODES}}[$__rate_interval]))`,
              '{{instance}} {{object}}',
            ),
          ],
        },
        {
          title: 'Refusals of the kernel by errno',
          description: 'Some are expected: ENODEV and ENOENT for objects that are already gone.',
          kind: 'stack',
          width: 8,
          queries: [
            query(
              `sum by (errno) (increase(podwire_dataplane_netlink_errors_total{${NODES}}[$__rate_interval])) or on () vector(0)`,
              '{{errno}}',
            ),
          ],
        },
        {
          title: 'Kernel requests and lock waits',
          description: 'p99 by operation.',
          unit: 's',
          queries: [
            query(
              percentile(0.99, 'podwire_operation_duration_seconds', `operation=~"kernel.*|dataplane.*",${NODES}`, [
                'operation',
              ]),
              '{{operation}}',
            ),
          ],
        },
        {
          title: 'Calls of podwire-ipam',
          description:
            'p99 at the client, by method. The difference from the server’s time is connecting and transport.',
          unit: 's',
          queries: [
            query(percentile(0.99, 'rpc_client_call_duration_seconds', NODES, ['rpc_method']), '{{rpc_method}}'),
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
          queries: [query(`min by (instance, family) (podwire_leases_available{${NODES}})`, '{{instance}} {{family}}')],
        },
        {
          title: 'Addresses of ADDs by source',
          description:
            'node: a lease, or a repeated ADD. ipam: podwire-ipam allocated it, because the pod requests something (request), or the node had no lease (unavailable, exhausted).',
          kind: 'stack',
          queries: [
            query(
              `sum by (source, reason) (rate(podwire_plugin_addresses_total{${NODES}}[$__rate_interval]))`,
              '{{source}} {{reason}}',
            ),
          ],
        },
        {
          title: 'Bindings and returns to do',
          description: 'Pods that podwire-ipam does not know yet, and deleted ones that it does not know to be gone.',
          queries: [query(`max by (instance, action) (podwire_leases_unsettled{${NODES}})`, '{{instance}} {{action}}')],
        },
        {
          title: 'Time of a refill, p99',
          description: 'From the request for further leases until the node has them.',
          unit: 's',
          queries: [query(percentile(0.99, 'podwire_leases_refill_duration_seconds', NODES), 'p99')],
        },
      ],
    },
    {
      title: 'Processes',
      panels: [
        {
          title: 'Processor',
          description: 'Cores.',
          width: 8,
          queries: [
            query(
              `sum by (job, instance) (rate(process_cpu_time_seconds_total[$__rate_interval])) ${PODWIRE}`,
              '{{job}} {{instance}}',
            ),
          ],
        },
        {
          title: 'Resident memory',
          description: 'Of each process.',
          unit: 'bytes',
          width: 8,
          queries: [query(`process_memory_usage_bytes ${PODWIRE}`, '{{job}} {{instance}}')],
        },
        {
          title: 'Used heap',
          description: 'Of each process.',
          unit: 'bytes',
          width: 8,
          queries: [query(`v8js_memory_heap_used_bytes ${PODWIRE}`, '{{job}} {{instance}}')],
        },
        {
          title: 'Delay of the event loop',
          description: 'p99. Above 50 ms the process has too little CPU.',
          unit: 's',
          width: 8,
          queries: [query(`nodejs_eventloop_delay_p99_seconds ${PODWIRE}`, '{{job}} {{instance}}')],
        },
        {
          title: 'Open files',
          description: 'File descriptors of each process.',
          width: 8,
          queries: [query(`process_unix_file_descriptor_count ${PODWIRE}`, '{{job}} {{instance}}')],
        },
        {
          title: 'Releases',
          description: 'The release of each process.',
          kind: 'table',
          width: 8,
          queries: [{ expression: 'max by (job, instance, version, node_version) (podwire_build_info)' }],
        },
      ],
    },
  ],
};
