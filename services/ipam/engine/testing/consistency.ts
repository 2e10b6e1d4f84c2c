import { addressAt, formatPrefix, hostPrefix, prefixContains, prefixesOverlap } from '@podwire/shared/net/prefix';

import { recordedEndpoint } from '../../records/derived-endpoint.js';
import { attachmentOf, belongsTo, holderOf } from '../../records/attributes.js';
import { attributesAt, ordinalsWhere, validateBlock, type Block } from '../../records/block.js';
import { endpointKey, type Endpoint } from '../../records/endpoint.js';
import type { RecordKeys } from '../../records/json/keys.js';
import { decodeRecord } from '../../records/json/registry.js';
import { TestView } from '../../testing/test-view.js';
import type { Store } from '../store.js';

/** Every record of a store. */
export async function readAll(store: Store, keys: RecordKeys): Promise<TestView> {
  const { records } = await store.list(keys.root, new AbortController().signal);
  const view = new TestView();
  for (const { key, value } of records) {
    const name = keys.parse(key);
    const record = name && decodeRecord(key, name, value).record;
    if (record) view.put(record);
  }
  return view;
}

/** Number of addresses that are held. */
export function countHeld(view: TestView): number {
  return view
    .blocks()
    .reduce((sum, block) => sum + ordinalsWhere(block, ({ handleId }) => handleId !== undefined).length, 0);
}

/** The address that each handle has, as a CIDR of full length; its last where there are several. */
export function heldByHandle(view: TestView): ReadonlyMap<string, string> {
  const held = new Map<string, string>();
  for (const block of view.blocks()) {
    block.allocations.forEach((_, ordinal) => {
      const handleId = attributesAt(block, ordinal)?.handleId;
      if (handleId !== undefined) held.set(handleId, formatPrefix(hostPrefix(addressAt(block.prefix, ordinal))));
    });
  }
  return held;
}

/** Every violation of I1–I3, P1 or P2 of DESIGN.md in the records, one line each. Reads everything, in the obvious way. */
export function inconsistencies(view: TestView, nowMs: number): string[] {
  return [
    ...poolFaults(view),
    ...blockFaults(view, nowMs),
    ...affinityFaults(view),
    ...handleFaults(view),
    ...endpointFaults(view),
  ];
}

function poolFaults(view: TestView): string[] {
  const pools = view.pools();
  return pools.flatMap((pool) =>
    pools
      .filter((other) => other.name > pool.name && prefixesOverlap(other.prefix, pool.prefix))
      .map((other) => `pools ${pool.name} and ${other.name} overlap`),
  );
}

function blockFaults(view: TestView, nowMs: number): string[] {
  const blocks = view.blocks();
  return blocks.flatMap((block) => {
    const name = `block ${formatPrefix(block.prefix)}`;
    const pool = view.pools().find(({ prefix }) => prefixContains(prefix, block.prefix));
    const affinity = block.owner && view.affinity(block.owner, block.prefix);
    return [
      ...validateBlock(block, nowMs),
      ...(pool?.blockSizeBits === block.prefix.length ? [] : [`${name} is in no pool of its size`]),
      ...(!block.owner || affinity?.state === 'confirmed' ? [] : [`${name} has no confirmed affinity`]),
      ...blocks
        .filter((other) => other !== block && prefixesOverlap(other.prefix, block.prefix))
        .map((other) => `${name} overlaps ${formatPrefix(other.prefix)}`),
      ...heldIn(block)
        .filter(({ key, attachment }) => !recordedEndpoint(view, key, attachment))
        .map(({ address }) => `${formatPrefix(address)} is held without an endpoint`),
    ];
  });
}

/** Addresses of containers. Tunnels and other holders without an attachment have no endpoint. */
function heldIn(block: Block) {
  return block.allocations.flatMap((_, ordinal) => {
    const attributes = attributesAt(block, ordinal);
    const attachment = attributes && attachmentOf(attributes);
    if (!attachment) return [];
    const key = endpointKey({ attachment, ...holderOf(attributes) });
    return [{ address: hostPrefix(addressAt(block.prefix, ordinal)), key, attachment }];
  });
}

function affinityFaults(view: TestView): string[] {
  return view.all('affinity').flatMap(({ value: { owner, block } }) => {
    const actual = view.block(block)?.owner;
    const named = actual?.kind === owner.kind && actual.name === owner.name;
    return named ? [] : [`the affinity of ${owner.name} for ${formatPrefix(block)} has no block of its name`];
  });
}

function handleFaults(view: TestView): string[] {
  const counted = new Map<string, number>();
  for (const block of view.blocks()) {
    for (const index of block.allocations) {
      const id = index === null ? undefined : block.attributes[index]?.handleId;
      const entry = `${id} ${formatPrefix(block.prefix)}`;
      if (id !== undefined) counted.set(entry, (counted.get(entry) ?? 0) + 1);
    }
  }
  const stored = new Map<string, number>(
    view
      .all('handle')
      .flatMap(({ value: { id, blocks } }) => [...blocks].map(([cidr, count]) => [`${id} ${cidr}`, count] as const)),
  );
  return [...new Set([...counted.keys(), ...stored.keys()])]
    .filter((entry) => counted.get(entry) !== stored.get(entry))
    .map((entry) => `handle ${entry}: ${stored.get(entry) ?? 0} stored, ${counted.get(entry) ?? 0} counted`);
}

function endpointFaults(view: TestView): string[] {
  const recorded = view.all('endpoint').flatMap(({ key, value }) => {
    const replaced = (value.replaced ?? []).flatMap((one) => (one.kind === 'endpoint' ? [one.value] : []));
    return [value, ...replaced].map((each) => ({ key, value: each }));
  });
  return recorded.flatMap(({ key, value }) => {
    const held = heldBy(view, value);
    const named = value.addresses.map(({ address, sequenceNumber }) => `${formatPrefix(address)} ${sequenceNumber}`);
    const same = held.length === named.length && held.every((address) => named.includes(address));
    return same ? [] : [`endpoint ${key.name} names ${named.join(', ')} and holds ${held.join(', ')}`];
  });
}

function heldBy(view: TestView, { attachment }: Endpoint): string[] {
  return view.blocks().flatMap((block) =>
    ordinalsWhere(block, belongsTo(attachment)).map((ordinal) => {
      const address = hostPrefix(addressAt(block.prefix, ordinal));
      return `${formatPrefix(address)} ${block.sequenceNumbers[ordinal]}`;
    }),
  );
}
