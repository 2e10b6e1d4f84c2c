import type { ListReservationsRequest, ListReservationsResponse } from '@podwire/proto/podwire/ipam/v1/reservation';
import { checked } from '@podwire/shared/rpc/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { reservationMessage } from '../reservations/reservations-rpc.js';
import type { ReservationQuery } from '../reservations/reservations.js';

const SCOPE: ListScope = ['reservations'];

export function listReservations(ipam: Ipam): Handler<ListReservationsRequest, ListReservationsResponse> {
  return async (message, { signal }) => {
    const { items, more } = await ipam.reservations.list(readQuery(message), signal);
    const last = items.at(-1);
    return {
      reservations: items.map(reservationMessage),
      nextPageToken: more && last ? formatPageToken(SCOPE, last.name) : '',
    };
  };
}

function readQuery(message: ListReservationsRequest): ReservationQuery {
  return checked('ListReservations', (checks) => ({
    limit: readPageSize(message, checks),
    after: readPageToken(message, SCOPE, checks),
  }));
}
