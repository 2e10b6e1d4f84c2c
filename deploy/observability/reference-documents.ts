// METRICS.md, SPANS.md, and the conditions in RUNBOOK.md.
import { METRICS, metricOf, type MetricName } from '@podwire/shared/telemetry/metrics';
import { ATTRIBUTES, SPANS } from '@podwire/shared/telemetry/spans';

import { ALERTS, type Alert } from './alerts.js';
import { labelName, seriesName, seriesNames } from './series.js';

/** Sections of the document, by the beginning of a metric's name; the last one has the rest. */
const SECTIONS = [
  ['podwire-ipam', /^podwire\.(ipam|store)\./],
  ['podwire-node', /^podwire\.(plugin|dataplane|leases|inventory)\./],
  ['Every process', /^/],
] as const;

const METRICS_HEAD = `# Metrics

Generated from the catalog in \`services/shared/telemetry\` by \`npm run dashboards\`. Prometheus has these names, by
scraping and by OTLP. A name with \`_total\` is a counter. The other names are gauges, or histograms with \`_bucket\`,
\`_sum\` and \`_count\`. Times are in seconds. A counter begins with 0 at the start of its process, unless the table says
since when it exists; a histogram exists after its first value.

Counters of podwire-ipam are per replica. Its gauges describe the whole datastore: use \`max\`, not \`sum\`, over
replicas. Four gauges also have the names of Calico's kube-controllers: \`ipam_allocations_in_use\`,
\`ipam_allocations_borrowed\`, \`ipam_blocks\`, \`ipam_ippool_size\`. A process that exports spans also has the SDK's
\`otel_sdk_processor_span_*\`: exported, lost (label \`error_type\`) and waiting spans.
`;

/** A label with more values has only its first ones in the table. */
const LISTED_VALUES_COUNT = 12;
const FIRST_VALUES_COUNT = 3;

const NAMES = Object.keys(METRICS).filter((name): name is MetricName => name in METRICS);

/** The content of METRICS.md. */
export function metricsDocument(): string {
  const rest = new Set(NAMES);
  const sections = SECTIONS.map(([title, pattern]) => {
    const names = [...rest].filter((name) => pattern.test(name));
    for (const name of names) rest.delete(name);
    return `## ${title}\n\n${metricsTable(names)}`;
  });
  return [METRICS_HEAD, sharedLabelsList(), ...sections].join('\n');
}

function metricsTable(names: readonly MetricName[]): string {
  const row = (name: MetricName) => [`\`${seriesName(name)}\``, labels(name), about(name)];
  return table(['Name', 'Labels', 'Meaning'], names.map(row));
}

/** A label of so many metrics has its values above the tables. */
const SHARED_COUNT = 2;

const SHARED_LABELS = new Set(
  NAMES.flatMap(labelTexts).filter((text, _, all) => all.filter((each) => each === text).length >= SHARED_COUNT),
);

function sharedLabelsList(): string {
  const items = [...SHARED_LABELS].sort().map((text) => `- ${text}`);
  return `Labels of several metrics, unless a row says otherwise:\n\n${items.join('\n')}\n`;
}

/** Labels with their values: `family: ipv4, ipv6`. */
function labelTexts(name: MetricName): string[] {
  return Object.entries(metricOf(name).labels ?? {}).map(
    ([label, values]) => `\`${labelName(label)}\`: ${typeof values === 'string' ? values : listed(values)}`,
  );
}

function labels(name: MetricName): string {
  const texts = labelTexts(name).map((text) => (SHARED_LABELS.has(text) ? text.replace(/:.*/, '') : text));
  return texts.join('; ');
}

function listed(values: readonly string[]): string {
  if (values.length <= LISTED_VALUES_COUNT) return values.join(', ');
  return `${values.slice(0, FIRST_VALUES_COUNT).join(', ')} and ${values.length - FIRST_VALUES_COUNT} more`;
}

function about(name: MetricName): string {
  const { about: text, kind, when = '' } = metricOf(name);
  const isImplied = kind === 'histogram' && when.startsWith('after the first');
  const uses = alerts(name);
  return [
    ...(kind === 'histogram' ? ['Histogram'] : []),
    text,
    ...(when === '' || isImplied ? [] : [`Exists ${when}`]),
    ...(uses === '' ? [] : [`Alerts: ${uses}`]),
  ].join('. ');
}

function alerts(name: MetricName): string {
  const series = seriesNames(name);
  const uses = ({ expression }: Alert): boolean => series.some((each) => new RegExp(`\\b${each}\\b`).test(expression));
  return ALERTS.filter(uses)
    .map((alert) => alert.name)
    .join(', ');
}

const SPANS_HEAD = `# Spans

Generated from the table in \`services/shared/telemetry/spans.ts\` by \`npm run dashboards\`. A span of a call is named after
its method, such as \`podwire.ipam.v1.AddressService/Allocate\`: CLIENT at the caller, SERVER at the service. Background
checks have no spans. A repeated call is an event \`podwire.retry\` of the command's span, with \`error.type\`.
`;

