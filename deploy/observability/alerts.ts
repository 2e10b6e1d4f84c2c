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
}

/** Properties of most alerts. */
const USUAL = { severity: 'warning', for: '5m' } as const;

type Definition = Omit<Alert, keyof typeof USUAL> & Partial<Alert>;

/** `instance` is the node, or the scraped address. */
const DEFINITIONS: readonly Definition[] = [
  {
    name: 'PodwireAddBlocked',
    severity: 'critical',
    expression: 'max by (instance, reason) (podwire_plugin_add_blocked) == 1',
    summary: 'No pod can start on {{ $labels.instance }}: {{ $labels.reason }}',
    meaning: 'New pods of the node stay in ContainerCreating. Running pods are not affected.',
    action:
      'Reason addresses: `podwirectl explain NODE` says why no pool serves the node. ipam: podwire-ipam or its datastore does not answer (PodwireNotServing). dataplane: `podwirectl node status`. ipam-plugin: the delegated IPAM plugin fails. journal: the state directory cannot be written.',
  },
  {
    name: 'PodwireNodeNotReady',
    severity: 'critical',
    expression: 'min by (instance) (podwire_plugin_ready) == 0',
    summary: 'STATUS fails on {{ $labels.instance }}: the node is not Ready',
    meaning: 'The kubelet reports NetworkReady=false. Kubernetes schedules no pods there and evicts running pods.',
    action: 'Run `podwirectl node ready` on the node: it names the reason.',
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
  },
  {
    name: 'PodwireIpamAbsent',
    severity: 'critical',
    expression: 'absent(podwire_store_conflicts_total)',
    summary: 'No podwire-ipam reports metrics',
    meaning: 'podwire-ipam is down, and pods start while leases last; or it is not scraped.',
    action: 'Check the pods of podwire-ipam in `podwire-system`, then whether Prometheus scrapes port 9094.',
  },
  {
    name: 'PodwireNoLeader',
    severity: 'critical',
    for: '1m',
    expression: 'max(podwire_ipam_leader) == 0',
    summary: 'No podwire-ipam holds the Lease',
    meaning: 'Pods start while leases last.',
    action: '`kubectl -n podwire-system get lease podwire-ipam` names the former leader; see the logs of podwire-ipam.',
  },
  {
    name: 'PodwireApiServerRefuses',
    expression:
      'sum by (code) (increase(podwire_ipam_kubernetes_requests_total{code=~"401|403|429|5..|none"}[5m])) > 5',
    summary: 'The API server answers podwire-ipam with {{ $labels.code }}',
    meaning: 'Store kubernetes: pods start while leases last. Other stores: deleted pods keep their addresses.',
    action:
      '401, 403: apply the role of podwire-ipam. 429: see the FlowSchema `podwire-ipam`. 5xx, none: the API server fails.',
  },
  {
    name: 'PodwireWatchTooOld',
    for: '2m',
    expression: 'max by (instance) (podwire_ipam_kubernetes_watch_age_seconds) > 200',
    summary: 'podwire-ipam on {{ $labels.instance }} has not heard of a resource for {{ $value | humanizeDuration }}',
    meaning: 'Changes of pools, nodes and blocks by other programs are seen late.',
    action: 'The log of podwire-ipam names the watch.',
  },
  {
    name: 'PodwireAddFailing',
    expression: 'sum by (instance, reason) (increase(podwire_plugin_commands_failed_total{command="ADD"}[10m])) > 0',
    summary: 'ADDs fail on {{ $labels.instance }}: {{ $labels.reason }}',
    meaning: 'Pods of the node start late or not at all; the kubelet tries again.',
    action: 'services/shared/failure/README.md explains each failure. `podwirectl latency` lists the failed commands.',
  },
  {
    name: 'PodwireAddSlow',
    for: '10m',
    expression:
      'histogram_quantile(0.99, sum by (le) (rate(podwire_plugin_command_duration_seconds_bucket{command="ADD",result="success"}[10m]))) > 2',
    summary: 'One ADD in a hundred takes more than {{ $value | humanizeDuration }}',
    meaning: 'Pods start slowly.',
    action:
      'The dashboard “Pod setup latency” shows the phase. datastore: etcd or the disk is slow. kernel, lock: the node is overloaded. shim: podwire-node was down or had no CPU. rpc: podwire-ipam restarted, or the network is slow.',
  },
  {
    name: 'PodwireCommandsCutOff',
    for: '0m',
    expression:
      'sum by (instance, command) (increase(podwire_plugin_commands_cut_off_total{reason="deadline"}[10m])) > 0',
    summary: '{{ $labels.command }} exceeds its deadline on {{ $labels.instance }}',
    meaning: 'A service hangs.',
    action: '`podwirectl latency` shows the phase; read the log of that service.',
  },
  {
    name: 'PodwireReleasesPending',
    expression: 'max by (instance) (podwire_plugin_journal_oldest_age_seconds) > 600',
    summary:
      'Addresses of deleted pods on {{ $labels.instance }} have not been released for {{ $value | humanizeDuration }}',
    meaning: 'The addresses cannot be used by other pods.',
    action: '`podwirectl journal` on the node lists them with the reason.',
  },
  {
    name: 'PodwireBindingsPending',
    expression: 'max by (instance) (podwire_leases_unsettled_age_seconds) > 300',
    summary: 'podwire-ipam does not know pods of {{ $labels.instance }} for {{ $value | humanizeDuration }}',
    meaning: 'Pods start while leases last. Addresses of deleted pods cannot be used by other pods.',
    action: 'Check podwire-ipam and its datastore; the log of podwire-node has the reason.',
  },
  {
    name: 'PodwireSpoolPending',
    for: '10m',
    expression: 'max by (instance) (podwire_plugin_spool_depth) > 0',
    summary: '{{ $value }} spooled DELs on {{ $labels.instance }} are not executed',
    meaning: 'Deleted pods keep their interfaces and addresses. The plugin repeats the DELs.',
    action: 'The log of podwire-node has the reason (`DEL failed`, `spool: …`).',
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
  },
  {
    name: 'PodwireJournalUnreadable',
    expression: 'max by (instance) (podwire_plugin_journal_unreadable_entries) > 0',
    summary: '{{ $value }} entries of the journal on {{ $labels.instance }} cannot be read',
    meaning: 'The entries are damaged, or of a later release; their addresses are not released.',
    action: '`podwirectl journal` lists them, `podwirectl gc` releases what no pod uses.',
  },
  {
    name: 'PodwireFileDescriptorsExhausted',
    for: '0m',
    expression: 'sum by (instance) (increase(podwire_plugin_calls_refused_total[10m])) > 0',
    summary: 'podwire-node on {{ $labels.instance }} has no file descriptors left',
    meaning: 'Commands are refused, and the kubelet tries again.',
    action: 'Raise the limit (`LimitNOFILE`); inspect `ls -l /proc/PID/fd`.',
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
  },
  {
    name: 'PodwirePoolNearlyFull',
    expression: 'max by (ippool) (podwire_ipam_ippool_available) < 0.1 * max by (ippool) (podwire_ipam_ippool_size)',
    summary: 'Pool {{ $labels.ippool }} has {{ $value }} free addresses, less than a tenth',
    meaning: 'Soon pods of the pool do not start, first on nodes with more than their share.',
    action: 'Add a pool, or see what uses the addresses: `podwirectl ipam show`.',
  },
  {
    name: 'PodwirePoolExhaustion',
    for: '15m',
    expression: 'max by (ippool) (predict_linear(podwire_ipam_ippool_available[1h], 4 * 3600)) < 0',
    summary: 'Pool {{ $labels.ippool }} is full within 4 hours, at the rate of the last hour',
    meaning: 'The number of pods grows faster than usual.',
    action: 'The dashboard “IPAM” shows when. Add a pool, or stop what creates the pods.',
  },
  {
    name: 'PodwireAddressesLeaked',
    for: '30m',
    expression:
      'sum by (kind) (max by (kind, severity) (podwire_ipam_audit_findings{severity="warning",kind!=""})) > 0',
    summary: '{{ $value }} audit findings: {{ $labels.kind }}',
    meaning: 'Something is held without use, such as an address of a deleted pod.',
    action: '`podwirectl audit` names the address and the pod; with `--repair` it makes the safe repairs.',
  },
  {
    name: 'PodwireDatastoreFaulty',
    severity: 'critical',
    for: '0m',
    expression: 'sum by (kind) (max by (kind, severity) (podwire_ipam_audit_findings{severity="error",kind!=""})) > 0',
    summary: '{{ $value }} audit findings: {{ $labels.kind }}',
    meaning: 'An address is or may be allocated twice, or a record is unreadable.',
    action: '`podwirectl audit` explains each finding and its repair.',
  },
  {
    name: 'PodwireAddressConflict',
    severity: 'critical',
    for: '2m',
    expression: 'max by (node) (podwire_ipam_nodes_conflicts) > 0',
    summary: '{{ $value }} addresses of pods on {{ $labels.node }} are allocated to other pods',
    meaning: 'Two pods may have one address: packets reach one of them.',
    action: '`podwirectl audit --kind address-conflict` names both pods. Delete one of them.',
  },
  {
    name: 'PodwireNodesUnreported',
    for: '10m',
    expression: 'max(podwire_ipam_nodes_unreported) > 0',
    summary: '{{ $value }} nodes run and do not report what they hold',
    meaning: 'Their leaked and conflicting addresses are not found. After a restore their blocks serve no other node.',
    action:
      '`podwirectl audit --kind node-unreported` names the nodes. Read the log of podwire-node there, and restart it.',
  },
  {
    name: 'PodwireDatastoreSlow',
    for: '10m',
    expression:
      'histogram_quantile(0.99, sum by (le) (rate(podwire_store_duration_seconds_bucket{operation="commit"}[10m]))) > 0.5',
    summary: 'One datastore transaction in a hundred takes more than {{ $value | humanizeDuration }}',
    meaning: 'Every ADD and DEL waits for it.',
    action:
      'etcd: check its disk (`etcd_disk_wal_fsync_duration_seconds`) and its network. Embedded store: check the disk.',
  },
  {
    name: 'PodwireRequestsRefused',
    for: '0m',
    expression: 'sum by (role, reason) (increase(podwire_rpc_requests_refused_total[10m])) > 0',
    summary: 'podwire-ipam refuses requests of a {{ $labels.role }}: {{ $labels.reason }}',
    meaning: 'One caller exceeds its share, or (identity) has no valid certificate or token. Other callers are served.',
    action:
      'The log of podwire-ipam names the caller, or its address if the certificate is invalid. Cut off a hostile caller with `podwirectl certificates revoke FILE`, or delete its Node.',
  },
  {
    name: 'PodwireUpkeepFailing',
    for: '15m',
    expression: 'sum by (task) (increase(podwire_ipam_upkeep_failures_total[15m])) > 1',
    summary: 'task {{ $labels.task }} of podwire-ipam fails again and again',
    meaning: 'Interrupted deletions, expired history and garbage are left.',
    action: 'The log of podwire-ipam has the reason.',
  },
  {
    name: 'PodwireClocksDiffer',
    for: '0m',
    expression: 'sum(increase(podwire_ipam_clocks_differ_total[15m])) > 0',
    summary: 'The clocks of replicas of podwire-ipam differ',
    meaning: 'Cool-downs end early, and the history has wrong times.',
    action: 'Synchronize the clocks of the machines that run podwire-ipam.',
  },
  {
    name: 'PodwireIpamDisconnected',
    expression: 'min by (instance) (podwire_dataplane_ipam_connected) == 0',
    summary: 'podwire-node on {{ $labels.instance }} does not receive changes of the cluster',
    meaning: 'Routes to new blocks of other nodes are missing.',
    action: 'Check podwire-ipam, then the network between the node and it.',
  },
  {
    name: 'PodwireRoutesMissing',
    severity: 'critical',
    expression:
      'max by (instance) (podwire_dataplane_routes{state="wanted"}) - max by (instance) (podwire_dataplane_routes{state="present"}) > 0',
    summary: '{{ $value }} routes are missing on {{ $labels.instance }}',
    meaning: 'Pods of the node do not reach some pods of other nodes.',
    action: '`podwirectl node status` on the node names the routes and the reason.',
  },
  {
    name: 'PodwireCondition',
    for: '10m',
    expression: 'max by (instance, reason) (podwire_dataplane_conditions) > 0',
    summary: '{{ $labels.instance }} has the condition {{ $labels.reason }}',
    meaning: 'A part of the cluster’s state cannot be applied on the node.',
    action: '`podwirectl node status` on the node explains it.',
  },
  {
    name: 'PodwireForwardDropped',
    severity: 'critical',
    for: '2m',
    expression: 'max by (instance) (podwire_dataplane_conditions{reason="ForwardDropped"}) > 0',
    summary: 'A firewall on {{ $labels.instance }} drops the packets of pods',
    meaning: 'Pods of the node do not reach other pods, though the kubelet’s probes pass.',
    action: '`podwirectl node ready` on the node names the chain and the command that lets the packets pass.',
  },
  {
    name: 'PodwirePoliciesNotEnforced',
    severity: 'critical',
    expression:
      'max by (instance, reason) (podwire_dataplane_conditions{reason=~"PoliciesNotEnforced|PodPolicyUnknown"}) > 0',
    summary: '{{ $labels.instance }} cannot enforce network policies: {{ $labels.reason }}',
    meaning: 'Pods are isolated or refused, also where policies allow their connections.',
    action:
      '`podwirectl node status` on the node names the pods or the refused policies. PodPolicyUnknown: it does not reach podwire-ipam.',
  },
  {
    name: 'PodwirePoliciesBehind',
    for: '1m',
    expression: 'max(podwire_ipam_policies_nodes{state="behind"}) > 0',
    summary: '{{ $value }} nodes do not put changes of network policies in force',
    meaning: 'Connections that a new policy forbids may pass there.',
    action: '`podwirectl policy status` names the nodes; the log of podwire-node there has the reason.',
  },
  {
    name: 'PodwireTableChanged',
    for: '0m',
    expression: 'sum by (instance, table) (increase(podwire_dataplane_nft_writes_total{reason="drift"}[15m])) > 3',
    summary: 'Another program repeatedly changes the nftables table {{ $labels.table }} on {{ $labels.instance }}',
    meaning: 'Until each repair, pods lack NAT, host ports or protection, for podwire_dataplane_nft_gap_seconds.',
    action: 'Find the program with `nft monitor`, such as a firewall that runs `flush ruleset`, and stop it.',
  },
  {
    name: 'PodwireDrift',
    for: '15m',
    expression: 'sum by (instance, object) (increase(podwire_dataplane_node_drift_total[15m])) > 3',
    summary: 'Another program keeps changing Podwire’s {{ $labels.object }} objects on {{ $labels.instance }}',
    meaning: 'Podwire repairs them at once; until then packets may be lost.',
    action: 'The log of podwire-node names the objects. Stop the other program from managing them.',
  },
  {
    name: 'PodwireRecordsRefused',
    severity: 'critical',
    for: '0m',
    expression: 'sum by (instance) (increase(podwire_dataplane_attachments_records_refused_total[10m])) > 0',
    summary: 'podwire-node on {{ $labels.instance }} cannot store records of attachments',
    meaning: 'ADD and DEL fail there.',
    action: 'Make room on the disk of the state directory, or remount it.',
  },
  {
    name: 'PodwirePodsLost',
    for: '0m',
    expression: 'sum by (instance) (increase(podwire_dataplane_attachments_dead_total[1h])) > 5',
    summary: 'The container runtime on {{ $labels.instance }} loses pods without a DEL',
    meaning: 'Something kills sandboxes. Podwire releases their addresses within a minute.',
    action: 'Read the log of containerd or CRI-O.',
  },
  {
    name: 'PodwireBgpSessionDown',
    expression: 'max by (instance) (podwire_dataplane_bird_sessions{established="false"}) > 0',
    summary: '{{ $value }} BGP sessions of {{ $labels.instance }} are not established',
    meaning: 'Routes through these sessions are missing.',
    action: '`podwirectl node status` lists the sessions.',
  },
  {
    name: 'PodwireSpansLost',
    for: '15m',
    expression:
      'sum by (job, instance) (increase(otel_sdk_processor_span_processed_total{error_type!=""}[10m])) > 0 and on (job, instance) podwire_build_info',
    summary: '{{ $labels.job }} on {{ $labels.instance }} loses spans',
    meaning: 'The collector is down, slow or refuses spans. No pod is affected.',
    action: 'Check the collector, and `OTEL_EXPORTER_OTLP_ENDPOINT`.',
  },
  {
    name: 'PodwireEventLoopBusy',
    for: '10m',
    expression: 'nodejs_eventloop_delay_p99_seconds > 0.5 and on (job, instance) podwire_build_info',
    summary: '{{ $labels.job }} on {{ $labels.instance }} answers {{ $value | humanizeDuration }} late',
    meaning: 'The process has too little CPU.',
    action: 'Raise its CPU request, or find what else uses the node.',
  },
];

export const ALERTS: readonly Alert[] = DEFINITIONS.map((definition) => ({ ...USUAL, ...definition }));
