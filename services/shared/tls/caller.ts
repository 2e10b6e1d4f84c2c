import type { PeerCertificate } from 'node:tls';

import { Failure } from '../failure/failure.js';

/** Permissions of a caller. A certificate states it as its organization (O): `podwire:node`. */
export const ROLES = ['node', 'operator', 'reader'] as const;
export type Role = (typeof ROLES)[number];

/** Identity of a caller, as the transport or a token proves it. */
export type Caller =
  /** A process on the same machine: over a unix socket that only its owner reaches, or over loopback where that is allowed. */
  { readonly kind: 'local' } | NetworkCaller;

/** The holder of a client certificate or of a token. */
export interface NetworkCaller {
  readonly kind: 'network';
  readonly role: Role;
  /** Whether a reader may run the connectivity test. Default: false. */
  readonly runsTests?: boolean;
  /** The certificate's common name; of a node, the node's name as Kubernetes knows it. */
  readonly name: string;
}

export const LOCAL_CALLER: Caller = { kind: 'local' };

/** DNS name that the certificate of podwire-ipam has, whatever address it is reached at. */
export const IPAM_SERVER_NAME = 'podwire-ipam';

const ORGANIZATION_PREFIX = 'podwire:';

/** The organization that a certificate of a role has. */
export function organizationOf(role: Role): string {
  return `${ORGANIZATION_PREFIX}${role}`;
}

/**
 * The caller that a verified client certificate names.
 * @throws Failure ACCESS_DENIED for a certificate without exactly one role and one common name, or that has expired since
 *   the connection was made
 */
export function callerOf({ subject, valid_to: validTo }: PeerCertificate, nowMs: number): NetworkCaller {
  const texts = (value: string | readonly string[] | undefined): readonly string[] =>
    value === undefined ? [] : typeof value === 'string' ? [value] : value;
  const [name, ...otherNames] = texts(subject.CN);
  const roles = texts(subject.O).flatMap((organization) =>
    ROLES.filter((role) => organizationOf(role) === organization),
  );
  const [role, ...otherRoles] = roles;
  if (name === undefined || otherNames.length > 0 || role === undefined || otherRoles.length > 0) {
    const expected = `one organization of ${ROLES.map(organizationOf).join(', ')} and one common name`;
    throw new Failure('ACCESS_DENIED', `client certificate: it has no role; issue one with ${expected}`);
  }
  if (Date.parse(validTo) <= nowMs)
    throw new Failure(
      'ACCESS_DENIED',
      `client certificate of ${name}: expired at ${validTo}; connect with a renewed one`,
    );
  return { kind: 'network', role, name };
}

/** Caller in messages and logs: `node "worker-1"`. */
export function formatCaller(caller: Caller): string {
  return caller.kind === 'local' ? 'local process' : `${caller.role} ${JSON.stringify(caller.name)}`;
}
