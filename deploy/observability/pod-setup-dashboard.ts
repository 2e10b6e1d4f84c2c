import { NODES, percentile, percentiles, query, type DashboardDefinition } from './panels.js';

const DURATION = 'podwire_plugin_command_duration_seconds';
const PHASE = 'podwire_plugin_command_phase_duration_seconds';
const SUCCESSFUL_ADD = `command="ADD",result="success",${NODES}`;

/** The dashboard of pod setup latency. */
export const POD_SETUP: DashboardDefinition = {
  uid: 'podwire-pod-setup',
  title: 'Podwire: pod setup latency',
  rows: [
    {
      title: 'Pods',
      panels: [
        {
          title: 'ADD',
          description: 'Time of successful ADDs, from the start of the shim to the answer. A point leads to its trace.',
          unit: 's',
          queries: percentiles(DURATION, SUCCESSFUL_ADD),
        },
        {
          title: 'Mean ADD by phase',
          description:
            'Where the time of a mean ADD goes; the phases add up to it. datastore: etcd or the disk. kernel, lock: the node. rpc: between podwire-node and podwire-ipam. ipam_queue: other requests of the node. shim: podwire-node was down or had no CPU.',
          kind: 'stack',
          unit: 's',
          queries: [
            query(
              `sum by (phase) (rate(${PHASE}_sum{${SUCCESSFUL_ADD}}[$__rate_interval])) / scalar(sum(rate(${DURATION}_count{${SUCCESSFUL_ADD}}[$__rate_interval])))`,
              '{{phase}}',
            ),
          ],
        },
        {
          title: 'p50 by phase',
          description: 'Half of the ADDs spend less than this in the phase. Percentiles do not add up.',
          kind: 'stack',
          unit: 's',
          queries: [query(percentile(0.5, PHASE, SUCCESSFUL_ADD, ['phase']), '{{phase}}')],
        },
        {
          title: 'p99 by phase',
          description: 'One ADD in a hundred spends more than this in the phase. Percentiles do not add up.',
          kind: 'stack',
          unit: 's',
          queries: [query(percentile(0.99, PHASE, SUCCESSFUL_ADD, ['phase']), '{{phase}}')],
        },
        {
          title: 'ADDs by time',
          description:
            'Number of ADDs by their time. Two bands mean two kinds of ADDs, such as with and without a new block.',
          kind: 'heatmap',
          unit: 's',
          queries: [query(`sum by (le) (increase(${DURATION}_bucket{${SUCCESSFUL_ADD}}[$__rate_interval]))`, '{{le}}')],
        },
        {
          title: 'p99 of ADD by node',
          description: 'A node that stands out is overloaded, or has a slow network to podwire-ipam.',
          unit: 's',
          queries: [query(percentile(0.99, DURATION, SUCCESSFUL_ADD, ['instance']), '{{instance}}')],
        },
      ],
    },
    {
      title: 'Failures',
      panels: [
        {
          title: 'Failed ADDs by reason',
          description: 'README.md explains each failure. UNREACHABLE: podwire-ipam was down.',
          kind: 'stack',
          queries: [
            query(
              `sum by (reason) (increase(podwire_plugin_commands_failed_total{command="ADD",${NODES}}[$__rate_interval])) > 0 or on () vector(0)`,
              '{{reason}}',
            ),
          ],
        },
        {
          title: 'Failed ADDs by node',
          description: 'Nodes whose ADDs fail, with the reason.',
          kind: 'stack',
          queries: [
            query(
              `sum by (instance, reason) (increase(podwire_plugin_commands_failed_total{command="ADD",${NODES}}[$__rate_interval])) > 0 or on () vector(0)`,
              '{{instance}} {{reason}}',
            ),
          ],
        },
        {
          title: 'Nodes that cannot add pods',
          description: '1: an ADD would fail now, for the reason. See the runbook of PodwireAddBlocked.',
          queries: [
            query(`max by (instance, reason) (podwire_plugin_add_blocked{${NODES}})`, '{{instance}} {{reason}}'),
          ],
        },
        {
          title: 'Commands in flight',
          description: 'Commands that stay in flight wait for a service that hangs.',
          queries: [
            query(
              `sum by (instance, command) (podwire_plugin_commands_in_flight{${NODES}})`,
              '{{instance}} {{command}}',
            ),
          ],
        },
      ],
    },
    {
      title: 'Slowest pods, and the rest of a pod’s start',
      panels: [
        {
          title: 'Slow and failed ADDs',
          description: 'Traces that the collector keeps. Each leads from the kubelet to the kernel.',
          kind: 'traces',
          unit: 's',
          queries: [{ expression: '{ name = "CNI ADD" && (duration > 1s || status = error) }' }],
        },
        {
          title: 'p99 of ADD spans, with exemplars',
          description: 'From the collector’s spanmetrics connector. Each point is an ADD and leads to its trace.',
          unit: 's',
          hasExemplars: true,
          queries: [query(percentile(0.99, 'podwire_span_duration_seconds', 'span_name="CNI ADD"'), 'p99')],
        },
        {
          title: 'Share of Podwire in RunPodSandbox',
          description:
            'Share of the kubelet’s time for RunPodSandbox that the ADD takes. The pod condition PodReadyToStartContainers becomes true after it.',
          unit: 'percentunit',
          queries: [
            query(
              'sum(rate(podwire_plugin_command_duration_seconds_sum{command="ADD"}[$__rate_interval])) / sum(rate(kubelet_run_podsandbox_duration_seconds_sum[$__rate_interval]))',
              'share',
            ),
          ],
        },
        {
          title: 'DEL',
          description: 'Time of successful DELs.',
          unit: 's',
          queries: percentiles(DURATION, `command="DEL",result="success",${NODES}`),
        },
      ],
    },
  ],
};
