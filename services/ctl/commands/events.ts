import {
  HistoryServiceService,
  type Change,
  type GetAddressHistoryRequest,
  type Tenure,
} from '@podwire/proto/podwire/ipam/v1/history';
import { Failure } from '@podwire/shared/failure/failure';

import { allPages, type Context } from '../clients/services.js';
import { dateOf, MOMENT, oneOf, text } from '../command-line/forms.js';
import { option, type Verb } from '../command-line/verb.js';
import { moment, podOf } from '../output/words.js';

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
const DEFAULT_SINCE_MS = 86_400_000;

/** Longest text of a change without `-o wide`, and of one value in it. */
const CHANGE_LENGTH = 80;
const VALUE_LENGTH = 24;

export const events: Verb = {
  name: 'events',
  about: 'who changed pools, policies, settings and nodes; allocations and releases of a node or a namespace',
  details:
    'podwire-ipam keeps the history for PODWIRE_IPAM_HISTORY_HOURS. It does not know who changed an object by kubectl or calicoctl.',
  options: [SINCE, NODE, NAMESPACE, KIND],
  examples: ['events', 'events --since 2h --kind ippool -o wide', 'events --namespace default', 'events --node node-1'],
  run: async (input, context) => {
    const nowMs = context.clock.nowMs();
    const query = {
      from: dateOf(input.get(SINCE) ?? { agoMs: DEFAULT_SINCE_MS }, nowMs),
      node: input.get(NODE) ?? '',
      namespace: input.get(NAMESPACE) ?? '',
      kind: input.get(KIND) ?? '',
    };
    const found = [...(await changes(query, context)), ...(await addresses(query, context))];
    found.sort((a, b) => Number(a.time) - Number(b.time));
    const isWide = context.output === 'wide';
    const rows = found.map((each) => [
      ...[moment(each.time), each.kind, each.name],
      ...[changeText(each, isWide), each.author],
    ]);
    const columns = ['TIME', 'KIND', 'OBJECT', 'CHANGE', 'BY'];
    return {
      sections: [{ kind: 'table', columns, rows, none: 'events: none recorded' }],
      data: () => context.json.of(HistoryServiceService.listChanges, { changes: found, nextPageToken: '' }),
    };
  },
};

/** The requested changes; empty texts for all. */
interface Query {
  readonly from: Date;
  readonly node: string;
  readonly namespace: string;
  readonly kind: string;
}

/** Objects have no namespace. */
async function changes({ from, node, namespace, kind }: Query, { ipam }: Context): Promise<Change[]> {
  if (kind === ADDRESS || namespace !== '') return [];
  const query = { from, until: undefined, kind, nodeName: node };
  const pages = await allPages((page) => ipam.call(HistoryServiceService.listChanges, { ...query, ...page }));
  return pages.flatMap((page) => page.changes);
}

async function addresses({ from, node, namespace, kind }: Query, { ipam }: Context): Promise<Change[]> {
  if (kind !== ADDRESS && kind !== '') return [];
  if (node === '' && namespace === '') {
    if (kind === '') return [];
    throw new Failure('INVALID_REQUEST', '--kind address: is without a filter; add --node or --namespace');
  }
  const subject: GetAddressHistoryRequest['subject'] =
    namespace === '' ? { $case: 'nodeName', value: node } : { $case: 'namespace', value: namespace };
  const query = { subject, from, until: undefined };
  const pages = await allPages((page) => ipam.call(HistoryServiceService.getAddressHistory, { ...query, ...page }));
  const selected = pages
    .flatMap(({ tenures }) => tenures)
    .filter(({ attributes }) => node === '' || attributes.node === node);
  return selected.flatMap(addressEvents).filter(({ time = from }) => time >= from);
}

function addressEvents({ address, handleId, attributes, allocateTime, releaseTime }: Tenure): Change[] {
  const holder = [podOf(attributes) || handleId, attributes.node].filter(Boolean).join(' on ');
  const event = (time: Date | undefined, action: string): Change[] =>
    time ? [{ time, kind: ADDRESS, name: address, action: `${action} ${holder}`, fields: [], author: '' }] : [];
  return [...event(allocateTime, 'allocated to'), ...event(releaseTime, 'released by')];
}

/** `disabled: false → true`; of a created object its values. */
function changeText({ action, fields }: Change, isWide: boolean): string {
  const shorten = (value: string, length: number): string =>
    isWide || value.length <= length ? value : `${value.slice(0, length - 1)}…`;
  if (action === 'deleted' && !isWide) return action;
  const value = (each = 'unset'): string => shorten(each, VALUE_LENGTH);
  if (action === 'changed')
    return shorten(
      fields.map((each) => `${each.path}: ${value(each.before)} → ${value(each.after)}`).join(', '),
      CHANGE_LENGTH,
    );
  const values = fields.map(({ path, before, after = before }) => ({ path, text: after ?? '' }));
  const texts = values.flatMap(({ path, text: each }) => (each === '' ? [] : `${path}=${value(each)}`));
  return shorten([action, ...texts].join(' '), CHANGE_LENGTH);
}
