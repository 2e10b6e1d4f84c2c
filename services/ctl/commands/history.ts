import {
  HistoryServiceService,
  type GetAddressHistoryRequest,
  type Tenure,
} from '@podwire/proto/podwire/ipam/v1/history';

import type { Context } from '../clients/services.js';
import { dateOf, MOMENT, POD_NAME, wholeNumber, type Form } from '../command-line/forms.js';
import { argument, option, type Verb } from '../command-line/verb.js';
import { DONE, NOT_FOUND, type Table } from '../output/report.js';
import { lengthOfTime, moment, podOf } from '../output/words.js';

/** The requested pod or address. */
type Subject = NonNullable<GetAddressHistoryRequest['subject']>;

/** A handle contains no slash, because the name of a network contains none. */
const HOLDER: Form<Subject> = {
  placeholder: 'NAMESPACE/NAME|HANDLE',
  read: (input) => {
    if (input !== '' && !input.includes('/')) return { ok: true, value: { $case: 'handleId', value: input } };
    const pod = POD_NAME.read(input);
    return pod.ok ? { ok: true, value: { $case: 'pod', value: pod.value } } : pod;
  },
};

const HOLDER_ARGUMENT = argument(
  HOLDER,
  'a pod, with all its sandboxes; or a handle, NETWORK.CONTAINER for containers',
  'required',
);

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
  about: 'the current and earlier addresses of a pod; "who" shows the owners of an address',
  details: 'podwire-ipam keeps the history for PODWIRE_IPAM_HISTORY_HOURS. Exit code 3: no address is recorded.',
  positionals: [HOLDER_ARGUMENT],
  options: [SINCE, LIMIT],
  examples: ['history default/web-0', 'history default/web-0 --since 1d'],
  run: async (input, context) => {
    const since = input.get(SINCE);
    const query = { subject: input.at(HOLDER_ARGUMENT), from: since && dateOf(since, context.clock.nowMs()) };
    const { tenures, isComplete } = await tenuresOf(query, input.get(LIMIT) ?? DEFAULT_LIMIT, context);
    return {
      sections: [{ ...tenureTable(tenures, context.clock.nowMs(), 'address'), none: 'addresses: none recorded' }],
      hints: [
        ...(isComplete ? [] : ['the list is incomplete: raise --limit (up to 1000), or shorten the time with --since']),
        ...(tenures.length === 0 && query.subject.$case === 'handleId'
          ? [`"${query.subject.value}" was read as a handle; a pod is NAMESPACE/NAME`]
          : []),
      ],
      data: () =>
        context.json.of(HistoryServiceService.getAddressHistory, { tenures: [...tenures], nextPageToken: '' }),
      exitCode: tenures.length > 0 ? DONE : NOT_FOUND,
    };
  },
};

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
 * @param first - content of the first column: the pod if all rows are of one address, else the address
 */
export function tenureTable(tenures: readonly Tenure[], nowMs: number, first: 'pod' | 'address' = 'pod'): Table {
  return {
    kind: 'table',
    columns: [first.toUpperCase(), 'NODE', 'FROM', 'UNTIL', 'FOR', { right: 'SEQUENCE' }, 'HANDLE'],
    rows: tenures.map(({ address, attributes, allocateTime, releaseTime, sequenceNumber, handleId }) => {
      const endMs = releaseTime?.getTime() ?? nowMs;
      const held = allocateTime === undefined ? '' : lengthOfTime(endMs - allocateTime.getTime());
      const times = [moment(allocateTime), moment(releaseTime), held];
      const name = first === 'pod' ? podOf(attributes) : address;
      return [name, attributes.node ?? '', ...times, String(sequenceNumber), handleId];
    }),
    none: 'owners: none recorded',
  };
}
