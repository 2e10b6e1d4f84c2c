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
import { ADDRESS, dateOf, MOMENT, wholeNumber, type Moment } from '../command-line/forms.js';
import type { Option, Positional, Verb } from '../command-line/verb.js';
import { DONE, NOT_FOUND, sentence, type Fields, type Report } from '../output/report.js';
import { attachmentOf, attachmentText, moment, momentAndAge, wordOf } from '../output/words.js';
import { holderFields, tenureTable } from './history.js';

const ASKED: Positional<string> = { form: ADDRESS, about: 'the address', presence: 'required' };

const AT: Option<Moment> = {
  name: '--at',
  form: MOMENT,
  about: 'who held it then: 2026-05-04T12:30:00Z, or 30m for thirty minutes ago (now, and before)',
};

const LIMIT: Option<number> = {
  name: '--limit',
  form: wholeNumber('NUMBER', { min: 1, max: 1000 }),
  about: 'how many earlier holders to name (10). No effect with --at',
};
const USUAL_LIMIT = 10;

export const who: Verb = {
  name: 'who',
  about: 'who holds an address, why, and who held it before',
  details: 'How far back it is known is a setting of podwire-ipam (PODWIRE_IPAM_HISTORY_HOURS). Exit code 3: nobody’s.',
  positionals: [ASKED],
  options: [AT, LIMIT],
  examples: ['who 10.65.0.7', 'who 10.65.0.7 --at 2026-05-04T12:30:00Z', 'who fd65::7 --at 2h'],
  run: (input, context) => {
    const address = input.at(ASKED);
    const at = input.get(AT);
    if (at === undefined) return whoNow(address, input.get(LIMIT) ?? USUAL_LIMIT, context);
    return whoThen(address, dateOf(at, context.clock.nowMs()), context);
  },
};

async function whoThen(address: string, time: Date, { ipam, json, clock }: Context): Promise<Report> {
  const answer = await ipam.call(HistoryServiceService.queryAt, { address, time });
  const data = (): ReturnType<Report['data']> => json.of(HistoryServiceService.queryAt, answer);
  const { tenure } = answer;
  if (!tenure) return { sections: [sentence(nobodyThen(address, time, answer))], data, exitCode: NOT_FOUND };
  const nowMs = clock.nowMs();
  const until = tenure.releaseTime === undefined ? 'still held' : momentAndAge(tenure.releaseTime, nowMs);
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

function nobodyThen(address: string, time: Date, { covered }: QueryAtResponse): string {
  return covered
    ? `Nobody held ${address} at ${moment(time)}.`
    : `Who held ${address} at ${moment(time)} is not known: the history does not reach back so far.`;
}

async function whoNow(address: string, pageSize: number, context: Context): Promise<Report> {
  const { ipam, json, clock } = context;
  const found = await ipam.call(AddressServiceService.getAddress, { address });
  const [endpoint, history] = await Promise.all([endpointOf(found, context), earlier(address, pageSize, context)]);
  const nowMs = clock.nowMs();
  const past = history?.tenures.filter(({ releaseTime }) => releaseTime !== undefined) ?? [];
  const isHeld = found.holder !== undefined;
  return {
    sections: [
      nowFields(address, { found, endpoint, nowMs }),
      ...(history ? [{ ...tenureTable(past, nowMs), title: 'earlier', none: 'Nobody that is still known.' }] : []),
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

/** @returns what the holder's attachment was given; undefined where it is no container's, or has no endpoint */
async function endpointOf({ holder }: GetAddressResponse, { ipam }: Context): Promise<GetEndpointResponse | undefined> {
  const attachment = holder && attachmentOf(holder.handleId, holder.attributes);
  if (!attachment) return undefined;
  return unless('ENDPOINT_NOT_FOUND', () => ipam.call(AddressServiceService.getEndpoint, { attachment }));
}

/** @returns undefined where no history is kept */
function earlier(address: string, pageSize: number, { ipam }: Context): Promise<GetAddressHistoryResponse | undefined> {
  return unless('HISTORY_NOT_KEPT', () =>
    ipam.call(HistoryServiceService.getAddressHistory, {
      subject: { $case: 'address', value: address },
      from: undefined,
      until: undefined,
      pageSize,
      pageToken: '',
    }),
  );
}

async function unless<Value>(code: string, work: () => Promise<Value>): Promise<Value | undefined> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Failure && error.code === code) return undefined;
    throw error;
  }
}

interface Found {
  readonly found: GetAddressResponse;
  readonly endpoint: GetEndpointResponse | undefined;
}

function nowFields(address: string, { found, endpoint, nowMs }: Found & { readonly nowMs: number }): Fields {
  const { state, holder, poolName, blockCidr, allocateTime, releaseTime, coolUntilTime, reservationNames } = found;
  const { netns, macAddress = '', hostInterfaceName = '' } = endpoint?.endpoint ?? {};
  const attachment = holder && attachmentOf(holder.handleId, holder.attributes);
  return {
    kind: 'fields',
    fields: [
      ['Address', address],
      ['State', wordOf(AddressState[state], 'ADDRESS_STATE_')],
      ...(holder ? holderFields(holder) : []),
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

function hintsOf(
  address: string,
  { found, endpoint, history }: Found & { readonly history: GetAddressHistoryResponse | undefined },
): string[] {
  const { state, holder } = found;
  const isContainers = holder && attachmentOf(holder.handleId, holder.attributes) !== undefined;
  return [
    ...(isContainers && !endpoint?.endpoint
      ? [`no endpoint is recorded for it: see "podwirectl audit" before you give it back (release address ${address})`]
      : []),
    ...(state === AddressState.ADDRESS_STATE_UNMANAGED ? ['it lies in no pool: Podwire gives it to nobody'] : []),
    ...(history === undefined
      ? ['who held it before is not known: podwire-ipam keeps no history (PODWIRE_IPAM_HISTORY_HOURS)']
      : []),
    ...(history !== undefined && history.nextPageToken !== '' ? ['there are more: --limit shows up to 1000'] : []),
  ];
}
