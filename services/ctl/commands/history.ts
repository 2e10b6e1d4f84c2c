import {
  HistoryServiceService,
  type GetAddressHistoryRequest,
  type Tenure,
} from '@podwire/proto/podwire/ipam/v1/history';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context } from '../clients/services.js';
import { dateOf, MOMENT, podOfSubject, SUBJECT, SUBJECT_TEXT, text, wholeNumber } from '../command-line/forms.js';
import { argument, option, type Input, type Verb } from '../command-line/verb.js';
import { DONE, NOT_FOUND, type Table } from '../output/report.js';
import { lengthOfTime, moment, podOf } from '../output/words.js';
import { NAMESPACE } from '../resources/reading.js';

const SUBJECT_ARGUMENT = argument(SUBJECT, SUBJECT_TEXT, 'optional');
const HANDLE = option('--handle', text('HANDLE', 'handles'), 'the addresses of a handle, instead of a pod');

const SINCE = option(
  '--since',
  MOMENT,
  'only allocations held after this time: 2026-05-04T12:30:00Z, or 2h for two hours ago (the whole history)',
);
const LIMIT = option(
  '--limit',
  wholeNumber('NUMBER', { min: 1, max: 1000 }),
  'maximum number of allocations, newest first (100)',
);
const DEFAULT_LIMIT = 100;

export const history: Verb = {
  name: 'history',
  about: 'the current and earlier addresses of a pod, or owners of an address',
  details:
    'podwire-ipam keeps the history for PODWIRE_IPAM_HISTORY_HOURS. -o wide adds SEQUENCE and HANDLE.\nExit code 3: no address is recorded.',
  positionals: [SUBJECT_ARGUMENT],
  options: [NAMESPACE, HANDLE, SINCE, LIMIT],
  examples: ['history default/web-0', 'history default/web-0 --since 1d'],
  run: async (input, context) => {
    const since = input.get(SINCE);
    const query = { subject: subjectOf(input), from: since && dateOf(since, context.clock.nowMs()) };
    const { tenures, isComplete } = await tenuresOf(query, input.get(LIMIT) ?? DEFAULT_LIMIT, context);
    return {
      sections: [
        {
          ...tenureTable(tenures, query.subject.$case === 'address' ? 'pod' : 'address', context),
          none: 'addresses: none recorded',
        },
      ],
      hints: [
        ...(isComplete ? [] : ['the list is incomplete: raise --limit (up to 1000), or shorten the time with --since']),
      ],
      data: () =>
        context.json.of(HistoryServiceService.getAddressHistory, { tenures: [...tenures], nextPageToken: '' }),
      exitCode: tenures.length > 0 ? DONE : NOT_FOUND,
    };
  },
};

/** @throws Failure INVALID_REQUEST where the command line names nothing, or two things */
function subjectOf(input: Input): NonNullable<GetAddressHistoryRequest['subject']> {
  const [subject] = input.rest(SUBJECT_ARGUMENT);
  const handle = input.get(HANDLE);
  if ((subject === undefined) === (handle === undefined))
    throw new Failure('INVALID_REQUEST', 'ADDRESS|POD: name an address, a pod, or a handle with --handle');
  if (!subject) return { $case: 'handleId', value: handle ?? '' };
  if ('address' in subject) return { $case: 'address', value: subject.address };
  return { $case: 'pod', value: podOfSubject(subject, input.get(NAMESPACE)) };
}

interface Tenures {
  readonly tenures: readonly Tenure[];
  /** Whether the list is complete. */
  readonly isComplete: boolean;
}

/** Pages may be short, even empty, before the last one. */
async function tenuresOf(
  asked: Pick<GetAddressHistoryRequest, 'subject' | 'from'>,
  limit: number,
  { ipam }: Context,
): Promise<Tenures> {
  const tenures: Tenure[] = [];
  let pageToken = '';
  do {
    const request = { ...asked, until: undefined, pageSize: limit, pageToken };
    const page = await ipam.call(HistoryServiceService.getAddressHistory, request);
    tenures.push(...page.tenures);
    pageToken = page.nextPageToken;
  } while (pageToken !== '' && tenures.length < limit);
  return { tenures: tenures.slice(0, limit), isComplete: pageToken === '' && tenures.length <= limit };
}

/** A current or earlier allocation. */
interface Holding {
  readonly handleId: string;
  readonly attributes: Readonly<Record<string, string>>;
  readonly sequenceNumber: bigint;
  /** Attributes of the second owner; only for current allocations. */
  readonly alternateAttributes?: Readonly<Record<string, string>>;
}

/** Attributes with a line of their own. */
const SHOWN_ATTRIBUTES = ['node', 'namespace', 'pod', 'network', 'interface', 'timestamp'];

/** The owner of an address. */
export function holderFields({
  handleId,
  attributes,
  alternateAttributes = {},
  sequenceNumber,
}: Holding): (readonly [string, string])[] {
  const { node = '', interface: interfaceName = '', network = '' } = attributes;
  const unshown = Object.entries(attributes).filter(([key]) => !SHOWN_ATTRIBUTES.includes(key));
  return [
    ['Pod', podOf(attributes)],
    ['Node', node],
    ['Network', network],
    ['Interface', interfaceName],
    ['Handle', handleId],
    ['Sequence', String(sequenceNumber)],
    ['Attributes', pairs(unshown)],
    ['Second owner', pairs(Object.entries(alternateAttributes))],
  ];
}

function pairs(entries: readonly (readonly [string, string])[]): string {
  return entries.map(([key, value]) => `${key}=${value}`).join(', ');
}

/**
 * Allocations, newest first.
 * @param first - content of the first column: the pod, or the handle without one, if all rows are of one address; else the
 *   address
 */
export function tenureTable(
  tenures: readonly Tenure[],
  first: 'pod' | 'address',
  { clock, output }: Pick<Context, 'clock' | 'output'>,
): Table {
  const isWide = output === 'wide';
  return {
    kind: 'table',
    columns: [
      first.toUpperCase(),
      'NODE',
      'FROM',
      'UNTIL',
      'FOR',
      ...(isWide ? [{ right: 'SEQUENCE' }, 'HANDLE'] : []),
    ],
    rows: tenures.map(({ address, attributes, allocateTime, releaseTime, sequenceNumber, handleId }) => {
      const endMs = releaseTime?.getTime() ?? clock.nowMs();
      const held = allocateTime === undefined ? '' : lengthOfTime(endMs - allocateTime.getTime());
      const times = [moment(allocateTime), moment(releaseTime), held];
      const name = first === 'pod' ? podOf(attributes) || handleId : address;
      return [name, attributes.node ?? '', ...times, ...(isWide ? [String(sequenceNumber), handleId] : [])];
    }),
    none: 'owners: none recorded',
  };
}
