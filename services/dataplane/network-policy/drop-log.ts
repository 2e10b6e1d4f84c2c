import { DIRECTIONS, type Direction } from '@podwire/shared/network-policy/policy';

import {
  isList,
  isObject,
  meta,
  removal,
  updateSet,
  type JsonObject,
  type NftCommand,
  type NftSet,
} from '../nft/table.js';

/** Rules that log a packet before the next rule drops it, and the prefixes by which the reader finds the rule. */

/** Group of nfnetlink_log for dropped packets, and how many bytes of each it has. */
export const DROP_LOG = { group: 4650, copyBytes: 128 } as const;

/** Packets of one interface that are logged: 5 a second, and 20 after a pause. */
const RATE = { rate: 5, burst: 20, per: 'second' };

/** Interfaces with packets that were logged recently. */
export const LOGGED: NftSet = {
  name: 'logged',
  type: 'ifname',
  interval: false,
  elements: [],
  filledByRules: { sizeCount: 65_535, timeoutSeconds: 15 },
};

/** The place of a drop in the table, as log prefixes name it. */
export type DropPlace =
  | { readonly kind: 'isolated' }
  /** An interface of a pod that is not wired, or not any more; or a connection of a pod with policies that is not tracked. */
  | { readonly kind: 'unwired' | 'untracked'; readonly direction: Direction }
  | {
      readonly kind: 'profile';
      readonly direction: Direction;
      readonly profile: string;
      /** The rule that denies; undefined: no rule matched. */
      readonly rule: { readonly tier: 'admin' | 'baseline'; readonly position: number } | undefined;
    };

/** nft refuses prefixes of more than 127 bytes; IDs of profiles have at most 100. */
function formatPlace(place: DropPlace): string {
  if (place.kind === 'isolated') return place.kind;
  if (place.kind !== 'profile') return `${place.kind} ${place.direction}`;
  const { kind, direction, profile, rule } = place;
  return [kind, direction, profile, ...(rule ? [rule.tier, rule.position] : [])].join(' ');
}

/** The inverse of {@link formatPlace}; undefined for a prefix of another release or program. */
export function readPlace(prefix: string): DropPlace | undefined {
  const [kind, word, profile, tier, position] = prefix.split(' ');
  if (kind === 'isolated') return { kind };
  const direction = DIRECTIONS.find((each) => each === word);
  if (!direction) return undefined;
  if (kind === 'unwired' || kind === 'untracked') return { kind, direction };
  if (kind !== 'profile' || profile === undefined) return undefined;
  if (tier === undefined) return { kind, direction, profile, rule: undefined };
  if (tier !== 'admin' && tier !== 'baseline') return undefined;
  return { kind, direction, profile, rule: { tier, position: Number(position) } };
}

/** The end of a rule that logs a packet, unless many of its interface were logged, and leaves it to the next rule. */
export function logAt(place: DropPlace): readonly JsonObject[] {
  const side = 'direction' in place && place.direction === 'ingress' ? 'oifname' : 'iifname';
  return [updateSet(LOGGED.name, meta(side), { limit: RATE }), logStatement(formatPlace(place))];
}

const TABLE = { family: 'inet', name: 'podwire_probe' } as const;
const CHAIN = { family: TABLE.family, table: TABLE.name };

/** A transaction that changes nothing, and fails where rules cannot log. */
export const LOG_PROBE: readonly NftCommand[] = [
  ...removal(TABLE),
  { add: { table: TABLE } },
  { add: { chain: { ...CHAIN, name: 'log' } } },
  { add: { rule: { ...CHAIN, chain: 'log', expr: [logStatement('probe')] } } },
  { delete: { table: TABLE } },
];

function logStatement(prefix: string): JsonObject {
  return { log: { prefix, group: DROP_LOG.group, snaplen: DROP_LOG.copyBytes } };
}

/** The commands without rules that log. */
export function withoutLogs(commands: readonly NftCommand[]): readonly NftCommand[] {
  return commands.filter((command) => !('add' in command && logs(command.add)));
}

/** Whether an object is a rule that logs. */
export function logs({ rule }: JsonObject): boolean {
  const expr = isObject(rule) ? rule.expr : undefined;
  return isList(expr) && expr.some((each) => isObject(each) && 'log' in each);
}
