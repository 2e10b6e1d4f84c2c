import type { Reservation } from '@podwire/proto/podwire/ipam/v1/reservation';

import { text } from '../command-line/forms.js';
import type { Positional } from '../command-line/verb.js';
import type { Table } from '../output/report.js';
import { age } from '../output/words.js';

export const RESERVATION_NAME: Positional<string> = {
  form: text('NAME'),
  about: 'name of the reservation',
  presence: 'required',
};

export const RESERVED: Positional<string> = {
  form: text('CIDR'),
  about: 'ranges without host bits (10.65.0.0/28), and addresses (10.65.0.99), in pools or not',
  presence: 'repeated',
};

export function reservationTable(reservations: readonly Reservation[], nowMs: number): Table {
  return {
    kind: 'table',
    columns: ['NAME', 'RESERVED', 'AGE', 'VERSION'],
    rows: reservations.map(({ name, cidrs, createTime, resourceVersion }) => [
      name,
      cidrs.join(', '),
      age(createTime, nowMs),
      resourceVersion,
    ]),
    none: 'There is no reservation.',
  };
}

/** An answer's one reservation, as a list. */
export function only(reservation: Reservation | undefined): Reservation[] {
  return reservation ? [reservation] : [];
}
