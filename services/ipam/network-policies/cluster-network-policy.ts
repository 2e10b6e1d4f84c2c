import type { Direction, PortRange, RuleAction } from '@podwire/shared/network-policy/policy';
import { merge, rangeOf, type AddressRange } from '@podwire/shared/network-policy/ranges';
import { z } from 'zod';

import { EVERYTHING, readLabelSelector } from './label-selector.js';
import {
  faultOf,
  NO_MATCH,
  PEER_FIELDS,
  readCidr,
  type PodSelector,
  type PolicySpec,
  type PortName,
  type RuleSpec,
} from './policy-spec.js';
import { PROTOCOLS } from './pods.js';

/**
 * ClusterNetworkPolicy of policy.networking.k8s.io/v1alpha2. A rule that is not understood fails closed, as the API asks: Accept
 * matches nothing, Deny and Pass deny everything.
 */

const optional = z.unknown().optional();

const objectSchema = z.object({
  metadata: z.object({ name: z.string().min(1) }),
  spec: z.object({
    tier: optional,
    priority: optional,
    subject: optional,
    ingress: optional,
    egress: optional,
  }),
});

const orderSchema = z.object({
  tier: z.enum(['Admin', 'Baseline']),
  priority: z.number().int().min(0).max(1000),
});

const podsSchema = z.strictObject({ namespaceSelector: optional, podSelector: optional });

const selectingSchema = z.union([
  z.strictObject({ namespaces: z.looseObject({}) }),
  z.strictObject({ pods: podsSchema }),
]);

const networksSchema = z.strictObject({ networks: z.array(z.string()).min(1) });

const ACTIONS = { Accept: 'accept', Deny: 'deny', Pass: 'pass' } as const;

const actionSchema = z.looseObject({ action: z.enum(['Accept', 'Deny', 'Pass']) });

const PEER_KEYS = { ingress: ['namespaces', 'pods'], egress: ['namespaces', 'pods', 'networks'] } as const;
const PROTOCOL_KEYS = ['tcp', 'udp', 'sctp', 'destinationNamedPort'];

const ruleBody = { name: z.string().nullish(), action: z.string(), protocols: z.array(z.unknown()).nullish() };
const peersSchema = z.array(z.unknown()).min(1);
const bodySchemas = {
  ingress: z
    .strictObject({ ...ruleBody, from: peersSchema })
    .transform(({ from, ...rest }) => ({ ...rest, peers: from })),
  egress: z.strictObject({ ...ruleBody, to: peersSchema }).transform(({ to, ...rest }) => ({ ...rest, peers: to })),
} as const;

const portNumber = z.number().int().min(1).max(65_535);
const destinationSchema = z.strictObject({
  destinationPort: z.union([
    z.strictObject({ number: portNumber }).transform(({ number }) => ({ first: number, last: number })),
    z
      .strictObject({ range: z.strictObject({ start: portNumber, end: portNumber }) })
      .transform(({ range }) => ({ first: range.start, last: range.end })),
  ]),
});
const protocolSchema = z.union([
  z.strictObject({ tcp: destinationSchema }).transform(({ tcp }) => ({ protocol: PROTOCOLS.TCP, ...tcp })),
  z.strictObject({ udp: destinationSchema }).transform(({ udp }) => ({ protocol: PROTOCOLS.UDP, ...udp })),
  z.strictObject({ sctp: destinationSchema }).transform(({ sctp }) => ({ protocol: PROTOCOLS.SCTP, ...sctp })),
  z.strictObject({ destinationNamedPort: z.string().min(1) }),
]);

/** @returns undefined for an object without a name */
export function readClusterNetworkPolicy(object: unknown): PolicySpec | undefined {
  const { data } = objectSchema.safeParse(object);
  if (!data) return undefined;
  const { spec } = data;
  const faults: string[] = [];
  const order = orderSchema.safeParse(spec).data;
  if (!order) faults.push('tier or priority is not one that this release knows; every rule denies everything');
  const rulesOf = (direction: Direction): readonly RuleSpec[] | undefined => {
    const rules = readRules(spec[direction], direction, faults);
    return order || !rules ? rules : [DENY_ALL];
  };
  return {
    name: `ClusterNetworkPolicy ${data.metadata.name}`,
    namespace: undefined,
    tier: order?.tier === 'Baseline' ? 'baseline' : 'admin',
    priority: order?.priority ?? 0,
    subject: readSubject(spec.subject, faults),
    rules: { ingress: rulesOf('ingress'), egress: rulesOf('egress') },
    faults,
  };
}

