import type { DeleteReservationRequest, DeleteReservationResponse } from '@podwire/proto/podwire/ipam/v1/reservation';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readDeleteReservationRequest } from '../reservations/reservations-rpc.js';

export function deleteReservation(ipam: Ipam): Handler<DeleteReservationRequest, DeleteReservationResponse> {
  return async (message, { signal }) => {
    await ipam.reservations.delete(readDeleteReservationRequest(message), signal);
    return {};
  };
}
