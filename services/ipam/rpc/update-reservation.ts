import type { UpdateReservationRequest, UpdateReservationResponse } from '@podwire/proto/podwire/ipam/v1/reservation';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readUpdateReservationRequest, reservationMessage } from '../reservations/reservations-rpc.js';

export function updateReservation(ipam: Ipam): Handler<UpdateReservationRequest, UpdateReservationResponse> {
  return async (message, { signal }) => {
    const update = readUpdateReservationRequest(message);
    return { reservation: reservationMessage(await ipam.reservations.update(update, signal)) };
  };
}
