import { Reservation, ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';
import type { z } from 'zod';

import { allPages } from '../clients/services.js';
import { sentence } from '../output/report.js';
import { age, moment } from '../output/words.js';
import { resource } from './resource.js';
import type { IP_RESERVATION_SPEC } from './specs.js';

const { createReservation, updateReservation, getReservation, listReservations, deleteReservation } =
  ReservationServiceService;

/** Calico takes only CIDRs, also for single addresses. */
function fullCidr(text: string): string {
  return text.includes('/') ? text : `${text}/${text.includes(':') ? 128 : 32}`;
}

export const IP_RESERVATION = resource<Reservation, z.infer<typeof IP_RESERVATION_SPEC>>({
  columns: [
    { head: 'NAME', cell: ({ name }) => name },
    { head: 'RESERVED', cell: ({ cidrs }) => cidrs.join(', ') },
    { head: 'AGE', cell: ({ createTime }, nowMs) => age(createTime, nowMs) },
    { head: 'VERSION', cell: ({ resourceVersion }) => resourceVersion },
  ],
  none: 'reservations: none',
  nameOf: ({ name }) => name,
  metadata: ({ createTime, resourceVersion }) => ({ creationTimestamp: moment(createTime), resourceVersion }),
  spec: ({ cidrs }) => ({ reservedCIDRs: cidrs.map(fullCidr) }),
  details: ({ name, cidrs, createTime, resourceVersion }) => [
    {
      kind: 'fields',
      fields: [
        ['Name', name],
        ['Reserved', cidrs.join(', ')],
        ['Created', moment(createTime)],
        ['Version', resourceVersion],
      ],
    },
  ],
  data: (reservation, { json }) => json.of(getReservation, { reservation }),
  list: async (_, { ipam }) => {
    const pages = await allPages((page) => ipam.call(listReservations, page));
    return pages.flatMap(({ reservations }) => reservations);
  },
  get: async (name, { ipam }) => (await ipam.call(getReservation, { name })).reservation,
  notFound: 'RESERVATION_NOT_FOUND',
  schema: async () => (await import('./specs.js')).IP_RESERVATION_SPEC,
  create: async ({ name, spec }, { ipam }) => {
    const reservation = Reservation.fromPartial({ name, cidrs: spec.reservedCIDRs });
    return (await ipam.call(createReservation, { reservation })).reservation;
  },
  update: async ({ name, resourceVersion = '', spec }, { ipam }) =>
    (await ipam.call(updateReservation, { name, cidrs: spec.reservedCIDRs, resourceVersion })).reservation,
  deletion: {
    warning: () => 'This reservation would be deleted; its addresses may then be allocated to any pod:',
    run: async (name, resourceVersion, _, { ipam, json }) => {
      const answer = await ipam.call(deleteReservation, { name, resourceVersion });
      return {
        sections: [sentence(`reservation ${name} is deleted`)],
        data: () => json.of(deleteReservation, answer),
      };
    },
  },
});
