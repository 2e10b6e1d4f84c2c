import { readFile } from 'node:fs/promises';

import { EnrolmentServiceService } from '@podwire/proto/podwire/ipam/v1/enrolment';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { IPAM_SERVER_NAME } from '@podwire/shared/tls/caller';
import { ipamTls } from '@podwire/shared/tls/certificate-source';
import { createSigningRequest } from '@podwire/shared/tls/signing-request';

import { assertReachable } from '../clients/reach.js';
import { inspect, parseCertificates, type CertificateFiles, type Inspection } from './certificate.js';

const SERVICE = 'podwire-ipam';

/** Where a node gets its certificate, and what it proves itself with. */
export interface Issuer {
  /** `host:port` of podwire-ipam's listener for enrolment. */
  readonly address: string;
  /** PEM file of the authorities that sign podwire-ipam's certificate. */
  readonly caFile: string;
  /** File with the token of the node's service account. */
  readonly tokenFile: string;
}

/** Names of the options that set an {@link Issuer}, for messages. */
export const ISSUER_OPTIONS = { address: '--address', caFile: '--ca-file', tokenFile: '--token-file' } as const;

export interface RequestDeps {
  readonly clock: Clock;
  readonly log: Logger;
}

/** Limits of one request, in milliseconds. */
export interface RequestLimits {
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

/** A certificate that was issued, with its files. */
export interface Issued {
  readonly files: CertificateFiles;
  readonly inspection: Extract<Inspection, { readonly usable: true }>;
}

/**
 * Reads a file of an issuer. It may not exist yet: Kubernetes writes ConfigMaps and tokens after the pod has started.
 * @throws Failure INVALID_SETTINGS where it cannot be read, or is empty
 */
export async function readIssuerFile(issuer: Issuer, part: 'caFile' | 'tokenFile'): Promise<string> {
  const [option, path] = [ISSUER_OPTIONS[part], issuer[part]];
  let text: string;
  try {
    text = (await readFile(path, 'utf8')).trim();
  } catch (cause) {
    throw new Failure('INVALID_SETTINGS', `${option} ${path}: cannot be read; create it (${messageOf(cause)})`, {
      cause,
    });
  }
  if (text === '') throw new Failure('INVALID_SETTINGS', `${option} ${path}: is empty; write its content`);
  return text;
}

/**
 * Requests a certificate for this node, with a new key.
 * @throws Failure of the service; UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED; INVALID_SETTINGS for the issuer's files;
 *   INTERNAL for an answer that cannot be used
 */
export async function requestCertificate(
  issuer: Issuer,
  { clock, log }: RequestDeps,
  { timeoutMs, signal }: RequestLimits,
): Promise<Issued> {
  const { address, caFile } = issuer;
  const deadlineMs = clock.nowMs() + timeoutMs;
  const token = await readIssuerFile(issuer, 'tokenFile');
  const files = { ca: { setting: ISSUER_OPTIONS.caFile, path: caFile }, identity: undefined };
  const endpoint = {
    service: SERVICE,
    address,
    option: ISSUER_OPTIONS.address,
    tls: { files, serverName: IPAM_SERVER_NAME },
  };
  await assertReachable(endpoint, { timeoutMs, signal });
  const { key, request: certificateSigningRequest } = await createSigningRequest();
  const peer = new Peer(SERVICE, address, { tls: ipamTls(files, { clock, log }) });
  try {
    const request = { certificateSigningRequest, token };
    const limits = { deadlineMs, signal };
    const { certificate, authorities } = await peer.call(EnrolmentServiceService.issueNodeCertificate, request, limits);
    return usable({ certificate, key, authorities }, peer.description, clock.nowMs());
  } finally {
    peer.close();
  }
}

/** The service may have a defect, or this machine's clock may be wrong. */
function usable(files: CertificateFiles, issuer: string, nowMs: number): Issued {
  const inspection = inspect(files, authoritiesIn(files), nowMs);
  if (inspection.usable) return { files, inspection };
  const advice = "set the clock of this machine, or see the service's log";
  throw new Failure('INTERNAL', `certificate from ${issuer}: ${inspection.fault}; ${advice}`);
}

function authoritiesIn({ authorities }: CertificateFiles): ReturnType<typeof parseCertificates> {
  try {
    return parseCertificates(authorities);
  } catch {
    return [];
  }
}
