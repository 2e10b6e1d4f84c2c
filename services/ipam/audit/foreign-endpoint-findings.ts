import { formatAddress } from '@podwire/shared/net/address';
import { ordinalOf, type Prefix } from '@podwire/shared/net/prefix';

import { releaseHeld } from '../blocks/release-changes.js';
import { attachmentOf, isUnattached, type AllocationAttributes } from '../records/attributes.js';
import type { HeldAddress } from '../records/block.js';
import { formatEndpointKey } from '../records/endpoint.js';
import type { Change, StoredForeignEndpoint } from '../records/view.js';
import { expectBlock, type Judging } from './context.js';
import { addressFault, standingOf, type Standing } from './endpoint-findings.js';
import { makeFinding, named, noRemedy, type Finding, type FindingKind, type Remedy } from './finding.js';

/** An address of an endpoint, and where it stands in the blocks. */
interface Placed {
  readonly address: Prefix;
  readonly standing: Standing;
}

interface Fault {
  readonly kind: FindingKind;
  readonly reason: string;
}

/**
 * Faults of another writer's endpoint. Its container may still run, and its writer does not learn of a repair. So it is
 * removed only when releases are requested, and only when its container holds none of the addresses that it names.
 */
export function judgeForeignEndpoint(judging: Judging, endpoint: StoredForeignEndpoint): Finding[] {
  const { key, value } = endpoint;
  const places = value.addresses.map((address) => ({ address, standing: standingOf(judging, address) }));
  const name = formatEndpointKey(key);
  const addresses = places.flatMap(({ address, standing }) => {
    const fault = faultOf(endpoint, standing);
    if (!fault) return [];
    const explanation = `endpoint ${name} uses ${formatAddress(address)}, ${fault.reason}`;
    const remedy = fault.kind === 'addressOutsidePools' ? KEPT : removalOf(endpoint, places);
    return [addressFault(fault.kind, { endpoint, address, explanation, remedy })];
  });
  if (!judging.isGone(value.nodeName)) return addresses;
  const explanation = `endpoint ${name} is on node ${value.nodeName}, which is gone`;
  const objects = [named.endpoint(key), named.node(value.nodeName)] as const;
  const subject = { type: 'endpoint', key } as const;
  const remedy = removalWithAddresses(judging, endpoint, places);
  return [...addresses, makeFinding({ kind: 'endpointOfGoneNode', subject, objects, explanation, remedy })];
}

const KEPT = noRemedy('the endpoint is another writer’s; replace its container');

function faultOf(endpoint: StoredForeignEndpoint, standing: Standing): Fault | undefined {
  switch (standing.state) {
    case 'unknown':
      return undefined;
    case 'outside':
      return { kind: 'addressOutsidePools', reason: 'which is in no pool' };
    case 'noBlock':
    case 'free':
      return {
        kind: 'addressUnallocated',
        reason: 'which is not allocated, so another container may get it',
      };
    case 'held': {
      const { handleId: handle } = standing.attributes;
      if (isItsOwn(endpoint, standing.attributes)) return undefined;
      return { kind: 'addressOfSeveralOwners', reason: `which is allocated to handle ${handle ?? 'none'}` };
    }
  }
}

/**
 * Calico's attributes do not name the container's interface, and those of a virtual machine do not name a container.
 */
function isItsOwn({ key, value }: StoredForeignEndpoint, attributes: AllocationAttributes): boolean {
  const { owner } = attributes;
  const container = attachmentOf(attributes)?.containerId;
  const isOtherPod = owner.pod !== undefined && value.podName !== '' && owner.pod !== value.podName;
  const isOtherNamespace = owner.namespace !== undefined && owner.namespace !== key.namespace;
  const isOtherContainer = container !== undefined && container !== value.containerId;
  return !isOtherPod && !isOtherNamespace && !isOtherContainer;
}

function removalOf(endpoint: StoredForeignEndpoint, places: readonly Placed[]): Remedy {
  const isOver = places.every(({ standing }) => {
    const { state } = standing;
    return state === 'free' || state === 'noBlock' || (state === 'held' && !isItsOwn(endpoint, standing.attributes));
  });
  if (!isOver) return KEPT;
  return {
    type: 'release',
    effect: 'removes the endpoint, which names no address of its container',
    sinceMs: undefined,
    changes: () => [removal(endpoint), ...expected(places)],
  };
}

function removalWithAddresses(
  { view, nowMs }: Judging,
  endpoint: StoredForeignEndpoint,
  places: readonly Placed[],
): Remedy {
  const held = places.flatMap((place) => heldBy(endpoint, place));
  return {
    type: 'release',
    effect: `removes the endpoint, and gives back the addresses of its container (${held.length})`,
    sinceMs: undefined,
    changes: () => [...releaseHeld(view, held, nowMs), removal(endpoint), ...expected(places)],
  };
}

/** An address that Calico's plugin gave to the container of an endpoint. */
function heldBy(endpoint: StoredForeignEndpoint, { address, standing }: Placed): HeldAddress[] {
  if (standing.state !== 'held') return [];
  const { attributes, block } = standing;
  const isContainers = attributes.handleId?.endsWith(`.${endpoint.value.containerId}`) === true;
  if (!isUnattached(attributes) || !isContainers || !isItsOwn(endpoint, attributes)) return [];
  return [{ block, ordinal: ordinalOf(block.prefix, address), attributes }];
}

function removal({ key, value }: StoredForeignEndpoint): Change {
  return { type: 'delete', record: { kind: 'foreignEndpoint', key, value } };
}

/** The blocks have to be as they were seen. */
function expected(places: readonly Placed[]): Change[] {
  return places.flatMap(({ standing }) => ('block' in standing ? [expectBlock(standing.block)] : []));
}
