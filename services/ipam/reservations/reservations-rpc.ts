import {
  ReservationServiceService,
  type CreateReservationRequest,
  type Reservation as ReservationMessage,
  type UpdateReservationRequest,
} from '@podwire/proto/podwire/ipam/v1/reservation';
import { parseAddress } from '@podwire/shared/net/address';
import { formatAddressOrPrefix, formatPrefix, hostPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPage, type ListScope } from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { readObjectName } from '../messages/parts.js';
import type { NamedOperations } from '../named-objects/named-objects-operations.js';
import type { Replacement } from '../named-objects/named-objects.js';
import type { Reservation } from '../records/config.js';
import { subdomainFault } from '../records/names.js';
import { versionOf } from '../records/versions.js';
import type { ReservationSpec } from './reservations.js';

export function reservationService(
  reservations: NamedOperations<Reservation, ReservationSpec>,
  unary: Unary,
): RpcService {
  return unaryService(ReservationServiceService, unary, {
    createReservation: async (message, { signal }) => {
      const spec = readCreateReservationRequest(message);
      return { reservation: reservationMessage(await reservations.create(spec, signal)) };
    },
    getReservation: async (message, { signal }) => {
      const name = readObjectName('GetReservation', message.name);
      return { reservation: reservationMessage(await reservations.get(name, signal)) };
    },
    listReservations: async (message, { signal }) => {
      const query = readChecked('ListReservations', (checks) => readPage(message, SCOPE, checks));
      const { items, more } = await reservations.list(query, signal);
      return {
        reservations: items.map(reservationMessage),
        nextPageToken: formatPageToken(SCOPE, more ? items.at(-1)?.name : undefined),
      };
    },
    updateReservation: async (message, { signal }) => {
      const update = readUpdateReservationRequest(message);
      return { reservation: reservationMessage(await reservations.update(update, signal)) };
    },
    deleteReservation: async ({ name, resourceVersion }, { signal }) => {
      await reservations.delete({ name: readObjectName('DeleteReservation', name), resourceVersion }, signal);
      return {};
    },
  });
}

const SCOPE: ListScope = ['reservations'];

const MAX_CIDRS_COUNT = 1000;

function readCreateReservationRequest({ reservation }: CreateReservationRequest): ReservationSpec {
  return readChecked('CreateReservation', (checks) => {
    if (!reservation) {
      checks.check('reservation', 'is missing');
      return { name: '', prefixes: [] };
    }
    const { name, cidrs } = reservation;
    checks.check('reservation.name', subdomainFault(name));
    return { name, prefixes: readCidrs('reservation.cidrs', cidrs, checks) };
  });
}

function readUpdateReservationRequest(message: UpdateReservationRequest): Replacement<ReservationSpec> {
  const { name, cidrs, resourceVersion } = message;
  return readChecked('UpdateReservation', (checks) => {
    checks.check('name', subdomainFault(name));
    return { spec: { name, prefixes: readCidrs('cidrs', cidrs, checks) }, resourceVersion };
  });
}

function readCidrs(field: string, texts: readonly string[], checks: Checks): Prefix[] {
  if (texts.length === 0) checks.check(field, 'is empty; name at least one range or address');
  if (texts.length > MAX_CIDRS_COUNT)
    checks.check(field, `has ${texts.length} entries; at most ${MAX_CIDRS_COUNT} are allowed`);
  const known = new Set<string>();
  return texts.slice(0, MAX_CIDRS_COUNT).flatMap((text, index) => {
    const { prefix, fault } = readCidr(text);
    const written = prefix && formatPrefix(prefix);
    const isRepeated = written !== undefined && known.has(written);
    checks.check(`${field}[${index}]`, isRepeated ? `repeats ${written}` : fault);
    if (written !== undefined) known.add(written);
    return prefix ?? [];
  });
}

function readCidr(text: string): { readonly prefix?: Prefix; readonly fault?: string } {
  const address = parseAddress(text);
  if (address) return { prefix: hostPrefix(address) };
  const parsed = parsePrefix(text);
  if (parsed.ok) return { prefix: parsed.prefix };
  const example = 'such as 10.65.0.0/28 or 10.65.0.99';
  return { fault: parsed.fault === 'has host bits set' ? parsed.fault : `is ${parsed.fault}, ${example}` };
}

function reservationMessage(reservation: Reservation): ReservationMessage {
  const { name, prefixes, createTimeMs } = reservation;
  return {
    name,
    cidrs: prefixes.map(formatAddressOrPrefix),
    createTime: new Date(createTimeMs),
    resourceVersion: versionOf(reservation),
  };
}
