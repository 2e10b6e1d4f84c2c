import {
  AddressServiceService,
  AddressState,
  type GetAddressResponse,
  type GetEndpointResponse,
} from '@podwire/proto/podwire/ipam/v1/address';
import {
  HistoryServiceService,
  type GetAddressHistoryResponse,
  type QueryAtResponse,
} from '@podwire/proto/podwire/ipam/v1/history';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context } from '../clients/services.js';
import {
  dateOf,
  MOMENT,
  podOfSubject,
  SUBJECT,
  SUBJECT_TEXT,
  wholeNumber,
  type PodName,
} from '../command-line/forms.js';
import { argument, option, type Verb } from '../command-line/verb.js';
import { DONE, NOT_FOUND, sentence, type Fields, type Report } from '../output/report.js';
import { attachmentOf, attachmentText, moment, momentAndAge, wordOf } from '../output/words.js';
import { NAMESPACE } from '../resources/reading.js';
import { NO_FILTER } from '../resources/resource.js';
import { listAllEndpoints, podText } from '../resources/workloadendpoint.js';
import { holderFields, tenureTable } from './history.js';

const SUBJECT_ARGUMENT = argument(SUBJECT, SUBJECT_TEXT, 'required');

const AT = option(
  '--at',
  MOMENT,
  'the owner at this time: 2026-05-04T12:30:00Z, or 30m for thirty minutes ago (current and earlier owners)',
);

const LIMIT = option(
  '--limit',
  wholeNumber('NUMBER', { min: 1, max: 1000 }),
  'maximum number of earlier owners (10). No effect with --at',
);
const DEFAULT_LIMIT = 10;

export const who: Verb = {
  name: 'who',
  about: 'the current owner of an address or of a pod’s addresses, its allocation, and earlier owners',
  details:
    'podwire-ipam keeps the history for PODWIRE_IPAM_HISTORY_HOURS. Exit code 3: the address has no owner, or the pod no address.',
  positionals: [SUBJECT_ARGUMENT],
  options: [AT, LIMIT, NAMESPACE],
  examples: ['who 10.65.0.7', 'who default/web-0', 'who 10.65.0.7 --at 2026-05-04T12:30:00Z', 'who fd65::7 --at 2h'],
  run: async (input, context) => {
    const subject = input.at(SUBJECT_ARGUMENT);
    const at = input.get(AT);
    const ownerOf = (address: string): Promise<Report> =>
      at === undefined
        ? currentOwner(address, input.get(LIMIT) ?? DEFAULT_LIMIT, context)
        : ownerAt(address, dateOf(at, context.clock.nowMs()), context);
    if ('address' in subject) return ownerOf(subject.address);
    return ownersOfPod(podOfSubject(subject, input.get(NAMESPACE)), ownerOf, context);
  },
};

async function ownersOfPod(
  { namespace, name: pod }: PodName,
  ownerOf: (address: string) => Promise<Report>,
  { ipam }: Context,
): Promise<Report> {
  const endpoints = await listAllEndpoints(ipam, { ...NO_FILTER, namespace, pod });
  const addresses = endpoints.flatMap((endpoint) => endpoint.addresses.map(({ address }) => address));
  if (addresses.length === 0) {
    const message = `pod ${namespace}/${pod} has no address; podwirectl history ${namespace}/${pod} shows earlier ones`;
    return { sections: [sentence(message)], data: () => [], exitCode: NOT_FOUND };
  }
  const reports = await Promise.all(addresses.map((address) => ownerOf(address.replace(/\/\d+$/, ''))));
  return {
    sections: reports.flatMap(({ sections }) => sections),
    hints: reports.flatMap(({ hints = [] }) => hints),
    data: () => reports.map(({ data }) => data()),
    exitCode: Math.max(DONE, ...reports.map(({ exitCode = DONE }) => exitCode)),
  };
}

async function ownerAt(address: string, time: Date, { ipam, json, clock }: Context): Promise<Report> {
  const answer = await ipam.call(HistoryServiceService.queryAt, { address, time });
  const data = (): ReturnType<Report['data']> => json.of(HistoryServiceService.queryAt, answer);
  const { tenure } = answer;
  if (!tenure) return { sections: [sentence(noOwnerText(address, time, answer))], data, exitCode: NOT_FOUND };
  const nowMs = clock.nowMs();
  const until = tenure.releaseTime === undefined ? 'still allocated' : momentAndAge(tenure.releaseTime, nowMs);
  const fields: Fields = {
    kind: 'fields',
    fields: [
      ['Address', address],
      ['At', moment(time)],
      ...holderFields(tenure),
      ['Block', tenure.blockCidr],
      ['Since', momentAndAge(tenure.allocateTime, nowMs)],
      ['Until', until],
    ],
  };
  return { sections: [fields], data };
}

function noOwnerText(address: string, time: Date, { covered }: QueryAtResponse): string {
  return covered
    ? `${address} had no owner at ${moment(time)}`
    : `owner of ${address} at ${moment(time)}: unknown, because the time is before the history begins`;
}

