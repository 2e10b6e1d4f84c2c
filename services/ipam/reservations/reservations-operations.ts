import type { Logger } from '@podwire/shared/runtime/log';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Events } from '../engine/events.js';
import { read, type IpamOptions } from '../engine/updates/operation.js';
import type { Reservation } from '../records/config.js';
import type { Page, PageQuery } from '../records/page.js';
import {
  createReservation,
  deleteReservation,
  getReservation,
  listReservations,
  updateReservation,
  type ReservationDeletion,
  type ReservationSpec,
  type ReservationUpdate,
} from './reservations.js';

const RESERVATIONS_LANE = 'reservations';

/** Reports changes of reservations after the commit. */
class ReservationEvents {
  readonly #log: Logger;

  constructor(events: Events) {
    this.#log = events.log;
  }

  reservationChanged(event: 'created' | 'updated' | 'deleted', { name, prefixes }: Reservation): void {
    const facts = { 'podwire.reservation': name };
    this.#log.info(
      facts,
      `${event} reservation "${name}" of ${formatCount(prefixes.length, 'address or range', 'addresses or ranges')}`,
    );
  }
}

/** Manages the addresses that are excluded from automatic allocation. */
export class Reservations {
  readonly #options: IpamOptions;
  readonly #events: ReservationEvents;

  constructor(options: IpamOptions) {
    this.#options = options;
    this.#events = new ReservationEvents(options.events);
  }

  /** Not idempotent. @throws Failure RESERVATION_EXISTS */
  async create(spec: ReservationSpec, signal: AbortSignal): Promise<Reservation> {
    const { updates, clock, newUid } = this.#options;
    const creation = { spec, uid: newUid(), nowMs: clock.nowMs() };
    const created = await updates.update(RESERVATIONS_LANE, (view) => createReservation(view, creation), { signal });
    this.#events.reservationChanged('created', created);
    return created;
  }

  /** @throws Failure RESERVATION_NOT_FOUND */
  get(name: string, signal: AbortSignal): Promise<Reservation> {
    return read(this.#options, (view) => getReservation(view, name), signal);
  }

  list(query: PageQuery, signal: AbortSignal): Promise<Page<Reservation>> {
    return read(this.#options, (view) => listReservations(view, query), signal);
  }

  /** Idempotent without a version. @throws Failure RESERVATION_NOT_FOUND, STALE_VERSION */
  async update(update: ReservationUpdate, signal: AbortSignal): Promise<Reservation> {
    const { updates } = this.#options;
    const decide = (view: Parameters<typeof updateReservation>[0]) => updateReservation(view, update);
    const { reservation, changed } = await updates.update(RESERVATIONS_LANE, decide, { signal });
    if (changed) this.#events.reservationChanged('updated', reservation);
    return reservation;
  }

  /** @throws Failure RESERVATION_NOT_FOUND, STALE_VERSION */
  async delete(deletion: ReservationDeletion, signal: AbortSignal): Promise<void> {
    const { updates } = this.#options;
    const deleted = await updates.update(RESERVATIONS_LANE, (view) => deleteReservation(view, deletion), { signal });
    this.#events.reservationChanged('deleted', deleted);
  }
}
