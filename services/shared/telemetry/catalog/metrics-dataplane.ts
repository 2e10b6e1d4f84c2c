import { COARSE_SECONDS, type MetricCatalog } from './metric-entry.js';

const BIRD = 'with PODWIRE_ROUTING=bird';

/** Requests that a node repeats to podwire-ipam, as the label `task` names them. */
const RETRIED_TASKS = ['register-node', 'allocate-ipip', 'allocate-vxlan-ipv4', 'allocate-vxlan-ipv6'] as const;

export type RetriedTask = (typeof RETRIED_TASKS)[number];

/** Metrics of podwire-node's dataplane. */
export const DATAPLANE_METRICS = {
  'podwire.dataplane.pods.attached': {
    kind: 'counter',
    unit: '{pod}',
    about: 'Successful AttachPod calls; unchanged: the pod was wired already',
    labels: { result: ['changed', 'unchanged'] },
  },
  'podwire.dataplane.pods.detached': {
    kind: 'counter',
    unit: '{pod}',
    about: 'Successful DetachPod calls',
    labels: { result: ['removed', 'absent'] },
  },
  'podwire.dataplane.steps.skipped': {
    kind: 'counter',
    unit: '{step}',
    about: 'Optional settings that the kernel refused',
  },
  'podwire.dataplane.routes.taken_over': {
    kind: 'counter',
    unit: '{route}',
    about: 'Routes taken over from earlier pods',
  },
  'podwire.dataplane.differences': {
    kind: 'counter',
    unit: '{difference}',
    about: 'Differences found by CheckPod',
  },
  'podwire.dataplane.differences.repaired': { kind: 'counter', unit: '{difference}', about: 'Repaired drift of pods' },
  'podwire.dataplane.pod_mtu': {
    kind: 'gauge',
    unit: 'By',
    about: 'MTU of pods that request none',
    when: 'once the MTU is known',
  },
  'podwire.dataplane.nft.writes': {
    kind: 'counter',
    unit: '{write}',
    about: 'Writes of nftables tables; drift: another program had changed the table',
    labels: { table: 'names of tables', reason: ['wanted', 'found', 'drift'] },
    when: 'after the first write',
  },
  'podwire.dataplane.nft.gap': {
    kind: 'histogram',
    unit: 's',
    about: 'Time from another program’s change of a table until it is restored',
    labels: { table: 'names of tables' },
    when: 'after the first such change',
    buckets: COARSE_SECONDS,
  },
  'podwire.dataplane.nft.failures': {
    kind: 'counter',
    unit: '{failure}',
    about: 'Failed attempts to write an nftables table',
    labels: { table: 'names of tables' },
    when: 'after the first failure',
  },
  'podwire.dataplane.netlink.errors': {
    kind: 'counter',
    unit: '{error}',
    about: 'Requests that the kernel refused, some as expected, as for a deleted device',
    labels: { errno: 'names of errno.h' },
    when: 'after the first one',
  },
  'podwire.dataplane.cni.refusals': {
    kind: 'counter',
    unit: '{call}',
    about: 'Failed calls of Calico’s contract, which gRPC counts as answers',
    labels: { method: ['Add', 'Del'] },
  },
  'podwire.dataplane.attachments.recovered': {
    kind: 'counter',
    unit: '{attachment}',
    about: 'Attachments found at the start, by outcome',
    labels: { result: ['kept', 'repaired', 'adopted', 'undone', 'withoutNamespace', 'waiting', 'failed'] },
  },
  'podwire.dataplane.attachments.records.unreadable': {
    kind: 'counter',
    unit: '{record}',
    about: 'Unreadable records found at the start',
  },
  'podwire.dataplane.attachments.records.refused': {
    kind: 'counter',
    unit: '{record}',
    about: 'Changes of records that could not be stored',
  },
  'podwire.dataplane.attachments.dead': {
    kind: 'counter',
    unit: '{attachment}',
    about: 'Attachments whose namespaces disappeared without a DEL',
  },
  'podwire.dataplane.attachments.collected': {
    kind: 'counter',
    unit: '{attachment}',
    about: 'Attachments that CollectGarbage handled',
    labels: { result: ['removed', 'failed'] },
  },
  'podwire.dataplane.attachments.failures': {
    kind: 'counter',
    unit: '{failure}',
    about: 'Failed repairs, recoveries and checks, which are retried',
  },
  'podwire.dataplane.host_ports': {
    kind: 'gauge',
    unit: '{port}',
    about: 'Ports of the node that lead to pods',
  },
  'podwire.dataplane.routes': {
    kind: 'gauge',
    unit: '{route}',
    about: 'Routes to other nodes: required, and present in the kernel',
    labels: { state: ['wanted', 'present'] },
    when: 'once the cluster and the kernel have been read',
  },
  'podwire.dataplane.node.steps': {
    kind: 'counter',
    unit: '{step}',
    about: 'Changes of the node’s kernel',
    labels: { result: ['done', 'refused'] },
  },
  'podwire.dataplane.node.drift': {
    kind: 'counter',
    unit: '{object}',
    about: 'Objects of Podwire that another program changed',
    labels: { object: ['device', 'address', 'neighbour', 'forwarding', 'route', 'sysctl'] },
  },
  'podwire.dataplane.node.checks': {
    kind: 'counter',
    unit: '{check}',
    about: 'Full checks of the kernel, about every 90 s',
    labels: { result: ['clean', 'drift', 'failed'] },
  },
  'podwire.dataplane.node.check.duration': {
    kind: 'histogram',
    unit: 's',
    about: 'Time for reading the kernel in full',
    when: 'after the first check',
    buckets: COARSE_SECONDS,
  },
  'podwire.dataplane.node.overruns': {
    kind: 'counter',
    unit: '{overrun}',
    about: 'Losses of kernel notifications (ENOBUFS); a full check follows',
  },
  'podwire.dataplane.settings.repaired': {
    kind: 'counter',
    unit: '{setting}',
    about: 'Repaired settings of the node that pods need',
  },
  'podwire.dataplane.conditions': {
    kind: 'gauge',
    unit: '{condition}',
    about: 'Current conditions of the node, as in GetNodeStatus',
    labels: { reason: 'of the condition' },
    when: 'while there are conditions',
  },
  'podwire.dataplane.ipam.connected': {
    kind: 'gauge',
    unit: '',
    about: '1 while the watch of podwire-ipam is connected, else 0',
  },
  'podwire.dataplane.ipam.losses': { kind: 'counter', unit: '{loss}', about: 'Losses of the watch of podwire-ipam' },
  'podwire.dataplane.ipam.snapshots': { kind: 'counter', unit: '{snapshot}', about: 'Snapshots of the whole cluster' },
  'podwire.dataplane.ipam.changes': { kind: 'counter', unit: '{message}', about: 'Changes of the cluster' },
  'podwire.dataplane.ipam.skipped': { kind: 'counter', unit: '{object}', about: 'Invalid objects that were received' },
  'podwire.dataplane.ipam.retries': {
    kind: 'counter',
    unit: '{retry}',
    about: 'Failed calls of podwire-ipam that are retried',
    labels: { task: RETRIED_TASKS },
  },
  'podwire.dataplane.cluster.nodes': { kind: 'gauge', unit: '{node}', about: 'Known nodes' },
  'podwire.dataplane.cluster.blocks': { kind: 'gauge', unit: '{block}', about: 'Known blocks' },
  'podwire.dataplane.cluster.skipped': { kind: 'gauge', unit: '{object}', about: 'Objects that are invalid now' },
  'podwire.dataplane.bird.reachable': {
    kind: 'gauge',
    unit: '',
    about: '1 while BIRD answers on its control socket, else 0',
    when: BIRD,
  },
  'podwire.dataplane.bird.sessions': {
    kind: 'gauge',
    unit: '{session}',
    about: 'BGP sessions',
    labels: { established: ['true', 'false'] },
    when: BIRD,
  },
  'podwire.dataplane.bird.session.changes': {
    kind: 'counter',
    unit: '{change}',
    about: 'BGP sessions that were established or lost',
    labels: { state: ['established', 'down'] },
    when: BIRD,
  },
  'podwire.dataplane.bird.configurations': {
    kind: 'counter',
    unit: '{configuration}',
    about: 'Configurations sent to BIRD',
    labels: { result: ['applied', 'refused'] },
    when: BIRD,
  },
} as const satisfies MetricCatalog;