export async function currentOwner(address: string, pageSize: number, context: Context): Promise<Report> {
  const { ipam, json, clock } = context;
  const found = await ipam.call(AddressServiceService.getAddress, { address });
  const [endpoint, history] = await Promise.all([
    endpointOf(address, found, context),
    historyOf(address, pageSize, context),
  ]);
  const nowMs = clock.nowMs();
  const past = history?.tenures.filter(({ releaseTime }) => releaseTime !== undefined) ?? [];
  const isHeld = found.holder !== undefined || endpoint !== undefined;
  return {
    sections: [
      nowFields(address, { found, endpoint, nowMs }),
      ...(history ? [{ ...tenureTable(past, 'pod', context), title: 'earlier owners', none: 'none recorded' }] : []),
    ],
    hints: hintsOf(address, { found, endpoint, history }),
    data: () => ({
      address: json.of(AddressServiceService.getAddress, found),
      endpoint: endpoint ? json.of(AddressServiceService.getEndpoint, endpoint) : null,
      history: history ? json.of(HistoryServiceService.getAddressHistory, history) : null,
    }),
    exitCode: isHeld ? DONE : NOT_FOUND,
  };
}

/**
 * The endpoint of the owner's attachment, or of the pod with an address of another IPAM plugin.
 * @returns undefined where the owner is not a container, or has no endpoint
 */
async function endpointOf(
  address: string,
  { holder, state }: GetAddressResponse,
  { ipam }: Context,
): Promise<GetEndpointResponse | undefined> {
  if (state === AddressState.ADDRESS_STATE_UNMANAGED) {
    const isNamed = ({ address: cidr }: { readonly address: string }): boolean => cidr.split('/')[0] === address;
    const endpoint = (await listAllEndpoints(ipam)).find(({ addresses }) => addresses.some(isNamed));
    return endpoint && { endpoint };
  }
  const attachment = holder && attachmentOf(holder.handleId, holder.attributes);
  if (!attachment) return undefined;
  return undefinedOn('ENDPOINT_NOT_FOUND', () => ipam.call(AddressServiceService.getEndpoint, { attachment }));
}

/** @returns undefined where podwire-ipam keeps no history */
function historyOf(
  address: string,
  pageSize: number,
  { ipam }: Context,
): Promise<GetAddressHistoryResponse | undefined> {
  return undefinedOn('HISTORY_NOT_KEPT', () =>
    ipam.call(HistoryServiceService.getAddressHistory, {
      subject: { $case: 'address', value: address },
      from: undefined,
      until: undefined,
      pageSize,
      pageToken: '',
    }),
  );
}

async function undefinedOn<Value>(code: string, work: () => Promise<Value>): Promise<Value | undefined> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Failure && error.code === code) return undefined;
    throw error;
  }
}

interface AddressAnswers {
  readonly found: GetAddressResponse;
  readonly endpoint: GetEndpointResponse | undefined;
}

function stateText({ state, holder, allocateTime }: GetAddressResponse): string {
  if (state !== AddressState.ADDRESS_STATE_LEASED) return wordOf(AddressState[state], 'ADDRESS_STATE_');
  const { node = 'unknown', 'boot-id': bootId = 'unknown' } = holder?.attributes ?? {};
  const since = allocateTime === undefined ? '' : ` since ${moment(allocateTime)}`;
  return `leased by node ${node}${since} (boot ${bootId}), no pod yet`;
}

function nowFields(address: string, { found, endpoint, nowMs }: AddressAnswers & { readonly nowMs: number }): Fields {
  const { holder, poolName, blockCidr, allocateTime, releaseTime, coolUntilTime, reservationNames } = found;
  const { netns, macAddress = '', hostInterfaceName = '' } = endpoint?.endpoint ?? {};
  const attachment = holder && attachmentOf(holder.handleId, holder.attributes);
  return {
    kind: 'fields',
    fields: [
      ['Address', address],
      ['State', stateText(found)],
      ...(holder ? holderFields(holder) : endpointFields(endpoint)),
      ['Attachment', attachmentText(attachment)],
      ['Host interface', hostInterfaceName],
      ['MAC', macAddress],
      ['Netns', netns ? `inode ${netns.inode} of boot ${netns.bootId}` : ''],
      ['Since', momentAndAge(allocateTime, nowMs)],
      ['Released', momentAndAge(releaseTime, nowMs)],
      ['Cools until', moment(coolUntilTime)],
      ['Reserved by', reservationNames.join(', ')],
      ['Pool', poolName],
      ['Block', blockCidr],
    ],
  };
}

function endpointFields({ endpoint }: Partial<GetEndpointResponse> = {}): (readonly [string, string])[] {
  return [
    ['Pod', podText(endpoint)],
    ['Node', endpoint?.nodeName ?? ''],
  ];
}

function hintsOf(
  address: string,
  { found, endpoint, history }: AddressAnswers & { readonly history: GetAddressHistoryResponse | undefined },
): string[] {
  const { state, holder } = found;
  const isContainers = holder && attachmentOf(holder.handleId, holder.attributes) !== undefined;
  return [
    ...(isContainers && !endpoint?.endpoint
      ? [
          `${address} has no endpoint: run podwirectl audit before you release it (podwirectl release address ${address})`,
        ]
      : []),
    ...(state === AddressState.ADDRESS_STATE_UNMANAGED
      ? [`${address} is in no pool: ${endpoint ? 'another IPAM plugin allocated it' : 'Podwire does not allocate it'}`]
      : []),
    ...(history === undefined
      ? [
          'earlier owners are unknown: podwire-ipam keeps no history (PODWIRE_IPAM_HISTORY_HOURS, or the reason in its log)',
        ]
      : []),
    ...(history !== undefined && history.nextPageToken !== ''
      ? ['the list is incomplete: raise --limit (up to 1000)']
      : []),
  ];
}
