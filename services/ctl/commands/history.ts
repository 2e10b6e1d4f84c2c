import {
  HistoryServiceService,
  type GetAddressHistoryRequest,
  type Tenure,
} from '@podwire/proto/podwire/ipam/v1/history';

import type { Context } from '../clients/services.js';
import { dateOf, MOMENT, POD_NAME, wholeNumber, type Form, type Moment } from '../command-line/forms.js';
import type { Option, Positional, Verb } from '../command-line/verb.js';
import { DONE, NOT_FOUND, type Table } from '../output/report.js';
import { lengthOfTime, moment, podOf } from '../output/words.js';

/** The requested pod or address. */
type Subject = NonNullable<GetAddressHistoryRequest['subject']>;

/** A handle has no slash in it, as no network's name has one. */
const HOLDER: Form<Subject> = {
  placeholder: 'NAMESPACE/NAME|HANDLE',
  read: (given) => {
    if (given !== '' && !given.includes('/')) return { ok: true, value: { $case: 'handleId', value: given } };
    const pod = POD_NAME.read(given);
    return pod.ok ? { ok: true, value: { $case: 'pod', value: pod.value } } : pod;
  },
};

const WHOSE: Positional<Subject> = {
  form: HOLDER,
  about: 'a pod, all its sandboxes; or a handle, NETWORK.CONTAINER for containers',
  presence: 'required',
};

const SINCE: Option<Moment> = {
  name: '--since',
  form: MOMENT,
  about: 'only what was held after that: 2026-05-04T12:30:00Z, or 2h for two hours ago (all that is kept)',
};
const LIMIT: Option<number> = {
  name: '--limit',
  form: wholeNumber('NUMBER', { min: 1, max: 1000 }),
  about: 'how many to name, the newest (100)',
};
const USUAL_LIMIT = 100;

export const history: Verb = {
  name: 'history',
  about: 'which addresses a pod has, and had; "who" tells the same of an address',
  details:
    'How far back it is known is a setting of podwire-ipam (PODWIRE_IPAM_HISTORY_HOURS). Exit code 3: none is known.',
  positionals: [WHOSE],
  options: [SINCE, LIMIT],
  examples: ['history default/web-0', 'history default/web-0 --since 1d'],
  run: async (input, context) => {
    const since = input.get(SINCE);
    const asked = { subject: input.at(WHOSE), from: since && dateOf(since, context.clock.nowMs()) };
    const { tenures, isWhole } = await tenuresOf(asked, input.get(LIMIT) ?? USUAL_LIMIT, context);
    return {
      sections: [{ ...tenureTable(tenures, context.clock.nowMs(), 'address'), none: 'No address is known.' }],
      hints: [
        ...(isWhole ? [] : ['there are more: --limit shows up to 1000, --since those of a shorter time']),
        ...(tenures.length === 0 && asked.subject.$case === 'handleId'
          ? [`"${asked.subject.value}" was taken for a handle; a pod is NAMESPACE/NAME`]
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
  /** Whether there are no more. */
  readonly isWhole: boolean;
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
  return { tenures: tenures.slice(0, limit), isWhole: pageToken === '' && tenures.length <= limit };
}

/** What is known of a holder, held or past. */
interface Holding {
  readonly handleId: string;
  readonly attributes: Readonly<Record<string, string>>;
  readonly sequenceNumber: bigint;
  /** What a second owner says of itself; of those that hold an address. */
  readonly alternateAttributes?: Readonly<Record<string, string>>;
}

/** Attributes that have a line of their own. */
const KNOWN = ['node', 'namespace', 'pod', 'network', 'interface', 'timestamp'];

/** Who holds an address, line by line. */
export function holderFields({
  handleId,
  attributes,
  alternateAttributes = {},
  sequenceNumber,
}: Holding): (readonly [string, string])[] {
  const { node = '', interface: interfaceName = '', network = '' } = attributes;
  const others = Object.entries(attributes).filter(([key]) => !KNOWN.includes(key));
  return [
    ['Pod', podOf(attributes)],
    ['Node', node],
    ['Network', network],
    ['Interface', interfaceName],
    ['Handle', handleId],
    ['Sequence', String(sequenceNumber)],
    ['Also', pairs(others)],
    ['Second owner', pairs(Object.entries(alternateAttributes))],
  ];
}

function pairs(entries: readonly (readonly [string, string])[]): string {
  return entries.map(([key, value]) => `${key}=${value}`).join(', ');
}

/**
 * An address's owners over time, newest first.
 * @param first - content of the first column: a pod if all rows are of one address, else the address
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
    none: 'Nobody.',
  };
}
