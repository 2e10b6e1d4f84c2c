import {
  ChangeAction,
  HistoryServiceService,
  type Change,
  type ChangedField,
  type GetAddressHistoryRequest,
  type Tenure,
} from '@podwire/proto/podwire/ipam/v1/history';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context } from '../clients/services.js';
import { dateOf, MOMENT, oneOf, text, wholeNumber } from '../command-line/forms.js';
import { option, type Verb } from '../command-line/verb.js';
import type { Report } from '../output/report.js';
import { moment, podOf, wordOf } from '../output/words.js';

const ADDRESS = 'address';
const OBJECT_KINDS = ['ippool', 'ipreservation', 'ipamconfig', 'node', 'requestpolicy', 'revokedcertificate'];

const SINCE = option(
  '--since',
  MOMENT,
  'only events after this time: 2026-05-04T12:30:00Z, or 2h for two hours ago (1d)',
);
const NODE = option('--node', text('NAME'), 'only changes of this node, and addresses of its pods and tunnels (all)');
const NAMESPACE = option('--namespace', text('NAME'), 'only addresses of the pods of this namespace');
const KIND = option(
  '--kind',
  oneOf(Object.fromEntries([...OBJECT_KINDS, ADDRESS].map((kind) => [kind, kind]))),
  'only this kind; addresses need --node or --namespace (all)',
);
const LIMIT = option(
  '--limit',
  wholeNumber('NUMBER', { min: 1, max: 100_000 }),
  'maximum number of events, the newest (1000)',
);
const DEFAULT_LIMIT = 1000;
const DEFAULT_SINCE_MS = 86_400_000;
const PAGE_SIZE = 1000;

/** Longest text of a change without `-o wide`, and of one value in it. */
const CHANGE_LENGTH = 80;
const VALUE_LENGTH = 24;

interface Event {
  readonly time: Date;
  readonly kind: string;
  readonly name: string;
  readonly action: string;
  readonly fields: readonly ChangedField[];
  /** Empty for addresses: the history has their holder only. */
  readonly author: string;
}

export const events: Verb = {
  name: 'events',
  about: 'who changed pools, policies, settings and nodes; allocations and releases of a node or a namespace',
  details:
    'podwire-ipam keeps the history for PODWIRE_IPAM_HISTORY_HOURS. It does not know who changed an object by kubectl or calicoctl.',
  options: [SINCE, NODE, NAMESPACE, KIND, LIMIT],
  examples: ['events', 'events --since 2h --kind ippool -o wide', 'events --namespace default', 'events --node node-1'],
  run: async (input, context) => {
    const nowMs = context.clock.nowMs();
    const query = {
      from: dateOf(input.get(SINCE) ?? { agoMs: DEFAULT_SINCE_MS }, nowMs),
      node: input.get(NODE) ?? '',
      namespace: input.get(NAMESPACE) ?? '',
      kind: input.get(KIND) ?? '',
    };
    const newest = new NewestEvents(input.get(LIMIT) ?? DEFAULT_LIMIT);
    await collectChanges(query, newest, context);
    await collectAddresses(query, newest, context);
    const found = newest.sorted();
    const isWide = context.output === 'wide';
    return {
      sections: [
        {
          kind: 'table',
          columns: ['TIME', 'KIND', 'OBJECT', 'CHANGE', 'BY'],
          rows: found.map((event) => [
            ...[moment(event.time), event.kind, event.name],
            ...[changeText(event, isWide), event.author],
          ]),
          none: 'events: none recorded',
        },
      ],
      hints: newest.isCut ? ['older events are left out: raise --limit, or shorten the time with --since'] : [],
      data: () => found.map(eventData),
    };
  },
};

interface Query {
  readonly from: Date;
  /** Empty for all, like the others. */
  readonly node: string;
  readonly namespace: string;
  readonly kind: string;
}

/** The newest events of many. */
class NewestEvents {
  readonly #limit: number;
  #events: Event[] = [];
  isCut = false;

  constructor(limit: number) {
    this.#limit = limit;
  }

