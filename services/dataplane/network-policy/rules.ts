import { HOST_INTERFACE_PREFIX } from '@podwire/shared/attachment/names';
import { FAMILIES, formatAddress, type Family } from '@podwire/shared/net/address';
import type { Direction, PolicyRule, PortRange, Profile } from '@podwire/shared/network-policy/policy';
import { merge, type AddressRange } from '@podwire/shared/network-policy/ranges';

import {
  ADDRESS_TYPE,
  concatJson,
  COUNTED_DROP,
  FILTER_PRIORITY,
  jumpTo,
  match,
  meta,
  objectsOf,
  payload,
  PROTOCOL,
  type Json,
  type JsonObject,
  type NftChain,
  type NftCommand,
  type NftTable,
  type SetDefinition,
  type TableName,
} from '../nft/table.js';
import { logAt, LOGGED, type DropPlace } from './drop-log.js';

export const POLICY_TABLE: TableName = { family: 'inet', name: 'podwire_policy' };

/** Interfaces of wired pods. Packets of other pods' interfaces are dropped. */
export const KNOWN: SetDefinition = { name: 'known', type: 'ifname', interval: false };

/** Pairs of a pod's interface with itself. */
export const SELF: SetDefinition = { name: 'self', type: ['ifname', 'ifname'], interval: false };

/** Interfaces of pods with policies in any direction. */
export const FILTERED: SetDefinition = { name: 'filtered', type: 'ifname', interval: false };

/** Interfaces of pods with policies, each with the pod's own addresses. */
export const OWN: Readonly<Record<Family, SetDefinition>> = {
  4: { name: 'own4', type: ['ifname', ADDRESS_TYPE[4]], interval: false },
  6: { name: 'own6', type: ['ifname', ADDRESS_TYPE[6]], interval: false },
};

/** Leads packets from pods and to pods to the chain of their profile; a pod without policies has no element. */
export const JUMPS: Readonly<Record<Direction, SetDefinition>> = {
  egress: { name: 'egress', type: 'ifname', interval: false, valueType: 'verdict' },
  ingress: { name: 'ingress', type: 'ifname', interval: false, valueType: 'verdict' },
};

/** The sets and maps with elements for each pod. */
export const POD_SETS: readonly SetDefinition[] = [KNOWN, SELF, FILTERED, OWN[4], OWN[6], JUMPS.egress, JUMPS.ingress];

/** Drops every new connection of a pod. */
export const ISOLATED = 'isolated';

const INVALID = 'invalid';

const RELATED = 'related';

const SIDES = [
  ['iifname', 'egress'],
  ['oifname', 'ingress'],
] as const;

/** Numbers of `meta nfproto`. */
const NFPROTO: Readonly<Record<Family, number>> = { 4: 2, 6: 10 };

/** IANA's numbers of the protocols with ports. */
const TRANSPORTS: ReadonlyMap<number, string> = new Map([
  [6, 'tcp'],
  [17, 'udp'],
  [132, 'sctp'],
]);

const SCTP = 132;

const PORT_MAX = 65_535;

/** Longest comment that nft accepts, in bytes. */
const COMMENT_BYTES_MAX = 128;

/** Whether a set's members have ports, as its ID says. */
export function hasPorts(set: string): boolean {
  return set.startsWith('p-');
}

/** The set of nftables with a set's members of one family. */
export function setDefinition(id: string, family: Family): SetDefinition {
  const address = ADDRESS_TYPE[family];
  const type = hasPorts(id) ? ([address, 'inet_proto', 'inet_service'] as const) : address;
  return { name: `${id}-${family}`, type, interval: false };
}

/** IDs of the sets that a profile's rules name. */
export function setsOf({ admin, rules, baseline }: Profile): ReadonlySet<string> {
  const all = [...admin, ...rules, ...baseline];
  return new Set(all.flatMap(({ peers, ports }) => [...(peers?.sets ?? []), ...(ports?.sets ?? [])]));
}