/** The content of SPANS.md. */
export function spansDocument(): string {
  const spans = Object.entries(SPANS).map(([name, { kind, about: text }]) => [`\`${name}\``, kind, text]);
  const attributes = Object.entries(ATTRIBUTES).map(([name, { about: text }]) => [`\`${name}\``, text]);
  const tables = [
    table(['Span', 'Kind', 'Meaning'], spans),
    '## Attributes\n',
    table(['Attribute', 'Meaning'], attributes),
  ];
  return [SPANS_HEAD, ...tables].join('\n');
}

/** Conditions of podwire-node, by the part of the node that they concern. Their messages name the object and the next step. */
const CONDITIONS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  'Pods are refused': {
    KernelUnusable: 'the kernel lacks a feature that every pod needs',
    Ipv6Missing: 'the kernel has no IPv6 for pods with IPv6 addresses',
    HostPortsUnavailable: 'nftables cannot lead ports of the node to pods with host ports',
    SourceGuardUnavailable: 'nftables cannot check sources of pods with IPv6 addresses',
  },
  'Network policies': {
    PoliciesNotEnforced:
      'nftables refuses the table, and pods are refused; or a profile’s rules, and its pods are isolated; or kube-proxy uses IPVS',
    ConnectionsNotJudged: 'open connections that network policies forbid go on, as connection tracking cannot be read',
    PodPolicyUnknown: 'pods are isolated until podwire-ipam sends their policies',
    PoliciesNotFollowed: 'podwire-ipam sends no changes of policies; the last ones stay in force',
  },
  'Name and addresses of nodes': {
    NodeNotRegistered: 'podwire-ipam does not know this node yet',
    NodeNameTaken: 'another running machine has the node’s name',
    NodeUnknown: 'a block belongs to an unregistered node',
    NodeAddressMissing: 'a node has no address of a family that pools need',
    NodeAddressAmbiguous: 'several addresses of the node are suitable',
    NodeAddressInUse: 'another node, tunnel or pod has the node’s address',
    NodeAddressConflict: 'another node is registered with this node’s address',
    NodeAddressInBlock: 'a node’s address is in a block of pods',
    NodeInPool: 'a pool overlaps the node’s network',
  },
  'Settings of the node': {
    SettingsUnknown: 'sysctls cannot be read',
    SettingRefused: 'a sysctl for forwarding cannot be written',
    InterfaceNotForwarding: 'an interface drops packets for pods',
    StrictReversePathFilter: 'rp_filter drops packets from allowed source prefixes',
    Ipv6Disabled: 'disable_ipv6 has removed the node’s IPv6 address',
    MtuUnknown: 'interfaces cannot be read; pods’ MTU may be wrong',
    MtuTooSmall: 'the MTU is too small for a tunnel of the family',
  },
  'Routes and tunnels': {
    KernelSilent: 'routes are not repaired',
    KernelRefuses: 'the kernel refuses a change, which is retried',
    RouteTaken: 'another route to a block of pods is kept',
    DeviceTaken: 'another program’s interface has a tunnel’s name or VXLAN identifier',
    DeviceUnavailable: 'an interface that routes need is down or missing; set it up',
    ParentUnknown: 'no interface has the node’s registered address',
    NotOnLink: 'a node in another subnet needs encapsulation',
    TunnelAddressMissing: 'a node has no tunnel address',
    TunnelAddressConflict: 'two nodes have one tunnel address or MAC address',
    TunnelGatewayCovered: 'another program’s route covers tunnel addresses',
    VxlanUnsupported: 'the kernel has no VXLAN',
    IpipUnsupported: 'the kernel has no IPIP',
    IpipIpv6: 'an IPv6 pool uses IPIP',
    PoolMissing: 'a block in use has no pool; no encapsulation',
  },
  Firewall: {
    ForwardDropped: 'a chain of another program drops packets of pods',
    MasqueradeUnavailable: 'packets to outside the cluster leave with pods’ addresses',
    TunnelGuardUnavailable: 'the node accepts tunnel packets from any address',
    PortGuardUnavailable: 'pods reach the metrics of nodes and podwire-ipam',
    NeighbourGuardUnavailable: 'a pod can fill the node’s neighbour table',
  },
  'podwire-ipam and pods': {
    IpamUnreachable: 'the watch of podwire-ipam is disconnected',
    ObjectsSkipped: 'podwire-ipam sent invalid objects',
    AddressNotBound: 'podwire-ipam does not record a pod’s address',
    AddressShared: 'two pods of the node have one address',
    PodUnreadable: 'a pod’s namespace has too many objects for repairs',
  },
  BIRD: {
    BirdUnreachable: 'BIRD does not answer',
    BirdRefused: 'BIRD refused the configuration and keeps the former one',
    BgpSessionDown: 'a BGP session is not established; check the peer',
  },
};

/** The last section of RUNBOOK.md. */
export function conditionsSection(): string {
  const rows = Object.entries(CONDITIONS).flatMap(([group, conditions]) => [
    [`**${group}**`, ''],
    ...Object.entries(conditions),
  ]);
  const head = '`podwirectl node status` names the object, the cause and the remedy.';
  return `## Conditions\n\n${head}\n\n${table(['Condition', 'Meaning'], rows)}`;
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, head.map(() => '---'), ...rows];
  return `${lines.map((cells) => `| ${cells.join(' | ')} |`).join('\n')}\n`;
}