  add(added: readonly Event[]): void {
    this.#events.push(...added);
    if (this.#events.length > 2 * this.#limit + PAGE_SIZE) this.#cut();
  }

  /** Oldest first. */
  sorted(): readonly Event[] {
    this.#cut();
    return this.#events;
  }

  #cut(): void {
    const sorted = this.#events.toSorted((a, b) => a.time.getTime() - b.time.getTime());
    this.isCut ||= sorted.length > this.#limit;
    this.#events = sorted.slice(-this.#limit);
  }
}

/** Objects have no namespace. */
async function collectChanges(
  { from, node, namespace, kind }: Query,
  newest: NewestEvents,
  { ipam }: Context,
): Promise<void> {
  if (kind === ADDRESS || namespace !== '') return;
  const request = { from, until: undefined, kind, nodeName: node, pageSize: PAGE_SIZE };
  let pageToken = '';
  do {
    const page = await ipam.call(HistoryServiceService.listChanges, { ...request, pageToken });
    newest.add(page.changes.flatMap(changeEvents));
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
}

async function collectAddresses(query: Query, newest: NewestEvents, { ipam }: Context): Promise<void> {
  const { from, node, kind } = query;
  if (kind !== ADDRESS && kind !== '') return;
  const subject = subjectOf(query);
  if (!subject) {
    if (kind === '') return;
    throw new Failure('INVALID_REQUEST', '--kind address: is without a filter; add --node or --namespace');
  }
  let pageToken = '';
  do {
    const request = { subject, from, until: undefined, pageSize: PAGE_SIZE, pageToken };
    const page = await ipam.call(HistoryServiceService.getAddressHistory, request);
    const selected = page.tenures.filter(({ attributes }) => node === '' || attributes.node === node);
    newest.add(selected.flatMap(addressEvents).filter(({ time }) => time >= from));
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
}

function subjectOf({ node, namespace }: Query): GetAddressHistoryRequest['subject'] {
  if (namespace !== '') return { $case: 'namespace', value: namespace };
  return node === '' ? undefined : { $case: 'nodeName', value: node };
}

function changeEvents({ time = new Date(0), author, objects }: Change): Event[] {
  return objects.map(({ kind, name, action, fields }) => {
    return { time, kind, name, action: wordOf(ChangeAction[action], 'CHANGE_ACTION_'), fields, author };
  });
}

function addressEvents({ address, handleId, attributes, allocateTime, releaseTime }: Tenure): Event[] {
  const holder = [podOf(attributes) || handleId, attributes.node].filter(Boolean).join(' on ');
  const event = (time: Date | undefined, action: string): Event[] =>
    time ? [{ time, kind: ADDRESS, name: address, action: `${action} ${holder}`, fields: [], author: '' }] : [];
  return [...event(allocateTime, 'allocated to'), ...event(releaseTime, 'released by')];
}

/** `disabled: false → true`; of a created object its values. */
function changeText({ action, fields }: Event, isWide: boolean): string {
  const shorten = (value: string, length: number): string =>
    isWide || value.length <= length ? value : `${value.slice(0, length - 1)}…`;
  if (action === 'deleted' && !isWide) return action;
  const value = (each = '-'): string => shorten(each, VALUE_LENGTH);
  if (action === 'changed')
    return shorten(
      fields.map((each) => `${each.path}: ${value(each.before)} → ${value(each.after)}`).join(', '),
      CHANGE_LENGTH,
    );
  const values = fields.map(({ path, before, after = before }) => ({ path, text: after ?? '' }));
  const texts = values.flatMap(({ path, text: each }) => (each === '' ? [] : `${path}=${value(each)}`));
  return shorten([action, ...texts].join(' '), CHANGE_LENGTH);
}

function eventData({ time, kind, name, action, author, fields }: Event): ReturnType<Report['data']> {
  const values = fields.map(({ path, before = null, after = null }) => ({ path, before, after }));
  return { time: time.toISOString(), kind, name, action, author, fields: values };
}
