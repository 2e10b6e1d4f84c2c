import { BlockServiceService } from '@podwire/proto/podwire/ipam/v1/block';
import { GetHandleRequest, HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import { HistoryServiceService, type Tenure } from '@podwire/proto/podwire/ipam/v1/history';
import { AuditRequest, AuditServiceService } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';

/** Longer than any call takes on a busy machine, in milliseconds. */
const CALL_TIMEOUT_MS = 60_000;

const PAGE = { pageSize: 1000, pageToken: '' };

/** Handle of a node's unbound leases. */
const leaseHandle = (nodeName: string): string => `podwire-lease.${nodeName}`;

type Method<Request, Response> = Parameters<typeof Peer.prototype.call<Request, Response>>[0];

/** Calls a method once, on a connection of its own, as another program does. @throws Failure of the service */
export async function callIpam<Request, Response>(
  socket: string,
  method: Method<Request, Response>,
  request: Request,
): Promise<Response> {
  const peer = new Peer('podwire-ipam', `unix:${socket}`);
  try {
    return await peer.call(method, request, { deadlineMs: Date.now() + CALL_TIMEOUT_MS });
  } finally {
    peer.close();
  }
}

/** The failure of a call. @throws Error if it succeeds */
export async function failureOf(calling: Promise<unknown>): Promise<Failure> {
  try {
    await calling;
  } catch (error) {
    if (error instanceof Failure) return error;
    throw error;
  }
  throw new Error('the call succeeded');
}

/** Every allocated address with its handle, as lines, sorted; unbound leases are left out. */
export async function storedAddresses(socket: string): Promise<string[]> {
  const request = { ...PAGE, poolName: '', nodeName: '' };
  const { blocks } = await callIpam(socket, BlockServiceService.listBlocks, request);
  return blocks
    .flatMap(({ allocations }) => allocations)
    .filter(({ handleId }) => !handleId.startsWith(leaseHandle('')))
    .map(({ handleId, address }) => `${handleId} ${address}`)
    .sort();
}

/** The unbound leases of a node, sorted. */
export async function storedLeases(socket: string, nodeName: string): Promise<string[]> {
  const request = GetHandleRequest.fromPartial({ ...PAGE, handleId: leaseHandle(nodeName) });
  try {
    const { addresses } = await callIpam(socket, HandleServiceService.getHandle, request);
    return addresses.map(({ address }) => address).sort();
  } catch (error) {
    if (error instanceof Failure && error.code === 'HANDLE_NOT_FOUND') return [];
    throw error;
  }
}

/** Findings of an audit, as texts. */
export async function findings(socket: string): Promise<string[]> {
  const answer = await callIpam(socket, AuditServiceService.audit, AuditRequest.fromPartial(PAGE));
  return answer.findings.map(({ explanation }) => explanation);
}

/** The holders of an address, the earliest first. */
export async function tenuresOf(socket: string, address: string): Promise<Tenure[]> {
  const subject = { $case: 'address', value: address } as const;
  const request = { ...PAGE, subject, from: undefined, until: undefined };
  const { tenures } = await callIpam(socket, HistoryServiceService.getAddressHistory, request);
  const begin = ({ allocateTime }: Tenure) => allocateTime?.getTime() ?? 0;
  const end = ({ releaseTime }: Tenure) => releaseTime?.getTime() ?? Number.POSITIVE_INFINITY;
  return tenures.toSorted((a, b) => begin(a) - begin(b) || end(a) - end(b));
}
