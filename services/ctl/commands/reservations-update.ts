import { ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';

import type { Verb } from '../command-line/verb.js';
import { only, RESERVATION_NAME, reservationTable, RESERVED } from '../resources/reservations.js';
import { RESOURCE_VERSION } from './pool-options.js';

export const reservationsUpdate: Verb = {
  name: 'reservations update',
  about: 'replace everything that a reservation reserves',
  positionals: [RESERVATION_NAME, RESERVED],
  options: [RESOURCE_VERSION],
  run: async (input, { ipam, json, clock }) => {
    const answer = await ipam.call(ReservationServiceService.updateReservation, {
      name: input.at(RESERVATION_NAME),
      cidrs: input.rest(RESERVED),
      resourceVersion: input.get(RESOURCE_VERSION) ?? '',
    });
    return {
      sections: [reservationTable(only(answer.reservation), clock.nowMs())],
      data: () => json.of(ReservationServiceService.updateReservation, answer),
    };
  },
};
