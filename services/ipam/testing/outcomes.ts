import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';
import { expect } from 'vitest';

import { tunnelHandleId } from '../records/node.js';
import type { Block } from '../records/block.js';
import type { Endpoint } from '../records/endpoint.js';
import type { TestView } from './test-view.js';

/** Outcomes of operations, for tests that compare runs of them. */

/** An answer, or the code of the refusal. A defect is neither. */
export async function answerOf(run: () => Promise<string>): Promise<string> {
  try {
    return await run();
  } catch (error) {
    if (!(error instanceof Failure) || error.code === 'INTERNAL') throw error;
    return error.code;
  }
}

/** The records without the numbers and times of their writes. */
export function meaningOf(view: TestView): string {
  return view
    .snapshot()
    .flatMap(([key, record]) => {
      switch (record.kind) {
        case 'block': {
          const { owner, allocations, unallocated, attributes } = record.value;
          const heldBy = (index: number): string =>
            `${attributes[index]?.handleId} ${attributes[index]?.owner.note ?? ''} ${attributes[index]?.alternateOwner?.pod ?? ''}`;
          const held = allocations.map((index) => (index === null ? null : heldBy(index)));
          return [`${key} ${owner?.name} ${held.join()} free ${unallocated.join()}`];
        }
        case 'affinity':
          return [`${key} ${record.value.state}`];
        case 'handle':
          return [`${key} ${JSON.stringify([...record.value.blocks].sort())}`];
        case 'endpoint':
          return [`${key} ${recordedIn(record.value)}`];
        case 'pool':
          return [`${key} ${record.value.disabled} ${record.value.deletionTimeMs !== undefined}`];
        case 'node':
          return [`${key} ${[...record.value.tunnels.values()].map(({ address }) => formatPrefix(address)).join()}`];
        case 'config':
          return [`${key} ${record.value.strictAffinity}`];
        case 'nodeSession':
          return [
            `${key} ${record.value.generation} ${record.value.leases.map(({ address }) => formatAddress(address)).join()}`,
          ];
        case 'storeEpoch':
        case 'reservation':
        case 'requestPolicies':
        case 'revokedCertificates':
        case 'clusterInformation':
        case 'foreignEndpoint':
          return [key];
      }
    })
    .join('\n');
}

/** Addresses of an endpoint, and of the endpoints that it replaced. */
function recordedIn({ attachment, addresses, replaced = [] }: Endpoint): string {
  const own = `${formatAttachment(attachment)} ${addresses.map(({ address }) => formatPrefix(address)).join()}`;
  const earlier = replaced.map((one) => (one.kind === 'endpoint' ? recordedIn(one.value) : one.value.containerId));
  return [own, ...earlier].join(' before ');
}

/** Every address that an endpoint names is held once. */
export function expectOwned(view: TestView, order: string): void {
  const named = view.endpoints().flatMap(({ value }) => value.addresses.map(({ address }) => formatPrefix(address)));
  expect(new Set(named).size, order).toBe(named.length);
  const held = view
    .blocks()
    .flatMap(({ prefix: cidr, allocations }) =>
      allocations.flatMap((index, ordinal) =>
        index === null ? [] : [formatPrefix(hostPrefix(addressAt(cidr, ordinal)))],
      ),
    );
  expect(new Set(held).size, order).toBe(held.length);
  expect(tunnelsIn(view), order).toEqual(tunnelsHeld(view));
  // Notes are for c1 only.
  const noted = view.blocks().flatMap(({ attributes }) => attributes.filter(({ owner }) => owner.note !== undefined));
  expect(new Set(['net.c1', ...noted.map(({ handleId }) => handleId)]), order).toEqual(new Set(['net.c1']));
}

/** The addresses of tunnels in the nodes' records. */
function tunnelsIn(view: TestView): string[] {
  return view
    .nodes()
    .flatMap(({ name, tunnels }) =>
      [...tunnels].map(([kind, { address }]) => `${formatPrefix(address)} ${tunnelHandleId(name, kind)}`),
    )
    .sort();
}

/** The addresses of tunnels in the blocks. */
function tunnelsHeld(view: TestView): string[] {
  const handleOf = ({ allocations, attributes }: Block, ordinal: number): string =>
    attributes[allocations[ordinal] ?? -1]?.handleId ?? '';
  return view
    .blocks()
    .flatMap((block) =>
      block.allocations.map(
        (_, ordinal) => `${formatPrefix(hostPrefix(addressAt(block.prefix, ordinal)))} ${handleOf(block, ordinal)}`,
      ),
    )
    .filter((text) => text.includes('tunnel-addr-'))
    .sort();
}
