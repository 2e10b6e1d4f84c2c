import { ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';

import type { Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { RESERVATION_NAME } from '../resources/reservations.js';
import { RESOURCE_VERSION } from './pool-options.js';

export const reservationsDelete: Verb = {
  name: 'reservations delete',
  about: 'delete a reservation; anybody may get its addresses from then on',
  positionals: [RESERVATION_NAME],
  options: [RESOURCE_VERSION],
  run: async (input, { ipam, json }) => {
    const name = input.at(RESERVATION_NAME);
    const answer = await ipam.call(ReservationServiceService.deleteReservation, {
      name,
      resourceVersion: input.get(RESOURCE_VERSION) ?? '',
    });
    return {
      sections: [sentence(`reservation ${name} is gone`)],
      data: () => json.of(ReservationServiceService.deleteReservation, answer),
    };
  },
};