const NO_PODS: PodSelector = { namespaces: '', pods: EVERYTHING };

function readSubject(object: unknown, faults: string[]): PodSelector {
  const { data } = selectingSchema.safeParse(object);
  if (data) return readPods(data, 'subject', faults);
  faults.push('subject is neither namespaces nor pods; the policy selects no pod');
  return NO_PODS;
}

function readPods(selecting: z.infer<typeof selectingSchema>, field: string, faults: string[]): PodSelector {
  if ('namespaces' in selecting)
    return { namespaces: readLabelSelector(selecting.namespaces, `${field}.namespaces`, faults), pods: EVERYTHING };
  const { namespaceSelector, podSelector } = selecting.pods;
  return {
    namespaces: readLabelSelector(namespaceSelector ?? {}, `${field}.pods.namespaceSelector`, faults),
    pods: readLabelSelector(podSelector ?? {}, `${field}.pods.podSelector`, faults),
  };
}

const DENY_ALL: RuleSpec = { action: 'deny', peers: undefined, ports: undefined };

/** @returns undefined without rules: the policy does not concern the direction */
function readRules(object: unknown, direction: Direction, faults: string[]): readonly RuleSpec[] | undefined {
  if (object === undefined || object === null) return undefined;
  const { data: items } = z.array(z.unknown()).safeParse(object);
  if (!items) {
    faults.push(`${direction} is not a list of rules; it denies everything`);
    return [DENY_ALL];
  }
  const rules = items.map((item, index) => readRule(item, direction, `${direction}[${index}]`, faults));
  return items.length === 0 ? undefined : rules;
}

function readRule(item: unknown, direction: Direction, field: string, faults: string[]): RuleSpec {
  const actionName = actionSchema.safeParse(item).data?.action;
  const action: RuleAction = actionName ? ACTIONS[actionName] : 'deny';
  const { data: body } = bodySchemas[direction].safeParse(item);
  const causes: string[] = [];
  if (body && actionName) {
    const peers = readPeers(body.peers, direction, field, causes);
    const ports =
      body.protocols && body.protocols.length > 0 ? readProtocols(body.protocols, field, causes) : undefined;
    if (causes.length === 0) return { action, peers, ports };
  } else causes.push(faultOf(field, 'rule', item, [...Object.keys(ruleBody), PEER_FIELDS[direction]]));
  const effect = action === 'accept' ? 'accepts nothing' : 'denies everything';
  faults.push(...causes.map((cause) => `${cause}; the rule ${effect}`));
  return action === 'accept' ? NO_MATCH : DENY_ALL;
}

function readPeers(
  items: readonly unknown[],
  direction: Direction,
  rule: string,
  faults: string[],
): NonNullable<RuleSpec['peers']> {
  const pods: PodSelector[] = [];
  const networks: AddressRange[] = [];
  items.forEach((item, index) => {
    const field = `${rule}.${PEER_FIELDS[direction]}[${index}]`;
    const selecting = selectingSchema.safeParse(item).data;
    const texts = direction === 'egress' ? networksSchema.safeParse(item).data?.networks : undefined;
    const cidrs = texts?.flatMap((text) => readCidr(text) ?? []);
    if (selecting) pods.push(readPods(selecting, field, faults));
    else if (cidrs && cidrs.length === texts?.length) networks.push(...cidrs.map(rangeOf));
    else if (texts) faults.push(`${field}.networks has a text that is not a CIDR`);
    else faults.push(faultOf(field, 'peer', item, PEER_KEYS[direction]));
  });
  return { pods, networks: merge(networks) };
}

function readProtocols(items: readonly unknown[], rule: string, faults: string[]): NonNullable<RuleSpec['ports']> {
  const ranges: PortRange[] = [];
  const names: PortName[] = [];
  items.forEach((item, index) => {
    const { data } = protocolSchema.safeParse(item);
    if (!data) faults.push(faultOf(`${rule}.protocols[${index}]`, 'protocol', item, PROTOCOL_KEYS));
    else if ('destinationNamedPort' in data) names.push({ name: data.destinationNamedPort, protocol: undefined });
    else ranges.push({ protocol: data.protocol, ...data.destinationPort });
  });
  return { ranges, names };
}