/** The chain that judges connections of pods with a profile. */
export function chainName(direction: Direction, profile: string): string {
  return `${direction === 'egress' ? 'e' : 'i'}-${profile}`;
}

/**
 * The table without profiles and pods. `return` from a profile's chain means that this direction allows the connection, so that
 * the other one is judged too. Packets of the node's own connections pass other hooks.
 */
export const BASE_TABLE: NftTable = {
  ...POLICY_TABLE,
  sets: [...POD_SETS.map((set) => ({ ...set, elements: [] })), LOGGED],
  chains: [
    { name: ISOLATED, hook: undefined, rules: loggedDrop([], { kind: 'isolated' }) },
    {
      name: INVALID,
      hook: undefined,
      rules: ['iifname', 'oifname'].flatMap((side) => [
        [match(meta(side), '==', `@${KNOWN.name}`), ...COUNTED_DROP],
        [match(meta(side), '==', `${HOST_INTERFACE_PREFIX}*`), ...COUNTED_DROP],
      ]),
    },
    {
      // A pod can write an ICMP error about any connection, and connection tracking looks at its destination alone: of a pod with
      // policies it must be about a connection of its own. Otherwise it is judged like a new connection.
      name: RELATED,
      hook: undefined,
      rules: [
        [match(meta('iifname'), '!=', `@${FILTERED.name}`), { accept: null }],
        ...FAMILIES.flatMap((family) =>
          ['original', 'reply'].map((dir) => {
            const end = concatJson(meta('iifname'), { ct: { key: `${PROTOCOL[family]} saddr`, dir } });
            return [match(end, '==', `@${OWN[family].name}`), { accept: null }];
          }),
        ),
      ],
    },
    {
      name: 'forward',
      hook: { type: 'filter', name: 'forward', priority: FILTER_PRIORITY },
      rules: [
        [inStates('established'), { accept: null }],
        [inStates('related'), jumpTo(RELATED)],
        // Several addresses of one end make packets of SCTP look invalid.
        [match(meta('l4proto'), '!=', SCTP), inStates('invalid'), jumpTo(INVALID)],
        [match(concatJson(meta('iifname'), meta('oifname')), '==', `@${SELF.name}`), { accept: null }],
        // The kernel takes any segment of a connection that it does not track for the first one, also a reply. So a connection
        // that was ended could go on in the opposite direction. Calico's eBPF dataplane refuses such segments too.
        ...SIDES.flatMap(([side, direction]) => {
          const isUntracked = [
            match({ '&': [{ payload: { protocol: 'tcp', field: 'flags' } }, 'syn'] }, '==', 0),
            inStates('new'),
            match(meta(side), '==', `@${FILTERED.name}`),
          ];
          return loggedDrop(isUntracked, { kind: 'untracked', direction });
        }),
        [verdictOf('iifname', JUMPS.egress)],
        [verdictOf('oifname', JUMPS.ingress)],
        ...SIDES.flatMap(([side, direction]) => {
          const isUnwired = [
            match(meta(side), '==', `${HOST_INTERFACE_PREFIX}*`),
            match(meta(side), '!=', `@${KNOWN.name}`),
          ];
          return loggedDrop(isUnwired, { kind: 'unwired', direction });
        }),
      ],
    },
  ],
};

/** The rules that log a packet and drop it. */
function loggedDrop(matches: readonly JsonObject[], place: DropPlace): (readonly JsonObject[])[] {
  return [logAt(place), COUNTED_DROP].map((end) => [...matches, ...end]);
}

/** A rule with the policy that it belongs to, or none. */
interface ChainRule {
  readonly expr: readonly JsonObject[];
  readonly comment?: string;
}

interface RuleChain {
  readonly name: string;
  readonly rules: readonly ChainRule[];
}

