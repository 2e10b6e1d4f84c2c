import { ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';

import type { Verb } from '../command-line/verb.js';
import { only, RESERVATION_NAME, reservationTable } from '../resources/reservations.js';

export const reservationsShow: Verb = {
  name: 'reservations show',
  about: 'one reservation',
  positionals: [RESERVATION_NAME],
  run: async (input, { ipam, json, clock }) => {
    const answer = await ipam.call(ReservationServiceService.getReservation, { name: input.at(RESERVATION_NAME) });
    return {
      sections: [reservationTable(only(answer.reservation), clock.nowMs())],
      data: () => json.of(ReservationServiceService.getReservation, answer),
    };
  },
};
