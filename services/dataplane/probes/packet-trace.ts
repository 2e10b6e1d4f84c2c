import { match, meta, payload, PROTOCOL, type NftTable } from '../nft/table.js';
import { TRACE_TABLE } from '../removal.js';
import { formatAddress, type Address } from '@podwire/shared/net/address';

/** Before connection tracking (-200) and raw tables (-300), whose rules are traced too. */
const TRACE_PRIORITY = -400;

/** A step of a traced packet, as `nft monitor trace` prints it. */
export interface TraceStep {
  readonly packetId: string;
  /** `ip filter`. */
  readonly table: string;
  readonly chain: string;
  readonly kind: string;
  /** The packet's fields, or the rule. */
  readonly text: string;
  /** Empty for packets. */
  readonly verdict: string;
  readonly inputInterface: string;
  readonly outputInterface: string;
}

export interface TracedEnds {
  /** Undefined: any address. */
  readonly source: Address | undefined;
  readonly destination: Address;
}

/** The table that marks the packets between two addresses of one family, in both directions. */
export function traceTable({ source, destination }: TracedEnds): NftTable {
  const is = (field: 'saddr' | 'daddr', address: Address | undefined) =>
    address ? [match(payload(PROTOCOL[address.family], field), '==', formatAddress(address))] : [];
  const mark = { mangle: { key: meta('nftrace'), value: 1 } };
  const rules = [
    [...is('saddr', source), ...is('daddr', destination), mark],
    [...is('saddr', destination), ...is('daddr', source), mark],
  ];
  const chains = ['prerouting', 'output'].map((name) => {
    return { name, hook: { type: 'filter', name, priority: TRACE_PRIORITY }, rules };
  });
  return { ...TRACE_TABLE, sets: [], chains };
}

const LINE = /^trace id (\w+) (\S+ \S+) (\S+) (packet|rule|verdict|policy)(?:: | ?)(.*)$/;

/** A line of the monitor; undefined: it is no step, or a step of the table of the trace itself. */
export function traceStep(line: string): TraceStep | undefined {
  const [, packetId, table, chain, kind, rest] = LINE.exec(line.trim()) ?? [];
  if (packetId === undefined || table === undefined || chain === undefined) return undefined;
  if (kind === undefined || rest === undefined) return undefined;
  const isOwn = table === `${TRACE_TABLE.family} ${TRACE_TABLE.name}`;
  if (isOwn && kind !== 'packet') return undefined;
  const [, text, ruleVerdict] = /^(.*?) ?\(verdict (.*)\)$/.exec(rest) ?? [];
  const isPacket = kind === 'packet';
  return {
    packetId,
    table,
    chain,
    kind,
    text: text ?? rest,
    verdict: isPacket ? '' : (ruleVerdict ?? rest),
    inputInterface: isPacket ? (/\biif "([^"]+)"/.exec(rest)?.[1] ?? '') : '',
    outputInterface: isPacket ? (/\boif "([^"]+)"/.exec(rest)?.[1] ?? '') : '',
  };
}
