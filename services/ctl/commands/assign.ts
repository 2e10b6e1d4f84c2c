import {
  AddressServiceService,
  AddressState,
  AssignAddressesRequest,
  type GetAddressResponse,
} from '@podwire/proto/podwire/ipam/v1/address';
import { AddressUse } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context } from '../clients/services.js';
import { ADDRESS, LABEL, oneOf, text } from '../command-line/forms.js';
import { previewReport, YES } from '../command-line/options.js';
import { argument, option, repeatedOption, type Input, type Verb } from '../command-line/verb.js';
import { FAILED, sentence, type Report, type Table } from '../output/report.js';
import { wordOf } from '../output/words.js';

const ADDRESSES = argument(ADDRESS, 'the addresses to assign; all of them are assigned, or none', 'repeated');
const HANDLE = option('--handle', text('HANDLE'), 'the handle that gets the addresses, new or existing (required)');
const NODE = option(
  '--node',
  text('NODE', 'nodes'),
  'the node that the addresses are for (required, except with --use=load-balancer)',
);
const USE = option(
  '--use',
  oneOf({
    workload: AddressUse.ADDRESS_USE_WORKLOAD,
    'load-balancer': AddressUse.ADDRESS_USE_LOAD_BALANCER,
  }),
  'the use, which the pools of the addresses must allow (workload)',
);
const ATTRIBUTE = repeatedOption('--attribute', LABEL, 'an attribute of the owner, such as note=printer');

export const ipamAssign: Verb = {
  name: 'ipam assign',
  about: 'assign addresses to a handle that is not a container’s, such as a load balancer’s',
  details:
    'The addresses stay allocated until "delete handle" or "release address" releases them. Reservations and the selectors of\n' +
    'pools do not apply. "audit" reports an address whose attributes name a pod without an endpoint as unused.',
  positionals: [ADDRESSES],
  options: [HANDLE, NODE, USE, ATTRIBUTE],
  flags: [YES],
  examples: [
    'ipam assign 10.65.0.7 --handle=printer --node=node-1 --attribute note=printer',
    'ipam assign 10.65.0.8 fd65::8 --handle=lb-1 --use=load-balancer',
  ],
  run: async (input, context) => {
    const request = requestOf(input);
    const execute = () => assign(request, context);
    return input.has(YES) ? execute() : preview(request, input.toCommandLine(), execute, context);
  },
};

/** @throws Failure INVALID_REQUEST */
function requestOf(input: Input): AssignAddressesRequest {
  const [handleId, nodeName, use = AddressUse.ADDRESS_USE_WORKLOAD] = [
    input.get(HANDLE),
    input.get(NODE),
    input.get(USE),
  ];
  if (handleId === undefined) throw new Failure('INVALID_REQUEST', 'ipam assign: requires --handle');
  if ((nodeName === undefined) !== (use === AddressUse.ADDRESS_USE_LOAD_BALANCER))
    throw new Failure('INVALID_REQUEST', 'ipam assign: requires --node or --use=load-balancer, and not both');
  return AssignAddressesRequest.fromPartial({
    handleId,
    use,
    ...(nodeName !== undefined && { nodeName }),
    addresses: input.rest(ADDRESSES),
    attributes: Object.fromEntries(input.all(ATTRIBUTE).map(({ key, value }) => [key, value])),
  });
}

/** @param command - the command line that assigns the addresses, once `--yes` is added */
async function preview(
  { addresses, handleId, nodeName }: AssignAddressesRequest,
  command: string,
  execute: () => Promise<Report>,
  { ipam, json }: Context,
): Promise<Report> {
  const { getAddress } = AddressServiceService;
  const found = await Promise.all(
    addresses.map(async (address) => ({ address, answer: await ipam.call(getAddress, { address }) })),
  );
  const data = (): ReturnType<Report['data']> => found.map(({ answer }) => json.of(getAddress, answer));
  const table: Table = {
    kind: 'table',
    columns: ['ADDRESS', 'STATE', 'POOL', 'HANDLE'],
    rows: found.map(({ address, answer: { state, poolName, holder } }) => [
      address,
      wordOf(AddressState[state], 'ADDRESS_STATE_'),
      poolName,
      holder?.handleId ?? '',
    ]),
    none: '',
  };
  if (!found.every(({ answer }) => isAssignable(answer, handleId))) {
    const reason = `no address is assigned: each must lie in a pool, and be free, reserved or already of handle ${handleId}`;
    return { sections: [sentence(reason), table], data, exitCode: FAILED };
  }
  const place = nodeName === '' ? 'for load balancers' : `on node ${nodeName}`;
  const sections = [sentence(`These addresses would be assigned to handle ${handleId} ${place}:`), table];
  return previewReport({ sections, data }, command, execute);
}

function isAssignable({ state, holder }: GetAddressResponse, handleId: string): boolean {
  if (holder) return holder.handleId === handleId;
  return state === AddressState.ADDRESS_STATE_FREE || state === AddressState.ADDRESS_STATE_RESERVED;
}

async function assign(request: AssignAddressesRequest, { ipam, json }: Context): Promise<Report> {
  const answer = await ipam.call(AddressServiceService.assignAddresses, request);
  const table: Table = {
    kind: 'table',
    columns: ['ADDRESS', 'RESULT', 'POOL', { right: 'SEQUENCE' }, 'HANDLE'],
    rows: answer.addresses.map(({ address, poolName, sequenceNumber, alreadyHeld }) => {
      const result = alreadyHeld ? 'already assigned' : 'assigned';
      return [address.replace(/\/\d+$/, ''), result, poolName, String(sequenceNumber), request.handleId];
    }),
    none: 'addresses: none',
  };
  return { sections: [table], data: () => json.of(AddressServiceService.assignAddresses, answer) };
}
