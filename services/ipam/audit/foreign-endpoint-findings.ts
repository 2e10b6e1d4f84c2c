import { formatAddress } from '@podwire/shared/net/address';
import { ordinalOf, type Prefix } from '@podwire/shared/net/prefix';

import { releaseHeld } from '../blocks/release-changes.js';
import { expectBlock } from '../records/absence.js';
import { attachmentOf, isUnattached, type AllocationAttributes } from '../records/attributes.js';
import type { HeldAddress } from '../records/block.js';
import { formatEndpointKey } from '../records/endpoint.js';
import type { Change, StoredForeignEndpoint, View } from '../records/view.js';
import type { AuditContext } from './context.js';
import { addressFinding, allocationStateOf, type AllocationState } from './endpoint-findings.js';
import { makeFinding, objectOf, noRemedy, type Finding, type FindingKind, type Remedy } from './finding.js';

/** An address of an endpoint, with its state in the blocks. */
interface EndpointAddressState {
  readonly address: Prefix;
  readonly allocation: AllocationState;
}

interface Fault {
  readonly kind: FindingKind;
  readonly reason: string;
}

/**
 * Faults of another writer's endpoint. Its container may still run, and its writer does not learn of a repair. So it is
 * removed only when releases are requested, and only when its container holds none of the addresses that it names.
 */
export function findForeignEndpointFaults(context: AuditContext, endpoint: StoredForeignEndpoint): Finding[] {
  const { key, value } = endpoint;
  const states = value.addresses.map((address) => ({ address, allocation: allocationStateOf(context, address) }));
  const name = formatEndpointKey(key);
  const addresses = states.flatMap(({ address, allocation }) => {
    const fault = faultOf(endpoint, allocation);
    // Addresses of another IPAM plugin are in no pool.
    if (!fault || (fault.kind === 'addressOutsidePools' && value.network !== undefined)) return [];
    const explanation = `endpoint ${name} uses ${formatAddress(address)}, ${fault.reason}`;
    const remedy = fault.kind === 'addressOutsidePools' ? NO_REMEDY : removalRemedy(context, endpoint, states);
    return [addressFinding(fault.kind, { endpoint, address, explanation, remedy })];
  });
  if (!context.isNodeGone(value.nodeName)) return addresses;
  const explanation = `endpoint ${name} is on node ${value.nodeName}, which is gone`;
  const objects = [objectOf.endpoint(key), objectOf.node(value.nodeName)] as const;
  const subject = { type: 'endpoint', key } as const;
  const remedy = removalRemedyWithAddresses(context, endpoint, states);
  return [...addresses, makeFinding({ kind: 'endpointOfGoneNode', subject, objects, explanation, remedy })];
}

const NO_REMEDY = noRemedy('another program wrote the endpoint; replace its container');

function faultOf(endpoint: StoredForeignEndpoint, allocation: AllocationState): Fault | undefined {
  switch (allocation.state) {
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
      const { handleId: handle } = allocation.attributes;
      if (isOwnAddress(endpoint, allocation.attributes)) return undefined;
      return { kind: 'addressOfSeveralOwners', reason: `which is allocated to handle ${handle ?? 'none'}` };
    }
  }
}

/**
 * Calico's attributes do not name the container's interface, and a virtual machine's do not name a container.
 */
function isOwnAddress({ key, value }: StoredForeignEndpoint, attributes: AllocationAttributes): boolean {
  const { owner } = attributes;
  const container = attachmentOf(attributes)?.containerId;
  const isOtherPod = owner.pod !== undefined && value.podName !== '' && owner.pod !== value.podName;
  const isOtherNamespace = owner.namespace !== undefined && owner.namespace !== key.namespace;
  const isOtherContainer = container !== undefined && container !== value.containerId;
  return !isOtherPod && !isOtherNamespace && !isOtherContainer;
}

function removalRemedy(
  { view }: AuditContext,
  endpoint: StoredForeignEndpoint,
  states: readonly EndpointAddressState[],
): Remedy {
  const holdsNone = states.every(({ allocation }) => {
    const { state } = allocation;
    return (
      state === 'free' || state === 'noBlock' || (state === 'held' && !isOwnAddress(endpoint, allocation.attributes))
    );
  });
  if (!holdsNone) return NO_REMEDY;
  return {
    type: 'release',
    effect: 'removes the endpoint, which names no address of its container',
    sinceMs: undefined,
    changes: () => [removalChange(endpoint), ...blockExpectations(view, states)],
  };
}

function removalRemedyWithAddresses(
  { view, nowMs }: AuditContext,
  endpoint: StoredForeignEndpoint,
  states: readonly EndpointAddressState[],
): Remedy {
  const held = states.flatMap((state) => heldByContainer(endpoint, state));
  return {
    type: 'release',
    effect: `removes the endpoint and releases the addresses of its container (${held.length})`,
    sinceMs: undefined,
    changes: () => [...releaseHeld(view, held, nowMs), removalChange(endpoint), ...blockExpectations(view, states)],
  };
}

/** The address, if Calico's plugin allocated it to the container of the endpoint. */
function heldByContainer(
  endpoint: StoredForeignEndpoint,
  { address, allocation }: EndpointAddressState,
): HeldAddress[] {
  if (allocation.state !== 'held') return [];
  const { attributes, block } = allocation;
  const isContainers = attributes.handleId?.endsWith(`.${endpoint.value.containerId}`) === true;
  if (!isUnattached(attributes) || !isContainers || !isOwnAddress(endpoint, attributes)) return [];
  return [{ block, ordinal: ordinalOf(block.prefix, address), attributes }];
}

function removalChange({ key, value }: StoredForeignEndpoint): Change {
  return { type: 'delete', record: { kind: 'foreignEndpoint', key, value } };
}

/** Requires that the blocks have not changed. */
function blockExpectations(view: View, states: readonly EndpointAddressState[]): Change[] {
  return states.flatMap(({ allocation }) => ('block' in allocation ? expectBlock(view, allocation.block.prefix) : []));
}
