import { Reservation, ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';

import { allPages } from '../clients/services.js';
import { text } from '../command-line/forms.js';
import { RESOURCE_VERSION } from '../command-line/options.js';
import type { Positional, Verb } from '../command-line/verb.js';
import { sentence, type Table } from '../output/report.js';
import { age } from '../output/words.js';

const RESERVATION_NAME: Positional<string> = {
  form: text('NAME'),
  about: 'name of the reservation',
  presence: 'required',
};

const RESERVED_CIDRS: Positional<string> = {
  form: text('CIDR'),
  about: 'ranges without host bits (10.65.0.0/28) and addresses (10.65.0.99), inside or outside pools',
  presence: 'repeated',
};

function reservationTable(reservations: readonly Reservation[], nowMs: number): Table {
  return {
    kind: 'table',
    columns: ['NAME', 'RESERVED', 'AGE', 'VERSION'],
    rows: reservations.map(({ name, cidrs, createTime, resourceVersion }) => [
      name,
      cidrs.join(', '),
      age(createTime, nowMs),
      resourceVersion,
    ]),
    none: 'reservations: none',
  };
}

/** The reservation of an answer as a list. */
function reservationList(reservation: Reservation | undefined): Reservation[] {
  return reservation ? [reservation] : [];
}

export const reservationsCreate: Verb = {
  name: 'reservations create',
  about: 'reserve addresses; addresses in use stay allocated',
  positionals: [RESERVATION_NAME, RESERVED_CIDRS],
  examples: ['reservations create routers 10.65.0.0/28 10.65.0.99'],
  run: async (input, { ipam, json, clock }) => {
    const reservation = Reservation.fromPartial({
      name: input.at(RESERVATION_NAME),
      cidrs: input.rest(RESERVED_CIDRS),
    });
    const answer = await ipam.call(ReservationServiceService.createReservation, { reservation });
    return {
      sections: [reservationTable(reservationList(answer.reservation), clock.nowMs())],
      data: () => json.of(ReservationServiceService.createReservation, answer),
    };
  },
};

export const reservationsDelete: Verb = {
  name: 'reservations delete',
  about: 'delete a reservation; its addresses may then be allocated to any pod',
  positionals: [RESERVATION_NAME],
  options: [RESOURCE_VERSION],
  run: async (input, { ipam, json }) => {
    const name = input.at(RESERVATION_NAME);
    const answer = await ipam.call(ReservationServiceService.deleteReservation, {
      name,
      resourceVersion: input.get(RESOURCE_VERSION) ?? '',
    });
    return {
      sections: [sentence(`reservation ${name} is deleted`)],
      data: () => json.of(ReservationServiceService.deleteReservation, answer),
    };
  },
};

export const reservationsList: Verb = {
  name: 'reservations list',
  about: 'the reservations: addresses that are allocated only on request of the address itself',
  run: async (_, { ipam, json, clock }) => {
    const pages = await allPages((page) => ipam.call(ReservationServiceService.listReservations, page));
    const reservations = pages.flatMap((page) => page.reservations);
    return {
      sections: [reservationTable(reservations, clock.nowMs())],
      data: () => json.of(ReservationServiceService.listReservations, { reservations, nextPageToken: '' }),
    };
  },
};

export const reservationsShow: Verb = {
  name: 'reservations show',
  about: 'details of one reservation',
  positionals: [RESERVATION_NAME],
  run: async (input, { ipam, json, clock }) => {
    const answer = await ipam.call(ReservationServiceService.getReservation, { name: input.at(RESERVATION_NAME) });
    return {
      sections: [reservationTable(reservationList(answer.reservation), clock.nowMs())],
      data: () => json.of(ReservationServiceService.getReservation, answer),
    };
  },
};

export const reservationsUpdate: Verb = {
  name: 'reservations update',
  about: 'replace the addresses of a reservation',
  positionals: [RESERVATION_NAME, RESERVED_CIDRS],
  options: [RESOURCE_VERSION],
  run: async (input, { ipam, json, clock }) => {
    const answer = await ipam.call(ReservationServiceService.updateReservation, {
      name: input.at(RESERVATION_NAME),
      cidrs: input.rest(RESERVED_CIDRS),
      resourceVersion: input.get(RESOURCE_VERSION) ?? '',
    });
    return {
      sections: [reservationTable(reservationList(answer.reservation), clock.nowMs())],
      data: () => json.of(ReservationServiceService.updateReservation, answer),
    };
  },
};
