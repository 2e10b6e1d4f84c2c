/** Counters by name: `eth0 sent`, `Ip OutNoRoutes`. */
export type Counters = ReadonlyMap<string, bigint>;

/** A counter that changed. */
export interface CounterChange {
  readonly name: string;
  readonly before: bigint;
  readonly after: bigint;
}

/** Columns of /proc/net/dev that show where packets are lost. */
const COLUMNS: readonly (readonly [column: number, name: string])[] = [
  [1, 'received'],
  [2, 'receive errors'],
  [3, 'receive drops'],
  [9, 'sent'],
  [10, 'send errors'],
  [11, 'send drops'],
];

/** Counters of packets that the node itself refuses: missing routes, reverse path filter, MTU. */
const REFUSALS =
  /^(Ip (InAddrErrors|OutNoRoutes|OutDiscards|InDiscards|FragFails)|IpExt InNoRoutes|TcpExt IPReversePathFilter|Ip6(In|Out)(NoRoutes|Discards|TooBigErrors|AddrErrors))$/;

/** @param dev - /proc/net/dev */
export function linkCounters(dev: string): Counters {
  const lines = dev.split('\n').flatMap((line): [string, bigint][] => {
    const [, name, values = ''] = /^\s*(\S+):\s*(.*)$/.exec(line) ?? [];
    if (name === undefined) return [];
    const numbers = values.trim().split(/\s+/);
    return COLUMNS.map(([column, about]) => [`${name} ${about}`, BigInt(numbers[column] ?? 0)]);
  });
  return new Map(lines);
}

/** @param pairs - /proc/net/snmp or /proc/net/netstat: a line of names, and a line of values */
export function protocolCounters(pairs: string): Counters {
  const found = new Map<string, bigint>();
  let names: readonly string[] = [];
  for (const line of pairs.split('\n')) {
    const [head = '', ...rest] = line.trim().split(/\s+/);
    const isValues = names[0] === head && /^-?\d+$/.test(rest[0] ?? '');
    if (isValues) for (const [at, value] of rest.entries()) add(found, `${head.slice(0, -1)} ${names[at + 1]}`, value);
    names = [head, ...rest];
  }
  return found;
}

/** @param lines - /proc/net/snmp6: a name and a value in each line */
export function ipv6Counters(lines: string): Counters {
  const found = new Map<string, bigint>();
  for (const line of lines.split('\n')) {
    const [name = '', value = ''] = line.trim().split(/\s+/);
    if (/^\d+$/.test(value)) add(found, name, value);
  }
  return found;
}

function add(counters: Map<string, bigint>, name: string, value: string): void {
  if (REFUSALS.test(name)) counters.set(name, BigInt(value));
}

/** Changes, sorted by name, without the interfaces of other pods. @param ownInterfaces - pods' interfaces to include */
export function counterChanges(
  before: Counters,
  after: Counters,
  ownInterfaces: ReadonlySet<string>,
): readonly CounterChange[] {
  return [...after]
    .flatMap(([name, value]) => {
      const earlier = before.get(name) ?? 0n;
      const [link = ''] = name.split(' ');
      const isOfOtherPod = link.startsWith('podw') && !ownInterfaces.has(link);
      return earlier === value || isOfOtherPod ? [] : { name, before: earlier, after: value };
    })
    .sort((a, b) => (a.name < b.name ? -1 : 1));
}
