import { readFile } from 'node:fs/promises';

import type { Counter } from '@podwire/proto/podwire/dataplane/v1/probe';

/** Counters by name: `eth0 sent`, `Ip OutNoRoutes`. */
export type Counters = ReadonlyMap<string, bigint>;

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

/** Counters of this process's namespace, which is the node's. */
export async function readCounters(): Promise<Counters> {
  const read = (name: string): Promise<string> => readFile(`/proc/net/${name}`, 'utf8').catch(() => '');
  return parseCounters((await Promise.all(['dev', 'snmp', 'netstat', 'snmp6'].map(read))).join('\n'));
}

/** @param files - /proc/net/dev, snmp, netstat and snmp6 */
export function parseCounters(files: string): Counters {
  const counters = new Map<string, bigint>();
  let names: readonly string[] = [];
  for (const line of files.split('\n')) {
    const words = line.trim().split(/[:\s]+/);
    const isValues = words.length > 1 && words.slice(1).every((word) => /^-?\d+$/.test(word));
    for (const [name, value] of isValues ? valuesOf(words, names) : []) counters.set(name, BigInt(value));
    names = words;
  }
  return counters;
}

/** @param names - the line before: in snmp and netstat, the names of the values */
function valuesOf([head = '', ...values]: readonly string[], names: readonly string[]): [string, string][] {
  if (names[0] !== head && values.length > 1)
    return COLUMNS.map(([column, about]) => [`${head} ${about}`, values[column] ?? '0']);
  return values
    .map((value, at): [string, string] => [values.length === 1 ? head : `${head} ${names[at + 1]}`, value])
    .filter(([name]) => REFUSALS.test(name));
}

/** Changes, sorted by name, without the interfaces of other pods. @param ownInterfaces - pods' interfaces to include */
export function counterChanges(before: Counters, after: Counters, ownInterfaces: ReadonlySet<string>): Counter[] {
  return [...after]
    .flatMap(([name, value]) => {
      const earlier = before.get(name) ?? 0n;
      const [link = ''] = name.split(' ');
      const isOfOtherPod = link.startsWith('podw') && !ownInterfaces.has(link);
      return earlier === value || isOfOtherPod ? [] : { name, before: earlier, after: value };
    })
    .sort((a, b) => (a.name < b.name ? -1 : 1));
}
