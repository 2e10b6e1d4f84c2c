import type { GetReservationRequest, GetReservationResponse } from '@podwire/proto/podwire/ipam/v1/reservation';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readReservationName, reservationMessage } from '../reservations/reservations-rpc.js';

export function getReservation(ipam: Ipam): Handler<GetReservationRequest, GetReservationResponse> {
  return async (message, { signal }) => {
    const name = readReservationName('GetReservation', message.name);
    return { reservation: reservationMessage(await ipam.reservations.get(name, signal)) };
  };
}