/** The chains of a profile; targets of a `goto` come first. */
function profileChains(profile: Profile): readonly RuleChain[] {
  const { direction, admin, rules, baseline, isolatedBy } = profile;
  const name = chainName(direction, profile.id);
  const isIsolated = isolatedBy.length > 0;
  const allowed: JsonObject = { return: null };
  const rest = isIsolated
    ? [
        { expr: logAt({ kind: 'profile', direction, profile: profile.id, rule: undefined }) },
        { expr: COUNTED_DROP, comment: commentOf(isolatedBy.join(', ')) },
      ]
    : ruleOf(baseline, profile, { pass: allowed, tier: 'baseline' });
  const last = [...ruleOf(rules, profile, { pass: allowed }), ...rest];
  if (admin.length === 0) return [{ name, rules: last }];
  const next = `${name}-np`;
  const pass: JsonObject = { goto: { target: next } };
  return [
    { name: next, rules: last },
    { name, rules: [...ruleOf(admin, profile, { pass, tier: 'admin' }), { expr: [pass] }] },
  ];
}

interface TierRules {
  /** The verdict that leaves the tier. */
  readonly pass: JsonObject;
  /** Undefined: no rule denies. */
  readonly tier?: 'admin' | 'baseline';
}

function ruleOf(rules: readonly PolicyRule[], { id, direction }: Profile, { pass, tier }: TierRules): ChainRule[] {
  const verdicts = { accept: { return: null }, deny: { drop: null }, pass };
  return rules.flatMap((rule, position) => {
    const place = { kind: 'profile', direction, profile: id, rule: tier && { tier, position } } as const;
    return peerMatches(rule.peers, direction).flatMap((peer) =>
      portMatches(rule.ports)
        .filter(({ family }) => !family || !peer.family || family === peer.family)
        .flatMap((port) => {
          const isMatch = [...peer.expr, ...port.expr];
          const verdict = [...isMatch, { counter: { packets: 0, bytes: 0 } }, verdicts[rule.action]];
          return [
            ...(rule.action === 'deny' ? [{ expr: [...isMatch, ...logAt(place)] }] : []),
            { expr: verdict, comment: commentOf(rule.policy) },
          ];
        }),
    );
  });
}

/** One of several alternatives: expressions that must all match. */
interface Alternative {
  readonly expr: readonly JsonObject[];
  /** Undefined: it matches packets of both families. */
  readonly family?: Family;
}

const ANY: readonly Alternative[] = [{ expr: [] }];

function peerMatches(peers: PolicyRule['peers'], direction: Direction): readonly Alternative[] {
  if (!peers) return ANY;
  const field = direction === 'ingress' ? 'saddr' : 'daddr';
  const networks = merge(peers.networks);
  return FAMILIES.flatMap((family) => {
    const address = payload(PROTOCOL[family], field);
    const ranges = networks.filter(({ first }) => first.family === family).map(rangeJson);
    const [whole] = networks.filter((range) => isWhole(range, family));
    const matches = [
      ...peers.sets.map((set) => match(address, '==', `@${setDefinition(set, family).name}`)),
      ...(whole ? [match(meta('nfproto'), '==', NFPROTO[family])] : anyOf(address, ranges)),
    ];
    return matches.map((each) => ({ expr: [each], family }));
  });
}

function portMatches(ports: PolicyRule['ports']): readonly Alternative[] {
  if (!ports) return ANY;
  const ranges = [...TRANSPORTS].flatMap(([protocol, name]) => {
    const merged = mergePorts(ports.ranges.filter((range) => range.protocol === protocol));
    const [whole] = merged.filter(({ first, last }) => first === 0 && last === PORT_MAX);
    if (whole) return [{ expr: [match(meta('l4proto'), '==', protocol)] }];
    const values = merged.map(({ first, last }): Json => (first === last ? first : { range: [first, last] }));
    return anyOf({ payload: { protocol: name, field: 'dport' } }, values).map((each) => ({ expr: [each] }));
  });
  const named = FAMILIES.flatMap((family) => {
    const port: Json = { payload: { protocol: 'th', field: 'dport' } };
    const key = concatJson(payload(PROTOCOL[family], 'daddr'), meta('l4proto'), port);
    return ports.sets.map((set) => ({ expr: [match(key, '==', `@${setDefinition(set, family).name}`)], family }));
  });
  return [...ranges, ...named];
}

