import type {
  LeaseServiceService,
  AllocationName as NameMessage,
  NodeSession as SessionMessage,
  OpenSessionRequest,
} from '@podwire/proto/podwire/ipam/v1/lease';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import type { Handlers } from '@podwire/shared/rpc/unary';

import { checkUuid, readAddress } from '../messages/parts.js';
import { subdomainFault } from '../records/names.js';
import type { AllocationName } from './bindings.js';
import type { Leases } from './leases-operations.js';
import type { SessionName, SessionRequest } from './session.js';

export function openSessionHandler(leases: Leases): Handlers<LeaseServiceService>['openSession'] {
  return async (message, { signal }) => {
    const { isOpened, generation, revision } = await leases.openSession(readSessionRequest(message), signal);
    return { opened: isOpened, generation: BigInt(generation), revision: BigInt(revision) };
  };
}

function readSessionRequest(message: OpenSessionRequest): SessionRequest {
  const { nodeName, machineId, bootId, expectedGeneration, nodeAddress } = message;
  return readChecked('OpenSession', (checks) => {
    checks.check('node_name', subdomainFault(nodeName));
    checkUuid('machine_id', machineId, checks);
    checkUuid('boot_id', bootId, checks);
    if (nodeAddress !== '') readAddress('node_address', nodeAddress, checks);
    return {
      nodeName,
      machineId,
      bootId,
      expectedGeneration: readInteger('expected_generation', expectedGeneration, checks),
      last: message.last && readSessionName('last', message.last, checks),
      address: nodeAddress,
    };
  });
}

/** Reads the session that a call must name. */
export function readSession(message: SessionMessage | undefined, checks: Checks): SessionName {
  if (message) return readSessionName('session', message, checks);
  checks.check('session', 'is missing');
  return { bootId: '', generation: 0, revision: 0 };
}

function readSessionName(field: string, { bootId, generation, revision }: SessionMessage, checks: Checks): SessionName {
  checkUuid(`${field}.boot_id`, bootId, checks);
  return {
    bootId,
    generation: readInteger(`${field}.generation`, generation, checks),
    revision: readInteger(`${field}.revision`, revision, checks),
  };
}

function readInteger(field: string, value: bigint, checks: Checks): number {
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) checks.check(field, `is ${value}; must be at most 2^53 - 1`);
  return Number(value);
}

export function readName(field: string, { address, sequenceNumber }: NameMessage, checks: Checks): AllocationName {
  return { address: readAddress(`${field}.address`, address, checks), sequenceNumber };
}
