/** Values of a series, in promtool's notation: `0+1x60` is 0, 1, 2 … once a minute. */
interface Series {
  readonly series: string;
  readonly values: string;
}

export interface Alert {
  readonly name: string;
  readonly severity: 'critical' | 'warning';
  /** How long the expression must hold: `5m`. */
  readonly for: string;
  readonly expression: string;
  /** One line with Prometheus' templates. */
  readonly summary: string;
  /** Text of the runbook: effect on pods, and remedy. */
  readonly meaning: string;
  readonly action: string;
  /** One sample a minute. The alert fires for the first within 90 minutes and never for the second. */
  readonly example: { readonly fires: readonly Series[]; readonly silent: readonly Series[] };
}

const one = (series: string, values: string): readonly Series[] => [{ series, values }];

const commandBuckets = (slow: string, fast: string): readonly Series[] =>
  Object.entries({ '0.02': fast, '2': fast, '5': slow, '+Inf': slow }).map(([le, values]) => ({
    series: `podwire_plugin_command_duration_seconds_bucket{instance="a",command="ADD",result="success",le="${le}"}`,
    values,
  }));

const storeBuckets = (slow: string, fast: string): readonly Series[] =>
  Object.entries({ '0.01': fast, '0.5': fast, '1': slow, '+Inf': slow }).map(([le, values]) => ({
    series: `podwire_store_duration_seconds_bucket{instance="a",operation="commit",le="${le}"}`,
    values,
  }));

const pool = (available: string): readonly Series[] => [
  { series: 'podwire_ipam_ippool_size{instance="a",ippool="p",family="ipv4"}', values: '256x90' },
  { series: 'podwire_ipam_ippool_available{instance="a",ippool="p",family="ipv4"}', values: available },
];

const routes = (present: string): readonly Series[] => [
  { series: 'podwire_dataplane_routes{instance="a",state="wanted"}', values: '10x90' },
  { series: 'podwire_dataplane_routes{instance="a",state="present"}', values: present },
];

const eventLoop = (delay: string): readonly Series[] => [
  { series: 'podwire_build_info{instance="a",job="podwire-ipam",version="1"}', values: '1x90' },
  { series: 'nodejs_eventloop_delay_p99_seconds{instance="a",job="podwire-ipam"}', values: delay },
];

const lostSpans = (lost: string): readonly Series[] => [
  { series: 'podwire_build_info{instance="a",job="podwire-ipam",version="1"}', values: '1x90' },
  {
    series: 'otel_sdk_processor_span_processed_total{instance="a",job="podwire-ipam",error_type="Error"}',
    values: lost,
  },
];

