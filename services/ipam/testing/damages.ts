import { formatPrefix } from '@podwire/shared/net/prefix';

import { blockAt, healthyView } from '../allocator/audit/audit.fixture.js';
import type { Node, TunnelKind } from '../allocator/records.js';
import type { FindingKind } from '../audit/finding.js';
import type { MapView } from '../records/testing/map-view.js';
import { prefix } from './records.js';

/** One way in which a healthy view can be damaged, and what of it the audit is to find. */
export interface Damage {
  readonly name: string;
  readonly kind: FindingKind;
  /** What the finding is about. */
  readonly of: string;
  /** Damages a healthy view of two pools. */
  readonly damage: (view: MapView) => void;
  /** Other findings that the damage brings along, as `kind object`. */
  readonly besides?: readonly string[];
  /** Whether a repair ends it. */
  readonly repaired: boolean;
  /** Held addresses that the repair gives back or, below 0, takes again; 0 unless said. */
  readonly released?: number;
}

/** The block of the first container's IPv4 address. */
function firstBlock(view: MapView): string {
  return formatPrefix(view.blocks()[0]!.prefix);
}

export function first(view: MapView) {
  return blockAt(view, firstBlock(view));
}

/** The node record that an allocation made. */
function anyNode(): Node {
  const [node] = healthyView().nodes();
  if (!node) throw new Error('allocations register their nodes');
  return node;
}

export function setNode(view: MapView, name: string, tunnels: readonly (readonly [TunnelKind, string])[] = []): void {
  const addresses = tunnels.map(([kind, cidr]) => [kind, { address: prefix(cidr) }] as const);
  view.put({ kind: 'node', value: { ...anyNode(), name, uid: `uid-${name}`, tunnels: new Map(addresses) } });
}

/** The IPv4 address of a container, of full length. */
function addressOf(view: MapView, containerId: string): string {
  const endpoint = view.endpoints().find(({ value }) => value.attachment.containerId === containerId);
  return formatPrefix(endpoint!.value.addresses[0]!.address);
}

function bare(view: MapView, containerId: string): string {
  return addressOf(view, containerId).replace('/32', '');
}

const HEALTHY = healthyView();
export const B1 = firstBlock(HEALTHY);
export const OF_C1 = bare(HEALTHY, 'c1');
export const IN_NO_BLOCK = '10.9.9.9';
