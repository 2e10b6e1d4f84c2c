import type { CreateReservationRequest, CreateReservationResponse } from '@podwire/proto/podwire/ipam/v1/reservation';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readCreateReservationRequest, reservationMessage } from '../reservations/reservations-rpc.js';

export function createReservation(ipam: Ipam): Handler<CreateReservationRequest, CreateReservationResponse> {
  return async (message, { signal }) => {
    const spec = readCreateReservationRequest(message);
    return { reservation: reservationMessage(await ipam.reservations.create(spec, signal)) };
  };
}