/** Every alert. `instance` is the node, or the scraped address. */
export const ALERTS: readonly Alert[] = [
  {
    name: 'PodwireAddBlocked',
    severity: 'critical',
    for: '5m',
    expression: 'max by (instance, reason) (podwire_plugin_add_blocked) == 1',
    summary: 'No pod can start on {{ $labels.instance }}: {{ $labels.reason }}',
    meaning: 'New pods of the node stay in ContainerCreating. Running pods are not affected.',
    action:
      'Reason addresses: `podwirectl explain NODE` says why no pool serves the node. ipam: podwire-ipam or its datastore does not answer; see PodwireNotServing. dataplane: the dataplane of podwire-node does not answer; `podwirectl node status`. ipam-plugin: the delegated IPAM plugin fails. journal: the state directory cannot be written.',
    example: {
      fires: one('podwire_plugin_add_blocked{instance="a",reason="ipam"}', '0x5 1x60'),
      silent: one('podwire_plugin_add_blocked{instance="a",reason="ipam"}', '0x5 1x2 0x60'),
    },
  },
  {
    name: 'PodwireNodeNotReady',
    severity: 'critical',
    for: '5m',
    expression: 'min by (instance) (podwire_plugin_ready) == 0',
    summary: 'STATUS fails on {{ $labels.instance }}: the node is not Ready',
    meaning: 'The kubelet reports NetworkReady=false. Kubernetes schedules no pods there and evicts running pods.',
    action: 'Run `podwirectl node ready` on the node: it names the reason.',
    example: {
      fires: one('podwire_plugin_ready{instance="a"}', '1x5 0x60'),
      silent: one('podwire_plugin_ready{instance="a"}', '1x5 0x3 1x60'),
    },
  },
  {
    name: 'PodwireNotServing',
    severity: 'critical',
    for: '2m',
    expression: 'min by (job, instance) (podwire_ready) == 0',
    summary: '{{ $labels.job }} on {{ $labels.instance }} does not serve requests',
    meaning:
      'podwire-ipam: its datastore has not been read or has been refused. podwire-node: the kernel can wire no pod of the pools.',
    action: 'Read the log of the process; `podwirectl node status` for podwire-node.',
    example: {
      fires: one('podwire_ready{instance="a",job="podwire-ipam"}', '0x60'),
      silent: one('podwire_ready{instance="a",job="podwire-ipam"}', '0x1 1x60'),
    },
  },
  {
    name: 'PodwireIpamAbsent',
    severity: 'critical',
    for: '5m',
    expression: 'absent(podwire_store_conflicts_total)',
    summary: 'No podwire-ipam reports metrics',
    meaning:
      'podwire-ipam is down, or is not scraped. While it is down, pods start until the leases of their node are used up.',
    action: 'Check the pods of podwire-ipam in `podwire-system`, then whether Prometheus scrapes port 9094.',
    example: {
      fires: one('podwire_build_info{instance="a"}', '1x60'),
      silent: one('podwire_store_conflicts_total{instance="a"}', '0x90'),
    },
  },
  {
    name: 'PodwireNoLeader',
    severity: 'critical',
    for: '1m',
    expression: 'max(podwire_ipam_leader) == 0',
    summary: 'No podwire-ipam holds the Lease',
    meaning: 'As PodwireIpamAbsent.',
    action: '`kubectl -n podwire-system get lease podwire-ipam` names the former leader; see the logs of podwire-ipam.',
    example: {
      fires: one('podwire_ipam_leader{instance="a"}', '1x5 0x60'),
      silent: [
        ...one('podwire_ipam_leader{instance="a"}', '1x5 0x60'),
        ...one('podwire_ipam_leader{instance="b"}', '0x5 1x60'),
      ],
    },
  },
  {
    name: 'PodwireApiServerRefuses',
    severity: 'warning',
    for: '5m',
    expression:
      'sum by (code) (increase(podwire_ipam_kubernetes_requests_total{code=~"401|403|429|5..|none"}[5m])) > 5',
    summary: 'The API server answers podwire-ipam with {{ $labels.code }}',
    meaning: 'Store kubernetes: pods start while leases last. Otherwise deleted Nodes and pods keep their addresses.',
    action:
      '401, 403: apply the role of podwire-ipam. 429: see the FlowSchema `podwire-ipam`. 5xx, none: the API server fails.',
    example: {
      fires: one(
        'podwire_ipam_kubernetes_requests_total{instance="a",verb="update",kind="ipamblocks",code="429"}',
        '0+3x60',
      ),
      silent: one(
        'podwire_ipam_kubernetes_requests_total{instance="a",verb="update",kind="ipamblocks",code="409"}',
        '0+9x60',
      ),
    },
  },
  {
    name: 'PodwireWatchTooOld',
    severity: 'warning',
    for: '2m',
    expression: 'max by (instance) (podwire_ipam_kubernetes_watch_age_seconds) > 200',
    summary: 'podwire-ipam on {{ $labels.instance }} has not heard of a resource for {{ $value | humanizeDuration }}',
    meaning: 'Changes of pools, nodes and blocks by other programs are seen late.',
    action: 'The log of podwire-ipam names the watch.',
    example: {
      fires: one('podwire_ipam_kubernetes_watch_age_seconds{instance="a"}', '0+60x60'),
      silent: one('podwire_ipam_kubernetes_watch_age_seconds{instance="a"}', '0x5 180x60'),
    },
  },
  {
    name: 'PodwireAddFailing',
    severity: 'warning',
    for: '5m',
    expression: 'sum by (instance, reason) (increase(podwire_plugin_commands_failed_total{command="ADD"}[10m])) > 0',
    summary: 'ADDs fail on {{ $labels.instance }}: {{ $labels.reason }}',
    meaning: 'Pods of the node start late or not at all; the kubelet tries again.',
    action:
      'services/shared/failure/README.md lists each failure. `podwirectl latency` lists the failed commands with their trace IDs.',
    example: {
      fires: one('podwire_plugin_commands_failed_total{instance="a",command="ADD",reason="UNREACHABLE"}', '0x5 1+1x60'),
      silent: one('podwire_plugin_commands_failed_total{instance="a",command="DEL",reason="UNREACHABLE"}', '0+1x60'),
    },
  },
  {
    name: 'PodwireAddSlow',
    severity: 'warning',
    for: '10m',
    expression:
      'histogram_quantile(0.99, sum by (le) (rate(podwire_plugin_command_duration_seconds_bucket{command="ADD",result="success"}[10m]))) > 2',
    summary: 'One ADD in a hundred takes more than {{ $value | humanizeDuration }}',
    meaning: 'Pods start slowly.',
    action:
      'The dashboard “Pod setup latency” shows the phase. datastore: etcd or the disk is slow. kernel or lock: the node is overloaded. shim: podwire-node was down or had no CPU. rpc: podwire-ipam was restarting, or the network is slow.',
    example: { fires: commandBuckets('0+10x90', '0+5x90'), silent: commandBuckets('0+10x90', '0+10x90') },
  },
  {
    name: 'PodwireCommandsCutOff',
    severity: 'warning',
    for: '0m',
    expression:
      'sum by (instance, command) (increase(podwire_plugin_commands_cut_off_total{reason="deadline"}[10m])) > 0',
    summary: '{{ $labels.command }} exceeds its deadline on {{ $labels.instance }}',
    meaning: 'A service hangs.',
    action: '`podwirectl latency` shows the phase in which the command waited; read the log of that service.',
    example: {
      fires: one('podwire_plugin_commands_cut_off_total{instance="a",command="ADD",reason="deadline"}', '0x5 1x60'),
      silent: one('podwire_plugin_commands_cut_off_total{instance="a",command="ADD",reason="superseded"}', '0+1x60'),
    },
  },
  {
    name: 'PodwireReleasesPending',
    severity: 'warning',
    for: '5m',
    expression: 'max by (instance) (podwire_plugin_journal_oldest_age_seconds) > 600',
    summary:
      'Addresses of deleted pods on {{ $labels.instance }} have not been released for {{ $value | humanizeDuration }}',
    meaning: 'The addresses cannot be used by other pods.',
    action: '`podwirectl journal` on the node lists them with the reason.',
    example: {
      fires: one('podwire_plugin_journal_oldest_age_seconds{instance="a"}', '0+60x60'),
      silent: one('podwire_plugin_journal_oldest_age_seconds{instance="a"}', '500x60'),
    },
  },
  {
    name: 'PodwireBindingsPending',
    severity: 'warning',
    for: '5m',
    expression: 'max by (instance) (podwire_leases_unsettled_age_seconds) > 300',
    summary: 'podwire-ipam does not know pods of {{ $labels.instance }} for {{ $value | humanizeDuration }}',
    meaning:
      'Pods start with leased addresses until these are used up. Addresses of deleted pods cannot be used by other pods.',
    action: 'Check podwire-ipam and its datastore; the log of podwire-node has the reason.',
    example: {
      fires: one('podwire_leases_unsettled_age_seconds{instance="a"}', '0+60x60'),
      silent: one('podwire_leases_unsettled_age_seconds{instance="a"}', '200x60'),
    },
  },
  {
    name: 'PodwireSpoolPending',
    severity: 'warning',
    for: '10m',
    expression: 'max by (instance) (podwire_plugin_spool_depth) > 0',
    summary: '{{ $value }} spooled DELs on {{ $labels.instance }} are not executed',
    meaning: 'Their pods are deleted, but keep their interfaces and addresses. The plugin repeats the DELs.',
    action: 'The log of podwire-node has the reason (`DEL failed`, `spool: …`).',
    example: {
      fires: one('podwire_plugin_spool_depth{instance="a"}', '1x60'),
      silent: one('podwire_plugin_spool_depth{instance="a"}', '9x5 0x60'),
    },
  },
  {
    name: 'PodwireReleasesVolatile',
    severity: 'critical',
    for: '1m',
    expression: 'max by (instance) (podwire_plugin_journal_volatile_entries) > 0',
    summary: 'A restart of podwire-node on {{ $labels.instance }} would lose {{ $value }} pending releases',
    meaning:
      'The state directory is full or read-only. After a restart the addresses leak until an audit repairs them.',
    action: 'Make room on the disk, or remount it.',
    example: {
      fires: one('podwire_plugin_journal_volatile_entries{instance="a"}', '0x5 2x60'),
      silent: one('podwire_plugin_journal_volatile_entries{instance="a"}', '0x60'),
    },
  },
  {
    name: 'PodwireJournalUnreadable',
    severity: 'warning',
    for: '5m',
    expression: 'max by (instance) (podwire_plugin_journal_unreadable_entries) > 0',
    summary: '{{ $value }} entries of the journal on {{ $labels.instance }} cannot be read',
    meaning: 'The entries are damaged, or of a later release; their addresses are not released.',
    action: '`podwirectl journal` lists them, `podwirectl gc` releases what no pod uses.',
    example: {
      fires: one('podwire_plugin_journal_unreadable_entries{instance="a"}', '1x60'),
      silent: one('podwire_plugin_journal_unreadable_entries{instance="a"}', '0x60'),
    },
  },
  {
    name: 'PodwireFileDescriptorsExhausted',
    severity: 'warning',
    for: '0m',
    expression: 'sum by (instance) (increase(podwire_plugin_calls_refused_total[10m])) > 0',
    summary: 'podwire-node on {{ $labels.instance }} has no file descriptors left',
    meaning: 'Commands are refused, and the kubelet tries again.',
    action: 'Raise the limit (`LimitNOFILE`); inspect `ls -l /proc/PID/fd`.',
    example: {
      fires: one('podwire_plugin_calls_refused_total{instance="a"}', '0x5 1x60'),
      silent: one('podwire_plugin_calls_refused_total{instance="a"}', '0x60'),
    },
  },
  {
    name: 'PodwirePoolFull',
    severity: 'critical',
    for: '1m',
    expression: 'max by (ippool) (podwire_ipam_ippool_available) == 0',
    summary: 'Pool {{ $labels.ippool }} has no free address',
    meaning: 'Pods that need an address of the pool do not start.',
    action:
      'Add a pool (`podwirectl create ippool NAME cidr=CIDR`). `podwirectl audit` lists addresses that nothing uses.',
    example: { fires: pool('5-1x5 0x60'), silent: pool('5x60') },
  },
  {
    name: 'PodwirePoolNearlyFull',
    severity: 'warning',
    for: '5m',
    expression: 'max by (ippool) (podwire_ipam_ippool_available) < 0.1 * max by (ippool) (podwire_ipam_ippool_size)',
    summary: 'Pool {{ $labels.ippool }} has {{ $value }} free addresses, less than a tenth',
    meaning:
      'Soon pods that need an address of the pool do not start; nodes with more than their share are refused first.',
    action: 'Add a pool, or see what uses the addresses: `podwirectl ipam show`.',
    example: { fires: pool('20x60'), silent: pool('100x60') },
  },
  {
    name: 'PodwirePoolExhaustion',
    severity: 'warning',
    for: '15m',
    expression: 'max by (ippool) (predict_linear(podwire_ipam_ippool_available[1h], 4 * 3600)) < 0',
    summary: 'Pool {{ $labels.ippool }} is full within 4 hours, at the rate of the last hour',
    meaning: 'The number of pods grows faster than usual.',
    action: 'The dashboard “IPAM” shows when. Add a pool, or stop what creates the pods.',
    example: { fires: pool('250-1x90'), silent: pool('250x90') },
  },
  {
    name: 'PodwireAddressesLeaked',
    severity: 'warning',
    for: '30m',
    expression:
      'sum by (kind) (max by (kind, severity) (podwire_ipam_audit_findings{severity="warning",kind!=""})) > 0',
    summary: '{{ $value }} audit findings: {{ $labels.kind }}',
    meaning: 'Something is held without use, such as an address of a pod that no longer exists.',
    action:
      '`podwire_ipam_audit_finding` and `podwirectl audit` name the address and the pod. `podwirectl audit --repair` makes the safe repairs.',
    example: {
      fires: one('podwire_ipam_audit_findings{instance="a",kind="allocationUnused",severity="warning"}', '3x60'),
      silent: one('podwire_ipam_audit_findings{instance="a",kind="",severity="warning"}', '0x60'),
    },
  },
  {
    name: 'PodwireDatastoreFaulty',
    severity: 'critical',
    for: '0m',
    expression: 'sum by (kind) (max by (kind, severity) (podwire_ipam_audit_findings{severity="error",kind!=""})) > 0',
    summary: '{{ $value }} audit findings: {{ $labels.kind }}',
    meaning: 'An address is or may be allocated twice, or a record is unreadable.',
    action: '`podwirectl audit` explains each finding and its repair.',
    example: {
      fires: one('podwire_ipam_audit_findings{instance="a",kind="blocksOverlap",severity="error"}', '0x5 1x60'),
      silent: one('podwire_ipam_audit_findings{instance="a",kind="",severity="error"}', '0x60'),
    },
  },
  {
    name: 'PodwireAddressConflict',
    severity: 'critical',
    for: '2m',
    expression: 'max by (node) (podwire_ipam_nodes_conflicts) > 0',
    summary: '{{ $value }} addresses of pods on {{ $labels.node }} are allocated to other pods',
    meaning: 'Two pods may have one address: packets reach one of them.',
    action: '`podwirectl audit --kind address-conflict` names both pods. Delete one of them; it gets another address.',
    example: {
      fires: one('podwire_ipam_nodes_conflicts{instance="a",node="n1"}', '_x5 1x60'),
      silent: one('podwire_ipam_nodes_conflicts{instance="a",node="n1"}', '0x60'),
    },
  },
  {
    name: 'PodwireNodesUnreported',
    severity: 'warning',
    for: '10m',
    expression: 'max(podwire_ipam_nodes_unreported) > 0',
    summary: '{{ $value }} nodes run and do not report what they hold',
    meaning:
      'Leaked and conflicting addresses of these nodes are not found. After a restore of the datastore their blocks serve no other node.',
    action:
      '`podwirectl audit --kind node-unreported` names the nodes; the log of podwire-node there has the reason. Restart it.',
    example: {
      fires: one('podwire_ipam_nodes_unreported{instance="a"}', '0x5 1x60'),
      silent: one('podwire_ipam_nodes_unreported{instance="a"}', '0x5 1x5 0x60'),
    },
  },
  {
    name: 'PodwireDatastoreSlow',
    severity: 'warning',
    for: '10m',
    expression:
      'histogram_quantile(0.99, sum by (le) (rate(podwire_store_duration_seconds_bucket{operation="commit"}[10m]))) > 0.5',
    summary: 'One datastore transaction in a hundred takes more than {{ $value | humanizeDuration }}',
    meaning: 'Every ADD and DEL waits for it.',
    action:
      'etcd: check its disk (`etcd_disk_wal_fsync_duration_seconds`) and its network. Embedded store: check the disk.',
    example: { fires: storeBuckets('0+10x90', '0+5x90'), silent: storeBuckets('0+10x90', '0+10x90') },
  },
  {
    name: 'PodwireRequestsRefused',
    severity: 'warning',
    for: '0m',
    expression: 'sum by (role, reason) (increase(podwire_rpc_requests_refused_total[10m])) > 0',
    summary: 'podwire-ipam refuses requests of a {{ $labels.role }}: {{ $labels.reason }}',
    meaning:
      'One caller sends more than its share, or (identity) shows no valid certificate or token. Other callers are served.',
    action:
      'The log of podwire-ipam names the caller, or its address if its certificate is expired, foreign or revoked (`podwirectl get revokedcertificates`). Cut off a hostile caller with `podwirectl certificates revoke FILE`, or delete its Node.',
    example: {
      fires: one('podwire_rpc_requests_refused_total{instance="a",role="node",reason="requests"}', '0x5 3x60'),
      silent: one('podwire_rpc_requests_refused_total{instance="a",role="node",reason="requests"}', '3x60'),
    },
  },
  {
    name: 'PodwireUpkeepFailing',
    severity: 'warning',
    for: '15m',
    expression: 'sum by (task) (increase(podwire_ipam_upkeep_failures_total[15m])) > 1',
    summary: 'task {{ $labels.task }} of podwire-ipam fails again and again',
    meaning: 'Background work is not done: interrupted deletions, expired history, garbage.',
    action: 'The log of podwire-ipam has the reason.',
    example: {
      fires: one('podwire_ipam_upkeep_failures_total{instance="a",task="finish-pool-deletions"}', '0+1x60'),
      silent: one('podwire_ipam_upkeep_failures_total{instance="a",task="finish-pool-deletions"}', '0x5 1x60'),
    },
  },
  {
    name: 'PodwireClocksDiffer',
    severity: 'warning',
    for: '0m',
    expression: 'sum(increase(podwire_ipam_clocks_differ_total[15m])) > 0',
    summary: 'The clocks of replicas of podwire-ipam differ',
    meaning: 'Cool-downs end early, and the history has wrong times.',
    action: 'Synchronize the clocks of the machines that run podwire-ipam.',
    example: {
      fires: one('podwire_ipam_clocks_differ_total{instance="a"}', '0x5 1x60'),
      silent: one('podwire_ipam_clocks_differ_total{instance="a"}', '0x60'),
    },
  },
  {
    name: 'PodwireIpamDisconnected',
    severity: 'warning',
    for: '5m',
    expression: 'min by (instance) (podwire_dataplane_ipam_connected) == 0',
    summary: 'podwire-node on {{ $labels.instance }} does not receive changes of the cluster',
    meaning: 'Routes to new blocks of other nodes are missing. Existing pods are not affected.',
    action: 'Check podwire-ipam, then the network between the node and it.',
    example: {
      fires: one('podwire_dataplane_ipam_connected{instance="a"}', '1x5 0x60'),
      silent: one('podwire_dataplane_ipam_connected{instance="a"}', '1x5 0x2 1x60'),
    },
  },
  {
    name: 'PodwireRoutesMissing',
    severity: 'critical',
    for: '5m',
    expression:
      'max by (instance) (podwire_dataplane_routes{state="wanted"}) - max by (instance) (podwire_dataplane_routes{state="present"}) > 0',
    summary: '{{ $value }} routes are missing on {{ $labels.instance }}',
    meaning: 'Pods of the node do not reach some pods of other nodes.',
    action: '`podwirectl node status` on the node names the routes and the reason.',
    example: { fires: routes('8x60'), silent: routes('10x60') },
  },
  {
    name: 'PodwireCondition',
    severity: 'warning',
    for: '10m',
    expression: 'max by (instance, reason) (podwire_dataplane_conditions) > 0',
    summary: '{{ $labels.instance }} has the condition {{ $labels.reason }}',
    meaning: 'A part of the cluster’s state cannot be applied on the node.',
    action: '`podwirectl node status` on the node explains it.',
    example: {
      fires: one('podwire_dataplane_conditions{instance="a",reason="NotOnLink"}', '1x60'),
      silent: one('podwire_dataplane_conditions{instance="a",reason="NotOnLink"}', '1x3 stale'),
    },
  },
  {
    name: 'PodwireForwardDropped',
    severity: 'critical',
    for: '2m',
    expression: 'max by (instance) (podwire_dataplane_conditions{reason="ForwardDropped"}) > 0',
    summary: 'A firewall on {{ $labels.instance }} drops the packets of pods',
    meaning: 'Pods of the node do not reach other pods, though the kubelet’s probes pass.',
    action: '`podwirectl node ready` on the node names the chain and the command that lets the packets pass.',
    example: {
      fires: one('podwire_dataplane_conditions{instance="a",reason="ForwardDropped"}', '1x60'),
      silent: one('podwire_dataplane_conditions{instance="a",reason="NotOnLink"}', '1x60'),
    },
  },
  {
    name: 'PodwireTableChanged',
    severity: 'warning',
    for: '0m',
    expression: 'sum by (instance, table) (increase(podwire_dataplane_nft_writes_total{reason="drift"}[15m])) > 3',
    summary: 'Another program repeatedly changes the nftables table {{ $labels.table }} on {{ $labels.instance }}',
    meaning: 'Until each repair, pods lack NAT, host ports or protection, for podwire_dataplane_nft_gap_seconds.',
    action: 'Find the program with `nft monitor`, such as a firewall that runs `flush ruleset`, and stop it.',
    example: {
      fires: one('podwire_dataplane_nft_writes_total{instance="a",table="inet podwire",reason="drift"}', '0+1x60'),
      silent: one('podwire_dataplane_nft_writes_total{instance="a",table="inet podwire",reason="drift"}', '0x5 2x60'),
    },
  },
  {
    name: 'PodwireDrift',
    severity: 'warning',
    for: '15m',
    expression: 'sum by (instance, object) (increase(podwire_dataplane_node_drift_total[15m])) > 3',
    summary: 'Another program keeps changing Podwire’s {{ $labels.object }} objects on {{ $labels.instance }}',
    meaning: 'Podwire repairs them at once; until then packets may be lost.',
    action: 'The log of podwire-node names the objects. Stop the other program from managing them.',
    example: {
      fires: one('podwire_dataplane_node_drift_total{instance="a",object="route"}', '0+1x60'),
      silent: one('podwire_dataplane_node_drift_total{instance="a",object="route"}', '0x5 2x60'),
    },
  },
  {
    name: 'PodwireRecordsRefused',
    severity: 'critical',
    for: '0m',
    expression: 'sum by (instance) (increase(podwire_dataplane_attachments_records_refused_total[10m])) > 0',
    summary: 'podwire-node on {{ $labels.instance }} cannot store records of attachments',
    meaning: 'ADD and DEL fail there.',
    action: 'Make room on the disk of the state directory, or remount it.',
    example: {
      fires: one('podwire_dataplane_attachments_records_refused_total{instance="a"}', '0x5 1x60'),
      silent: one('podwire_dataplane_attachments_records_refused_total{instance="a"}', '0x60'),
    },
  },
  {
    name: 'PodwirePodsLost',
    severity: 'warning',
    for: '0m',
    expression: 'sum by (instance) (increase(podwire_dataplane_attachments_dead_total[1h])) > 5',
    summary: 'The container runtime on {{ $labels.instance }} loses pods without a DEL',
    meaning: 'Something kills sandboxes. Podwire releases their addresses within a minute.',
    action: 'Read the log of containerd or CRI-O.',
    example: {
      fires: one('podwire_dataplane_attachments_dead_total{instance="a"}', '0+1x60'),
      silent: one('podwire_dataplane_attachments_dead_total{instance="a"}', '0x5 2x60'),
    },
  },
  {
    name: 'PodwireBgpSessionDown',
    severity: 'warning',
    for: '5m',
    expression: 'max by (instance) (podwire_dataplane_bird_sessions{established="false"}) > 0',
    summary: '{{ $value }} BGP sessions of {{ $labels.instance }} are not established',
    meaning: 'Routes through these sessions are missing.',
    action: '`podwirectl node status` lists the sessions.',
    example: {
      fires: one('podwire_dataplane_bird_sessions{instance="a",established="false"}', '1x60'),
      silent: one('podwire_dataplane_bird_sessions{instance="a",established="true"}', '4x60'),
    },
  },
  {
    name: 'PodwireSpansLost',
    severity: 'warning',
    for: '15m',
    expression:
      'sum by (job, instance) (increase(otel_sdk_processor_span_processed_total{error_type!=""}[10m])) > 0 and on (job, instance) podwire_build_info',
    summary: '{{ $labels.job }} on {{ $labels.instance }} loses spans',
    meaning: 'The collector is down, slow or refuses spans. No pod is affected.',
    action: 'Check the collector, and `OTEL_EXPORTER_OTLP_ENDPOINT`.',
    example: {
      fires: lostSpans('0+5x90'),
      silent: lostSpans('0x5 5x90'),
    },
  },
  {
    name: 'PodwireEventLoopBusy',
    severity: 'warning',
    for: '10m',
    expression: 'nodejs_eventloop_delay_p99_seconds > 0.5 and on (job, instance) podwire_build_info',
    summary: '{{ $labels.job }} on {{ $labels.instance }} answers {{ $value | humanizeDuration }} late',
    meaning: 'The process has too little CPU.',
    action: 'Raise its CPU request, or find what else uses the node.',
    example: { fires: eventLoop('0.8x60'), silent: eventLoop('0.01x60') },
  },
];
