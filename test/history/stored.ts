import { addressOf } from '@podwire/ipam/records/block';
import { heldByHandle } from '@podwire/ipam/engine/testing/consistency';
import type { EtcdServer } from '@podwire/ipam/engine/testing/etcd-server';
import { heldAddressesIn } from '@podwire/ipam/records/block';
import { RecordKeys } from '@podwire/ipam/records/json/keys';
import { decodeRecord } from '@podwire/ipam/records/json/registry';
import { isLease } from '@podwire/ipam/records/lease';
import { TestView } from '@podwire/ipam/testing/test-view';
import { AuditRequest, AuditServiceService } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { formatAddress } from '@podwire/shared/net/address';

import type { ReplicaClient } from './replica.js';

/** Content of the datastore at the end. */

export const KEYS = new RecordKeys('/calico');

export function storedIn(etcd: EtcdServer): TestView {
  const view = new TestView();
  for (const [key, value] of etcd.dump(KEYS.root)) {
    const name = KEYS.parse(key);
    const record = name && decodeRecord(key, name, Buffer.from(value)).record;
    if (record) view.put(record);
  }
  return view;
}

/** The address of each handle of a container, as lines, sorted. */
export function boundIn(view: TestView): string[] {
  return lines(new Map([...heldByHandle(view)].filter(([handleId]) => !isLease({ handleId, owner: {} }))));
}

/** Lines like {@link boundIn}, of the callers' addresses. */
export function linesOf(held: ReadonlyMap<string, string>): string[] {
  return lines(new Map([...held].map(([containerId, address]) => [`net.${containerId}`, address])));
}

function lines(map: ReadonlyMap<string, string>): string[] {
  return [...map].map(([handle, address]) => `${handle} ${address}`).sort();
}

/** All unbound leases, each with its sequence number, sorted. */
export function leasesIn(view: TestView): string[] {
  return view
    .blocks()
    .flatMap((block) => heldAddressesIn(block, isLease))
    .map((held) => `${formatAddress(addressOf(held))}#${held.block.sequenceNumbers[held.ordinal]}`)
    .sort();
}

/** Findings of the audit of a replica. */
export async function findings({ peer }: ReplicaClient): Promise<string[]> {
  const request = { ...AuditRequest.create(), pageSize: 1000 };
  const answer = await peer.call(AuditServiceService.audit, request, { deadlineMs: Date.now() + 30_000 });
  return answer.findings.map(({ explanation }) => explanation);
}
