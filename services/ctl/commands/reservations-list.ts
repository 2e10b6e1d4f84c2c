import { ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';

import { allPages } from '../clients/pages.js';
import type { Verb } from '../command-line/verb.js';
import { reservationTable } from '../resources/reservations.js';

export const reservationsList: Verb = {
  name: 'reservations list',
  about: 'addresses that are given only to pods that ask for them in particular',
  run: async (_, { ipam, json, clock }) => {
    const pages = await allPages((page) => ipam.call(ReservationServiceService.listReservations, page));
    const reservations = pages.flatMap((page) => page.reservations);
    return {
      sections: [reservationTable(reservations, clock.nowMs())],
      data: () => json.of(ReservationServiceService.listReservations, { reservations, nextPageToken: '' }),
    };
  },
};
