import { stringify } from 'yaml';

/** Values of a series, in promtool's notation: `0+1x60` is 0, 1, 2 … once a minute. */
interface Series {
  readonly series: string;
  readonly values: string;
}

/** One sample a minute. An alert fires for the first within 90 minutes and never for the second. */
export interface Example {
  readonly fires: readonly Series[];
  readonly silent: readonly Series[];
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

/** An example of each alert, by its name. */
export const EXAMPLES: Readonly<Record<string, Example>> = {
  PodwireAddBlocked: {
    fires: one('podwire_plugin_add_blocked{instance="a",reason="ipam"}', '0x5 1x60'),
    silent: one('podwire_plugin_add_blocked{instance="a",reason="ipam"}', '0x5 1x2 0x60'),
  },
  PodwireNodeNotReady: {
    fires: one('podwire_plugin_ready{instance="a"}', '1x5 0x60'),
    silent: one('podwire_plugin_ready{instance="a"}', '1x5 0x3 1x60'),
  },
  PodwireNotServing: {
    fires: one('podwire_ready{instance="a",job="podwire-ipam"}', '0x60'),
    silent: one('podwire_ready{instance="a",job="podwire-ipam"}', '0x1 1x60'),
  },
  PodwireIpamAbsent: {
    fires: one('podwire_build_info{instance="a"}', '1x60'),
    silent: one('podwire_store_conflicts_total{instance="a"}', '0x90'),
  },
  PodwireNoLeader: {
    fires: one('podwire_ipam_leader{instance="a"}', '1x5 0x60'),
    silent: [
      ...one('podwire_ipam_leader{instance="a"}', '1x5 0x60'),
      ...one('podwire_ipam_leader{instance="b"}', '0x5 1x60'),
    ],
  },
  PodwireApiServerRefuses: {
    fires: one(
      'podwire_ipam_kubernetes_requests_total{instance="a",verb="update",kind="ipamblocks",code="429"}',
      '0+3x60',
    ),
    silent: one(
      'podwire_ipam_kubernetes_requests_total{instance="a",verb="update",kind="ipamblocks",code="409"}',
      '0+9x60',
    ),
  },
  PodwireWatchTooOld: {
    fires: one('podwire_ipam_kubernetes_watch_age_seconds{instance="a"}', '0+60x60'),
    silent: one('podwire_ipam_kubernetes_watch_age_seconds{instance="a"}', '0x5 180x60'),
  },
  PodwireAddFailing: {
    fires: one('podwire_plugin_commands_failed_total{instance="a",command="ADD",reason="UNREACHABLE"}', '0x5 1+1x60'),
    silent: one('podwire_plugin_commands_failed_total{instance="a",command="DEL",reason="UNREACHABLE"}', '0+1x60'),
  },
  PodwireAddSlow: { fires: commandBuckets('0+10x90', '0+5x90'), silent: commandBuckets('0+10x90', '0+10x90') },
  PodwireCommandsCutOff: {
    fires: one('podwire_plugin_commands_cut_off_total{instance="a",command="ADD",reason="deadline"}', '0x5 1x60'),
    silent: one('podwire_plugin_commands_cut_off_total{instance="a",command="ADD",reason="superseded"}', '0+1x60'),
  },
  PodwireReleasesPending: {
    fires: one('podwire_plugin_journal_oldest_age_seconds{instance="a"}', '0+60x60'),
    silent: one('podwire_plugin_journal_oldest_age_seconds{instance="a"}', '500x60'),
  },
  PodwireBindingsPending: {
    fires: one('podwire_leases_unsettled_age_seconds{instance="a"}', '0+60x60'),
    silent: one('podwire_leases_unsettled_age_seconds{instance="a"}', '200x60'),
  },
  PodwireSpoolPending: {
    fires: one('podwire_plugin_spool_depth{instance="a"}', '1x60'),
    silent: one('podwire_plugin_spool_depth{instance="a"}', '9x5 0x60'),
  },
  PodwireReleasesVolatile: {
    fires: one('podwire_plugin_journal_volatile_entries{instance="a"}', '0x5 2x60'),
    silent: one('podwire_plugin_journal_volatile_entries{instance="a"}', '0x60'),
  },
  PodwireJournalUnreadable: {
    fires: one('podwire_plugin_journal_unreadable_entries{instance="a"}', '1x60'),
    silent: one('podwire_plugin_journal_unreadable_entries{instance="a"}', '0x60'),
  },
  PodwireFileDescriptorsExhausted: {
    fires: one('podwire_plugin_calls_refused_total{instance="a"}', '0x5 1x60'),
    silent: one('podwire_plugin_calls_refused_total{instance="a"}', '0x60'),
  },
  PodwirePoolFull: { fires: pool('5-1x5 0x60'), silent: pool('5x60') },
  PodwirePoolNearlyFull: { fires: pool('20x60'), silent: pool('100x60') },
  PodwirePoolExhaustion: { fires: pool('250-1x90'), silent: pool('250x90') },
  PodwireAddressesLeaked: {
    fires: one('podwire_ipam_audit_findings{instance="a",kind="allocationUnused",severity="warning"}', '3x60'),
    silent: one('podwire_ipam_audit_findings{instance="a",kind="",severity="warning"}', '0x60'),
  },
  PodwireDatastoreFaulty: {
    fires: one('podwire_ipam_audit_findings{instance="a",kind="blocksOverlap",severity="error"}', '0x5 1x60'),
    silent: one('podwire_ipam_audit_findings{instance="a",kind="",severity="error"}', '0x60'),
  },
  PodwireAddressConflict: {
    fires: one('podwire_ipam_nodes_conflicts{instance="a",node="n1"}', '_x5 1x60'),
    silent: one('podwire_ipam_nodes_conflicts{instance="a",node="n1"}', '0x60'),
  },
  PodwireNodesUnreported: {
    fires: one('podwire_ipam_nodes_unreported{instance="a"}', '0x5 1x60'),
    silent: one('podwire_ipam_nodes_unreported{instance="a"}', '0x5 1x5 0x60'),
  },
  PodwireDatastoreSlow: { fires: storeBuckets('0+10x90', '0+5x90'), silent: storeBuckets('0+10x90', '0+10x90') },
  PodwireRequestsRefused: {
    fires: one('podwire_rpc_requests_refused_total{instance="a",role="node",reason="requests"}', '0x5 3x60'),
    silent: one('podwire_rpc_requests_refused_total{instance="a",role="node",reason="requests"}', '3x60'),
  },
  PodwireUpkeepFailing: {
    fires: one('podwire_ipam_upkeep_failures_total{instance="a",task="finish-pool-deletions"}', '0+1x60'),
    silent: one('podwire_ipam_upkeep_failures_total{instance="a",task="finish-pool-deletions"}', '0x5 1x60'),
  },
  PodwireClocksDiffer: {
    fires: one('podwire_ipam_clocks_differ_total{instance="a"}', '0x5 1x60'),
    silent: one('podwire_ipam_clocks_differ_total{instance="a"}', '0x60'),
  },
  PodwireIpamDisconnected: {
    fires: one('podwire_dataplane_ipam_connected{instance="a"}', '1x5 0x60'),
    silent: one('podwire_dataplane_ipam_connected{instance="a"}', '1x5 0x2 1x60'),
  },
  PodwireRoutesMissing: { fires: routes('8x60'), silent: routes('10x60') },
  PodwireCondition: {
    fires: one('podwire_dataplane_conditions{instance="a",reason="NotOnLink"}', '1x60'),
    silent: one('podwire_dataplane_conditions{instance="a",reason="NotOnLink"}', '1x3 stale'),
  },
  PodwireForwardDropped: {
    fires: one('podwire_dataplane_conditions{instance="a",reason="ForwardDropped"}', '1x60'),
    silent: one('podwire_dataplane_conditions{instance="a",reason="NotOnLink"}', '1x60'),
  },
  PodwirePoliciesNotEnforced: {
    fires: one('podwire_dataplane_conditions{instance="a",reason="PodPolicyUnknown"}', '1x60'),
    silent: one('podwire_dataplane_conditions{instance="a",reason="PoliciesNotFollowed"}', '1x60'),
  },
  PodwirePoliciesBehind: {
    fires: one('podwire_ipam_policies_nodes{instance="a",state="behind"}', '2x60'),
    silent: one('podwire_ipam_policies_nodes{instance="a",state="following"}', '2x60'),
  },
  PodwireTableChanged: {
    fires: one('podwire_dataplane_nft_writes_total{instance="a",table="inet podwire",reason="drift"}', '0+1x60'),
    silent: one('podwire_dataplane_nft_writes_total{instance="a",table="inet podwire",reason="drift"}', '0x5 2x60'),
  },
  PodwireDrift: {
    fires: one('podwire_dataplane_node_drift_total{instance="a",object="route"}', '0+1x60'),
    silent: one('podwire_dataplane_node_drift_total{instance="a",object="route"}', '0x5 2x60'),
  },
  PodwireRecordsRefused: {
    fires: one('podwire_dataplane_attachments_records_refused_total{instance="a"}', '0x5 1x60'),
    silent: one('podwire_dataplane_attachments_records_refused_total{instance="a"}', '0x60'),
  },
  PodwirePodsLost: {
    fires: one('podwire_dataplane_attachments_dead_total{instance="a"}', '0+1x60'),
    silent: one('podwire_dataplane_attachments_dead_total{instance="a"}', '0x5 2x60'),
  },
  PodwireBgpSessionDown: {
    fires: one('podwire_dataplane_bird_sessions{instance="a",established="false"}', '1x60'),
    silent: one('podwire_dataplane_bird_sessions{instance="a",established="true"}', '4x60'),
  },
  PodwireSpansLost: {
    fires: lostSpans('0+5x90'),
    silent: lostSpans('0x5 5x90'),
  },
  PodwireEventLoopBusy: { fires: eventLoop('0.8x60'), silent: eventLoop('0.01x60') },
};

/** Minutes of an example. */
const EXAMPLE_MINUTES = 90;

/**
 * A test of each alert for `promtool test rules`: it fires in its first example, and never in the second.
 * @param rules - path of the rules
 */
export function ruleTests(rules: string, examples: Readonly<Record<string, Example>> = EXAMPLES): string {
  const tests = Object.entries(examples).flatMap(([name, example]) => [
    ruleTest(name, example, 'fires'),
    ruleTest(name, example, 'silent'),
  ]);
  return stringify({ rule_files: [rules], evaluation_interval: '1m', tests }, { lineWidth: 0 });
}

function ruleTest(name: string, example: Example, outcome: 'fires' | 'silent'): object {
  const firing = `ALERTS{alertname="${name}",alertstate="firing"}`;
  return {
    name: `${name} ${outcome}`,
    interval: '1m',
    input_series: example[outcome],
    promql_expr_test: [
      {
        expr: `count_over_time(count(${firing})[${EXAMPLE_MINUTES}m:1m]) > bool 0`,
        eval_time: `${EXAMPLE_MINUTES}m`,
        exp_samples: outcome === 'fires' ? [{ labels: '{}', value: 1 }] : [],
      },
    ],
  };
}
