import { Reservation, ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';

import type { Verb } from '../command-line/verb.js';
import { only, RESERVATION_NAME, reservationTable, RESERVED } from '../resources/reservations.js';

export const reservationsCreate: Verb = {
  name: 'reservations create',
  about: 'reserve addresses; those in use stay in use',
  positionals: [RESERVATION_NAME, RESERVED],
  examples: ['reservations create routers 10.65.0.0/28 10.65.0.99'],
  run: async (input, { ipam, json, clock }) => {
    const reservation = Reservation.fromPartial({ name: input.at(RESERVATION_NAME), cidrs: input.rest(RESERVED) });
    const answer = await ipam.call(ReservationServiceService.createReservation, { reservation });
    return {
      sections: [reservationTable(only(answer.reservation), clock.nowMs())],
      data: () => json.of(ReservationServiceService.createReservation, answer),
    };
  },
};
