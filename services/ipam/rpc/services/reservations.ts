import { ReservationServiceService, type ReservationServiceServer } from '@podwire/proto/podwire/ipam/v1/reservation';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { createReservation } from '../create-reservation.js';
import { deleteReservation } from '../delete-reservation.js';
import { getReservation } from '../get-reservation.js';
import { listReservations } from '../list-reservations.js';
import { updateReservation } from '../update-reservation.js';

export function reservationService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: ReservationServiceServer = {
    createReservation: unary(ReservationServiceService.createReservation, createReservation(ipam)),
    getReservation: unary(ReservationServiceService.getReservation, getReservation(ipam)),
    listReservations: unary(ReservationServiceService.listReservations, listReservations(ipam)),
    updateReservation: unary(ReservationServiceService.updateReservation, updateReservation(ipam)),
    deleteReservation: unary(ReservationServiceService.deleteReservation, deleteReservation(ipam)),
  };
  return { name: 'podwire.ipam.v1.ReservationService', definition: ReservationServiceService, implementation };
}
