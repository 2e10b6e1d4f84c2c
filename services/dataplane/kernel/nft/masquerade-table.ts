import type { Masquerade } from '../../filters/masquerade.js';
import {
  ADDRESS_TYPE,
  match,
  meta,
  payload,
  prefixJson,
  PROTOCOL,
  type JsonObject,
  type NftSet,
  type NftTable,
  type TableName,
} from '../../filters/table.js';

const SOURCES = 'nat_sources';
const EXEMPT = 'nat_exempt';

/** Protocol numbers (IANA): their names are known only where /etc/protocols is. */
const TCP = 6;
const UDP = 17;

/** NF_IP_PRI_NAT_SRC: where source addresses are translated. */
const SOURCE_NAT_PRIORITY = 100;

/** The table that masquerades packets of a family. One for each, as kernels before 5.2 translate no addresses in `inet` tables. */
export function masqueradeTableName(family: Masquerade['family']): TableName {
  return { family: PROTOCOL[family], name: 'podwire' };
}

/**
 * The table that carries out a plan:
 *
 *     ip saddr @nat_sources ip daddr != @nat_exempt [oifname NAME] [meta l4proto { tcp, udp }] masquerade [to :PORTS] fully-random
 *
 * Ports are chosen at random: choosing the next free one drops packets when two flows of one pod are translated at once, as
 * happens to the two queries of a resolver.
 */
export function masqueradeTable(plan: Masquerade): NftTable {
  const protocol = PROTOCOL[plan.family];
  const base = [
    match(payload(protocol, 'saddr'), '==', `@${SOURCES}`),
    match(payload(protocol, 'daddr'), '!=', `@${EXEMPT}`),
  ];
  const outgoing: readonly (readonly JsonObject[])[] =
    plan.interfaces.length === 0 ? [[]] : plan.interfaces.map((name) => [match(meta('oifname'), '==', name)]);
  const rules = outgoing.flatMap((by) => endings(plan).map((ending) => [...base, ...by, ...ending]));
  return {
    ...masqueradeTableName(plan.family),
    sets: [set(plan, SOURCES), set(plan, EXEMPT)],
    chains: [
      {
        name: 'nat_postrouting',
        hook: { type: 'nat', name: 'postrouting', priority: SOURCE_NAT_PRIORITY },
        rules,
      },
    ],
  };
}

function set({ family, sources, exempt }: Masquerade, name: typeof SOURCES | typeof EXEMPT): NftSet {
  const elements = (name === SOURCES ? sources : exempt).map(prefixJson);
  return { name, type: ADDRESS_TYPE[family], interval: true, elements };
}

/** What packets end with that all else applies to: those with ports first, when ports are restricted. */
function endings({ ports }: Masquerade): readonly (readonly JsonObject[])[] {
  const masquerade = (to: JsonObject): JsonObject => ({
    masquerade: { ...to, flags: 'fully-random' },
  });
  const any = [masquerade({})];
  if (!ports) return [any];
  const withPorts = match(meta('l4proto'), '==', { set: [TCP, UDP] });
  const port = ports.first === ports.last ? ports.first : { range: [ports.first, ports.last] };
  return [[withPorts, masquerade({ port })], any];
}
