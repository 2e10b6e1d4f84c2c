import {
  HistoryServiceService,
  type Change as ChangeMessage,
  type GetAddressHistoryRequest,
  type ListChangesRequest,
  type QueryAtRequest,
  type Tenure as TenureMessage,
} from '@podwire/proto/podwire/ipam/v1/history';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { dateOf, readAddress } from '../messages/parts.js';
import { cutHandle, handleFault, labelFault, subdomainFault } from '../records/names.js';
import { RECORDED_KINDS, type ObjectChange } from '../records/history.js';
import type { History } from './history-operations.js';
import type { ChangeQuery, HistoryPosition, Tenure, TenureQuery, TenureSubject, TimeSpan } from './tenures.js';

export function historyService(history: History, unary: Unary): RpcService {
  return unaryService(HistoryServiceService, unary, {
    getAddressHistory: async (message, { signal }) => {
      const { tenures, next } = await history.query(readHistoryRequest(message), signal);
      return {
        tenures: tenures.map(tenureMessage),
        nextPageToken: formatPageToken(historyScope(message), next && formatPosition(next)),
      };
    },
    queryAt: async (message, { signal }) => {
      const { address, atMs } = readQueryAtRequest(message);
      const { tenure, isCovered } = await history.at(address, atMs, signal);
      return { tenure: tenure && tenureMessage(tenure), covered: isCovered };
    },
    listChanges: async (message, { signal }) => {
      const { changes, next } = await history.changes(readChangesRequest(message), signal);
      return { changes: changes.map(changeMessage), nextPageToken: formatPageToken(changesScope(message), next) };
    },
  });
}

function readHistoryRequest(message: GetAddressHistoryRequest): TenureQuery {
  return readChecked('GetAddressHistory', (checks) => {
    const subject = readSubject(message.subject, checks);
    const span = readSpan(message, checks);
    const token = readPageToken(message, historyScope(message), checks);
    return { subject, span, limit: readPageSize(message, checks), after: parsePosition(token) };
  });
}

function historyScope({ subject, from, until }: GetAddressHistoryRequest): ListScope {
  const value = subject?.$case === 'pod' ? `${subject.value.namespace}/${subject.value.name}` : (subject?.value ?? '');
  return ['history', subject?.$case ?? '', value, String(from?.getTime()), String(until?.getTime())];
}

function readSubject(subject: GetAddressHistoryRequest['subject'], checks: Checks): TenureSubject {
  switch (subject?.$case) {
    case 'address':
      return { kind: 'address', address: readAddress('address', subject.value, checks) };
    case 'handleId': {
      const handleId = cutHandle(subject.value);
      checks.check('handle_id', handleFault(handleId));
      return { kind: 'handle', handleId };
    }
    case 'pod':
      checks.check('pod.namespace', labelFault(subject.value.namespace));
      checks.check('pod.name', subdomainFault(subject.value.name));
      return { kind: 'pod', pod: subject.value };
    case 'nodeName':
      checks.check('node_name', subdomainFault(subject.value));
      return { kind: 'node', name: subject.value };
    case 'namespace':
      checks.check('namespace', labelFault(subject.value));
      return { kind: 'namespace', name: subject.value };
    case undefined:
      checks.check('subject', 'is missing: set one of address, handle_id, pod, node_name and namespace');
      return { kind: 'handle', handleId: '' };
  }
}

function readChangesRequest(message: ListChangesRequest): ChangeQuery {
  return readChecked('ListChanges', (checks) => {
    const { kind, nodeName } = message;
    const isKnown = kind === '' || RECORDED_KINDS.some((known) => known === kind);
    checks.check('kind', isKnown ? undefined : `is none of ${RECORDED_KINDS.join(', ')}`);
    if (nodeName !== '') checks.check('node_name', subdomainFault(nodeName));
    const after = readPageToken(message, changesScope(message), checks);
    checks.check('page_token', /^(\d{15}[-\da-f]*)?$/.test(after) ? undefined : 'is not a token of this method');
    const selects = (change: ObjectChange): boolean =>
      (kind === '' || change.kind === kind) &&
      (nodeName === '' || (change.kind === 'node' && change.name === nodeName));
    return {
      span: readSpan(message, checks),
      selects,
      limit: readPageSize(message, checks),
      after: after || undefined,
    };
  });
}

function changesScope({ from, until, kind, nodeName }: ListChangesRequest): ListScope {
  return ['changes', String(from?.getTime()), String(until?.getTime()), kind, nodeName];
}

function changeMessage({ atMs, fields, ...rest }: ObjectChange): ChangeMessage {
  return { time: dateOf(atMs), ...rest, fields: fields.map(({ field: path, ...values }) => ({ path, ...values })) };
}

function readSpan({ from, until }: Pick<GetAddressHistoryRequest, 'from' | 'until'>, checks: Checks): TimeSpan {
  const span = { fromMs: from?.getTime() ?? 0, untilMs: until?.getTime() ?? Number.MAX_SAFE_INTEGER };
  checks.check('until', span.fromMs < span.untilMs ? undefined : 'is not after from');
  return span;
}

interface QueryAtInput {
  readonly address: Address;
  readonly atMs: number;
}

function readQueryAtRequest({ address, time }: QueryAtRequest): QueryAtInput {
  return readChecked('QueryAt', (checks) => {
    checks.check('time', time ? undefined : 'is missing');
    return { address: readAddress('address', address, checks), atMs: time?.getTime() ?? 0 };
  });
}

function tenureMessage(tenure: Tenure): TenureMessage {
  const { address, block, handleId, owner, allocatedAtMs, releasedAtMs, sequenceNumber } = tenure;
  return {
    address: formatAddress(address),
    blockCidr: formatPrefix(block),
    handleId: handleId ?? '',
    attributes: { ...owner },
    allocateTime: dateOf(allocatedAtMs),
    releaseTime: dateOf(releasedAtMs),
    sequenceNumber,
  };
}

/** `present 3`, `day 20594`, `release 20594 1779379200000 17793…`, `key 20594 /podwire/…`. */
function formatPosition(position: HistoryPosition): string {
  switch (position.kind) {
    case 'present':
      return `present ${position.count}`;
    case 'day':
      return `day ${position.day}`;
    case 'release':
      return `release ${position.day} ${position.releasedAtMs} ${position.sequenceNumber}`;
    case 'key':
      return `key ${position.day} ${position.key}`;
  }
}

const POSITION = /^(present|day|release|key) (\d{1,16})(?: (\S+))?(?: (\d{1,20}))?$/;

/** @returns undefined for the first page */
function parsePosition(text: string): HistoryPosition | undefined {
  const [, kind, number = '', third = '', fourth = ''] = POSITION.exec(text) ?? [];
  const count = Number(number);
  if (kind === 'present') return { kind, count };
  if (kind === 'day') return { kind, day: count };
  if (kind === 'key') return { kind, day: count, key: third };
  if (kind !== 'release') return undefined;
  return { kind, day: count, releasedAtMs: Number(third), sequenceNumber: BigInt(fourth) };
}
