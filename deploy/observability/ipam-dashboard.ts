import { percentile, percentiles, query, type DashboardDefinition } from './panels.js';

const AVAILABLE = 'max by (ippool) (podwire_ipam_ippool_available)';
const SIZE = 'max by (ippool) (podwire_ipam_ippool_size)';

/** The dashboard of addresses, blocks and the datastore. */
export const IPAM: DashboardDefinition = {
  uid: 'podwire-ipam',
  title: 'Podwire: IPAM',
  rows: [
    {
      title: 'Pools',
      panels: [
        {
          title: 'Pools in use',
          description: 'Share of each pool that is in use, cooling down or reserved.',
          unit: 'percentunit',
          width: 8,
          queries: [query(`1 - ${AVAILABLE} / ${SIZE}`, '{{ippool}}')],
        },
        {
          title: 'Free addresses',
          description: 'Addresses of each pool that a pod can get.',
          width: 8,
          queries: [query(AVAILABLE, '{{ippool}}')],
        },
        {
          title: 'Time until a pool is full',
          description: 'At the rate of the last hour; 0 where a pool does not fill.',
          unit: 's',
          width: 8,
          queries: [
            query(
              `${AVAILABLE} / (max by (ippool) (-deriv(podwire_ipam_ippool_available[1h])) > 0) or ${AVAILABLE} * 0`,
              '{{ippool}}',
            ),
          ],
        },
        {
          title: 'Addresses by state',
          description:
            'In use by pods and nodes, leased to nodes for future pods, cooling down after a release, and reserved.',
          kind: 'stack',
          queries: [
            query('sum(max by (ippool, node) (podwire_ipam_allocations_in_use))', 'in use'),
            query('sum(max by (ippool, node) (podwire_ipam_allocations_leased))', 'leased'),
            query('max(podwire_ipam_allocations_cooling)', 'cooling down'),
            query('sum(max by (ippool) (podwire_ipam_ippool_reserved))', 'reserved'),
          ],
        },
        {
          title: 'Allocations by result',
          description:
            'repeated: the same request again, after a lost answer. Every other result is the name of a failure.',
          kind: 'stack',
          queries: [
            query(
              'sum by (result) (increase(podwire_ipam_allocations_total[$__rate_interval])) > 0 or on () vector(0)',
              '{{result}}',
            ),
          ],
        },
      ],
    },
    {
      title: 'Nodes and blocks',
      panels: [
        {
          title: 'Addresses by node',
          description: 'Addresses in use on each node.',
          width: 8,
          queries: [query('sum by (node) (max by (ippool, node) (podwire_ipam_allocations_in_use))', '{{node}}')],
        },
        {
          title: 'Blocks by node',
          description: 'no_affinity: blocks that no node owns, which any node can claim once they are empty.',
          width: 8,
          queries: [query('sum by (node) (max by (ippool, node) (podwire_ipam_blocks))', '{{node}}')],
        },
        {
          title: 'Borrowed addresses by node',
          description: 'Addresses from blocks of other nodes: the pool is short of blocks.',
          width: 8,
          queries: [query('sum by (node) (max by (ippool, node) (podwire_ipam_allocations_borrowed))', '{{node}}')],
        },
        {
          title: 'Findings of the audit',
          description:
            'Faults of the datastore by kind. See the runbooks of PodwireAddressesLeaked and PodwireDatastoreFaulty.',
          width: 8,
          queries: [
            query(
              'sum by (severity, kind) (max by (severity, kind) (podwire_ipam_audit_findings))',
              '{{severity}} {{kind}}',
            ),
          ],
        },
        {
          title: 'Leaked addresses and other findings',
          description:
            'The object of each finding. "podwirectl audit" names the pod, and "podwirectl audit --repair" makes the safe repairs.',
          kind: 'table',
          width: 16,
          queries: [{ expression: 'max by (kind, object) (podwire_ipam_audit_finding) or on () vector(0)' }],
        },
        {
          title: 'Addresses by namespace',
          description: 'Addresses in use by pods; _other: all but the 20 largest namespaces.',
          kind: 'stack',
          width: 16,
          queries: [query('max by (namespace) (podwire_ipam_namespace_addresses)', '{{namespace}}')],
        },
      ],
    },
    {
      title: 'Network policies',
      panels: [
        {
          title: 'Policies',
          description: 'NetworkPolicies and ClusterNetworkPolicies.',
          width: 8,
          queries: [query('max(podwire_ipam_policies)', 'policies')],
        },
        {
          title: 'Nodes',
          description: 'behind: the latest changes are not in force. "podwirectl policy status" names the nodes.',
          width: 8,
          queries: [query('max by (state) (podwire_ipam_policies_nodes)', '{{state}}')],
        },
        {
          title: 'Policies not enforced or not followed',
          description: 'Conditions of nodes. "podwirectl node status" on the node has the reason.',
          kind: 'stack',
          width: 8,
          queries: [
            query(
              'max by (instance, reason) (podwire_dataplane_conditions{reason=~"PoliciesNotEnforced|PodPolicyUnknown|PoliciesNotFollowed"}) or on () vector(0)',
              '{{instance}} {{reason}}',
            ),
          ],
        },
        {
          title: 'Time until other nodes know a new pod',
          description: 'From the announcement until every node whose policies name the pod has its addresses in force.',
          unit: 's',
          queries: percentiles('podwire_policy_known_everywhere_seconds', ''),
        },
        {
          title: 'Dropped packets, a sample',
          description:
            'At most five a second for each pod. "podwirectl policy drops" on the node names pods and policies.',
          kind: 'stack',
          unit: 'pps',
          queries: [
            query(
              'sum by (namespace, direction) (rate(podwire_policy_drops_total[$__rate_interval]))',
              '{{namespace}} {{direction}}',
            ),
          ],
        },
      ],
    },
    {
      title: 'Requests and datastore',
      panels: [
        {
          title: 'Allocate',
          description: 'Time of Allocate in podwire-ipam.',
          unit: 's',
          width: 8,
          queries: percentiles(
            'rpc_server_call_duration_seconds',
            'rpc_method="podwire.ipam.v1.AddressService/Allocate"',
          ),
        },
        {
          title: 'Datastore commit',
          description: 'Time for which requests wait for a transaction.',
          unit: 's',
          width: 8,
          queries: percentiles('podwire_store_duration_seconds', 'operation="commit"'),
        },
        {
          title: 'Waits before a transaction',
          description: 'Wait for the transaction before, of requests of the same node (p99).',
          unit: 's',
          width: 8,
          queries: [query(percentile(0.99, 'podwire_operation_duration_seconds', 'operation="ipam.lane_wait"'), 'p99')],
        },
        {
          title: 'Transactions and conflicts',
          description: 'Conflicts are decided again; many mean that replicas change the same blocks.',
          unit: 'ops',
          width: 8,
          queries: [
            query('sum(rate(podwire_store_transaction_operations_count[$__rate_interval]))', 'transactions'),
            query('sum(rate(podwire_store_conflicts_total[$__rate_interval]))', 'conflicts'),
          ],
        },
        {
          title: 'Operations of a transaction',
          description: 'Comparisons, puts and deletes. Requests that arrive together share a transaction.',
          width: 8,
          queries: percentiles('podwire_store_transaction_operations', ''),
        },
        {
          title: 'Waits by fair queueing',
          description: 'Wait of requests over the network for their caller’s turn (p99).',
          unit: 's',
          width: 8,
          queries: [query(percentile(0.99, 'podwire_rpc_wait_duration_seconds', '', ['role']), '{{role}}')],
        },
      ],
    },
    {
      title: 'Kubernetes API server',
      panels: [
        {
          title: 'Leader',
          description: '1 for the podwire-ipam that holds the Lease (store kubernetes).',
          queries: [query('max by (instance) (podwire_ipam_leader)', '{{instance}}')],
        },
        {
          title: 'Requests',
          description: 'Requests of podwire-ipam by verb and resource.',
          unit: 'reqps',
          queries: [
            query(
              'sum by (verb, kind) (rate(podwire_ipam_kubernetes_requests_total[$__rate_interval]))',
              '{{verb}} {{kind}}',
            ),
          ],
        },
        {
          title: 'Refused requests',
          description: '409: another writer was faster, and podwire-ipam decides again. none: no answer.',
          unit: 'reqps',
          queries: [
            query(
              'sum by (kind, code) (rate(podwire_ipam_kubernetes_requests_total{code!~"2..|404"}[$__rate_interval])) or on () vector(0)',
              '{{code}} {{kind}}',
            ),
          ],
        },
        {
          title: 'Age of watches',
          description: 'Time since the last event or bookmark, at most; the API server sends one a minute.',
          unit: 's',
          queries: [query('max by (instance) (podwire_ipam_kubernetes_watch_age_seconds)', '{{instance}}')],
        },
      ],
    },
  ],
};
