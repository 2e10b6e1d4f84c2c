import { Failure } from '@podwire/shared/failure/failure';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { Page } from '../allocator/listing.js';
import type { Reservation } from '../allocator/records.js';
import { requireReadable } from '../records/absence.js';
import { wholeSeconds } from '../records/block.js';
import { versionOf } from '../records/versions.js';
import type { Decision, View } from '../records/view.js';

/** Reservations: addresses that are given to nobody who does not ask for them by themselves. */

/** What is to be reserved. */
export interface ReservationSpec {
  readonly name: string;
  readonly prefixes: readonly Prefix[];
}

interface ReservationCreation {
  readonly spec: ReservationSpec;
  readonly uid: string;
  readonly nowMs: number;
}

/** @throws Failure RESERVATION_EXISTS */
export function createReservation(view: View, { spec, uid, nowMs }: ReservationCreation): Decision<Reservation> {
  const { name } = spec;
  if (view.reservation(name)) {
    const text = `reservation "${name}" exists already; choose another name, or update it`;
    throw new Failure('RESERVATION_EXISTS', text, { details: { reservation: name } });
  }
  const value = { ...spec, uid, createTimeMs: wholeSeconds(nowMs) };
  return { changes: [{ type: 'put', record: { kind: 'reservation', value } }], outcome: value };
}

/** @throws Failure RESERVATION_NOT_FOUND, STORE_CORRUPT */
export function getReservation(view: View, name: string): Reservation {
  const reservation = view.reservation(name);
  if (reservation) return reservation;
  requireReadable(view, { kind: 'reservation', name });
  const text = `there is no reservation "${name}"; list the reservations for their names`;
  throw new Failure('RESERVATION_NOT_FOUND', text, { details: { reservation: name } });
}

export interface ReservationQuery {
  /** The name behind which the page begins; empty for the first page. */
  readonly after: string;
  readonly limit: number;
}

/** A page of the reservations, in the order of their names. */
export function listReservations(view: View, { after, limit }: ReservationQuery): Page<Reservation> {
  const behind = view.reservations().filter(({ name }) => name > after);
  return { items: behind.slice(0, limit), more: behind.length > limit };
}

export interface ReservationUpdate extends ReservationSpec {
  /** Change only if the reservation still is of this version; empty for any. */
  readonly resourceVersion: string;
}

interface UpdatedReservation {
  readonly reservation: Reservation;
  readonly changed: boolean;
}

/**
 * Replaces what is reserved. Idempotent where no version is given.
 * @throws Failure RESERVATION_NOT_FOUND, STALE_VERSION
 */
export function updateReservation(view: View, update: ReservationUpdate): Decision<UpdatedReservation> {
  const stored = requireVersion(view, update);
  const value = { ...stored, prefixes: update.prefixes };
  const changed = versionOf(value) !== versionOf(stored);
  return {
    changes: changed ? [{ type: 'put', record: { kind: 'reservation', value } }] : [],
    outcome: { reservation: value, changed },
  };
}

export interface ReservationDeletion {
  readonly name: string;
  /** Delete only if the reservation still is of this version; empty for any. */
  readonly resourceVersion: string;
}

/** @throws Failure RESERVATION_NOT_FOUND, STALE_VERSION */
export function deleteReservation(view: View, deletion: ReservationDeletion): Decision<Reservation> {
  const value = requireVersion(view, deletion);
  return { changes: [{ type: 'delete', record: { kind: 'reservation', value } }], outcome: value };
}

function requireVersion(view: View, { name, resourceVersion }: ReservationDeletion): Reservation {
  const stored = getReservation(view, name);
  if (resourceVersion === '' || resourceVersion === versionOf(stored)) return stored;
  const text = `reservation "${name}" was changed since resource version ${resourceVersion}; read it again and decide anew`;
  throw new Failure('STALE_VERSION', text, { details: { reservation: name } });
}