/** One match of any of these values; nothing without values. */
function anyOf(left: Json, values: readonly Json[]): JsonObject[] {
  const [first, ...rest] = values;
  if (first === undefined) return [];
  return [match(left, '==', rest.length === 0 ? first : { set: values })];
}

function rangeJson({ first, last }: AddressRange): Json {
  return first.value === last.value ? formatAddress(first) : { range: [formatAddress(first), formatAddress(last)] };
}

function isWhole({ first, last }: AddressRange, family: Family): boolean {
  const bits = family === 4 ? 32n : 128n;
  return first.family === family && first.value === 0n && last.value === (1n << bits) - 1n;
}

/** The same ports as disjoint ranges, as sets of nftables require. */
function mergePorts(ranges: readonly PortRange[]): PortRange[] {
  const merged: PortRange[] = [];
  for (const range of ranges.toSorted((a, b) => a.first - b.first)) {
    const before = merged.at(-1);
    if (before && range.first <= before.last + 1)
      merged[merged.length - 1] = { ...before, last: Math.max(before.last, range.last) };
    else merged.push(range);
  }
  return merged;
}

function inStates(...states: readonly string[]): JsonObject {
  return {
    match: { op: 'in', left: { ct: { key: 'state' } }, right: states.length === 1 ? (states[0] ?? '') : states },
  };
}

function verdictOf(side: string, map: SetDefinition): JsonObject {
  return { vmap: { key: meta(side), data: `@${map.name}` } };
}

/** A policy's name, cut where nft would refuse it. */
function commentOf(text: string): string {
  return Buffer.byteLength(text) <= COMMENT_BYTES_MAX ? text : `${text.slice(0, COMMENT_BYTES_MAX - 3)}...`;
}

/** The commands that add empty sets, existing or not. */
export function addSets(ids: Iterable<string>): NftCommand[] {
  const sets = [...ids].flatMap((id) => FAMILIES.map((family) => setDefinition(id, family)));
  return added({ ...POLICY_TABLE, chains: [], sets: sets.map((set) => ({ ...set, elements: [] })) });
}

/** The commands that add the chains of a profile, whose sets exist. */
export function addProfile(profile: Profile): NftCommand[] {
  const { family, name: table } = POLICY_TABLE;
  const chains = profileChains(profile);
  const empty = chains.map(({ name }): NftChain => ({ name, hook: undefined, rules: [] }));
  const rules = chains.flatMap(({ name: chain, rules }) =>
    rules.map(({ expr, comment }): NftCommand => {
      const said = comment === undefined ? {} : { comment };
      return { add: { rule: { family, table, chain, expr, ...said } } };
    }),
  );
  return [...added({ ...POLICY_TABLE, sets: [], chains: empty }), ...rules];
}

/** The commands that delete chains of profiles, which no pod has, and then sets, which no rule names. */
export function remove(profiles: readonly Profile[], sets: readonly string[]): NftCommand[] {
  const { family, name: table } = POLICY_TABLE;
  const chains = profiles.flatMap((profile) => profileChains(profile).toReversed());
  const names = sets.flatMap((id) => FAMILIES.map((each) => setDefinition(id, each).name));
  return [
    ...chains.map(({ name }): NftCommand => ({ delete: { chain: { family, table, name } } })),
    ...names.map((name): NftCommand => ({ delete: { set: { family, table, name } } })),
  ];
}

function added(table: NftTable): NftCommand[] {
  return objectsOf(table).map((object) => ({ add: object }));
}
