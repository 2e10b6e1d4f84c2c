import { DIRECTIONS, type Direction, type PortRange } from '@podwire/shared/network-policy/policy';
import { cut, merge, type AddressRange } from '@podwire/shared/network-policy/ranges';
import { z } from 'zod';

import { EVERYTHING, readLabelSelector } from './label-selector.js';
import {
  EVERY_PORT,
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

/** NetworkPolicy of networking.k8s.io/v1. Whatever is not understood matches nothing: rules only allow. */

const optional = z.unknown().optional();

const objectSchema = z.object({
  metadata: z.object({ name: z.string().min(1), namespace: z.string().min(1) }),
  spec: z.object({ podSelector: optional, policyTypes: optional, ingress: optional, egress: optional }).nullish(),
});

const TYPES = { Ingress: 'ingress', Egress: 'egress' } as const;

const typesSchema = z.array(z.enum(['Ingress', 'Egress'])).nullish();

const listSchema = z
  .array(z.unknown())
  .nullish()
  .transform((items) => items ?? []);

const rulesSchema = {
  ingress: z
    .strictObject({ from: listSchema, ports: listSchema })
    .transform(({ from, ports }) => ({ peers: from, ports })),
  egress: z.strictObject({ to: listSchema, ports: listSchema }).transform(({ to, ports }) => ({ peers: to, ports })),
} as const;

const PEER_KEYS = ['podSelector', 'namespaceSelector', 'ipBlock'];
const PORT_KEYS = ['protocol', 'port', 'endPort'];

const peerSchema = z.union([
  z.strictObject({
    ipBlock: z.strictObject({ cidr: z.string(), except: z.array(z.string()).nullish() }),
    podSelector: z.null().optional(),
    namespaceSelector: z.null().optional(),
  }),
  z.strictObject({ podSelector: optional, namespaceSelector: optional, ipBlock: z.null().optional() }),
]);

const portNumberSchema = z.number().int().min(1).max(65_535);

const portSchema = z.strictObject({
  protocol: z
    .enum(['TCP', 'UDP', 'SCTP'])
    .nullish()
    .transform((protocol) => PROTOCOLS[protocol ?? 'TCP']),
  port: z.union([portNumberSchema, z.string().min(1)]).nullish(),
  endPort: portNumberSchema.nullish(),
});

/** @returns undefined for an object without a name */
export function readNetworkPolicy(object: unknown): PolicySpec | undefined {
  const { data } = objectSchema.safeParse(object);
  if (!data) return undefined;
  const { name, namespace } = data.metadata;
  const faults: string[] = [];
  const spec = data.spec ?? {};
  const subject = { namespaces: namespace, pods: readLabelSelector(spec.podSelector ?? {}, 'podSelector', faults) };
  const directions = readTypes(spec, faults);
  const rulesOf = (direction: Direction): readonly RuleSpec[] | undefined =>
    directions.includes(direction) ? readRules(spec[direction], { direction, namespace, faults }) : undefined;
  const rules = withinLimits({ ingress: rulesOf('ingress'), egress: rulesOf('egress') }, faults);
  return { name: `NetworkPolicy ${namespace}/${name}`, namespace, tier: 'policy', priority: 0, subject, rules, faults };
}

/** Limits of one policy, which users of a namespace write: each selector is a set of pods in podwire-ipam and on nodes. */
const SELECTORS_COUNT_MAX = 256;
const RANGES_COUNT_MAX = 4096;

/** A policy above the limits isolates its pods and allows nothing. */
function withinLimits(rules: PolicySpec['rules'], faults: string[]): PolicySpec['rules'] {
  const all = DIRECTIONS.flatMap((direction) => rules[direction] ?? []);
  const count = (countOf: (rule: RuleSpec) => number) => all.reduce((sum, rule) => sum + countOf(rule), 0);
  const selectors = count(({ peers, ports }) => (peers?.pods.length ?? 0) + (ports?.names.length ?? 0));
  const ranges = count(({ peers, ports }) => (peers?.networks.length ?? 0) + (ports?.ranges.length ?? 0));
  if (selectors <= SELECTORS_COUNT_MAX && ranges <= RANGES_COUNT_MAX) return rules;
  const limits = `${SELECTORS_COUNT_MAX} selectors and port names, or ${RANGES_COUNT_MAX} ranges`;
  faults.push(`the policy has more than ${limits}; it allows nothing: split it`);
  return { ingress: rules.ingress && [], egress: rules.egress && [] };
}

/** The directions in which the policy isolates its pods; both if the types are not understood. */
function readTypes(
  { policyTypes, egress }: { readonly policyTypes?: unknown; readonly egress?: unknown },
  faults: string[],
): readonly Direction[] {
  const { success, data } = typesSchema.safeParse(policyTypes);
  if (!success) {
    faults.push('policyTypes is not a list of Ingress and Egress; both directions are isolated');
    return DIRECTIONS;
  }
  if (data && data.length > 0) return data.map((type) => TYPES[type]);
  return Array.isArray(egress) && egress.length > 0 ? DIRECTIONS : ['ingress'];
}

interface RuleContext {
  readonly direction: Direction;
  readonly namespace: string;
  readonly faults: string[];
}

function readRules(object: unknown, context: RuleContext): readonly RuleSpec[] {
  const { direction, faults } = context;
  const { success, data: items } = listSchema.safeParse(object);
  if (!success) faults.push(`${direction} is not a list of rules; it allows nothing`);
  return (items ?? []).map((item, index): RuleSpec => {
    const field = `${direction}[${index}]`;
    const rule = rulesSchema[direction].safeParse(item).data;
    if (!rule) {
      faults.push(`${faultOf(field, 'rule', item, [PEER_FIELDS[direction], 'ports'])}; the rule allows nothing`);
      return NO_MATCH;
    }
    const peers = rule.peers.length === 0 ? undefined : readPeers(rule.peers, field, context);
    const ports = rule.ports.length === 0 ? undefined : readPorts(rule.ports, field, faults);
    return { action: 'accept', peers, ports };
  });
}

function readPeers(
  items: readonly unknown[],
  rule: string,
  { direction, namespace, faults }: RuleContext,
): RuleSpec['peers'] {
  const pods: PodSelector[] = [];
  const networks: AddressRange[] = [];
  items.forEach((item, index) => {
    const field = `${rule}.${PEER_FIELDS[direction]}[${index}]`;
    const peer = peerSchema.safeParse(item).data;
    if (peer?.ipBlock) {
      const prefix = readCidr(peer.ipBlock.cidr);
      const excepted = (peer.ipBlock.except ?? []).map(readCidr);
      const known = excepted.flatMap((each) => each ?? []);
      if (prefix && known.length === excepted.length) networks.push(...cut(prefix, known));
      else faults.push(`${field}.ipBlock has a text that is not a CIDR; the peer allows nothing`);
    } else if (peer && (hasValue(peer.podSelector) || hasValue(peer.namespaceSelector))) {
      const { podSelector, namespaceSelector } = peer;
      const readOne = (object: unknown, name: string) => readLabelSelector(object, `${field}.${name}`, faults);
      pods.push({
        namespaces: hasValue(namespaceSelector) ? readOne(namespaceSelector, 'namespaceSelector') : namespace,
        pods: hasValue(podSelector) ? readOne(podSelector, 'podSelector') : EVERYTHING,
      });
    } else faults.push(`${faultOf(field, 'peer', item, PEER_KEYS)}; the peer allows nothing`);
  });
  return { pods, networks: merge(networks) };
}

function readPorts(items: readonly unknown[], rule: string, faults: string[]): RuleSpec['ports'] {
  const ranges: PortRange[] = [];
  const names: PortName[] = [];
  items.forEach((item, index) => {
    const { data } = portSchema.safeParse(item);
    const { protocol = PROTOCOLS.TCP, port, endPort } = data ?? {};
    if (data && typeof port === 'string' && !hasValue(endPort)) names.push({ name: port, protocol });
    else if (data && !hasValue(port) && !hasValue(endPort)) ranges.push({ protocol, ...EVERY_PORT });
    else if (typeof port === 'number' && (endPort ?? port) >= port)
      ranges.push({ protocol, first: port, last: endPort ?? port });
    else faults.push(`${faultOf(`${rule}.ports[${index}]`, 'port', item, PORT_KEYS)}; the port allows nothing`);
  });
  return { ranges, names };
}

function hasValue(value: unknown): boolean {
  return value !== undefined && value !== null;
}
