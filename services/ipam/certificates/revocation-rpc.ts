import {
  CertificateServiceService,
  type RevokedCertificate as RevokedCertificateMessage,
} from '@podwire/proto/podwire/ipam/v1/certificate';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { read, type IpamOptions } from '../engine/updates/operation.js';
import { readSerialNumber, type RevokedCertificate } from '../records/revoked-certificate.js';
import { restore, revoke, revokedCertificates } from './revocation.js';

const LANE = 'revoked certificates';

/** Manages the list of revoked certificates, and looks certificates up in it. */
export class Revocations {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /** Check of each call with a certificate. @throws Failure STORE_CORRUPT */
  async isRevoked(text: string): Promise<boolean> {
    const listed = await this.#options.updates.peek(revokedCertificates);
    if (listed.length === 0) return false;
    const serialNumber = readSerialNumber(text);
    return listed.some((each) => each.serialNumber === serialNumber);
  }

  /** @throws Failure STORE_CORRUPT */
  list(signal: AbortSignal): Promise<readonly RevokedCertificate[]> {
    return read(this.#options, revokedCertificates, signal);
  }

  /** Idempotent. @throws Failure STORE_LIMIT, STORE_CORRUPT */
  async revoke(wanted: Omit<RevokedCertificate, 'revokedAtMs'>, signal: AbortSignal): Promise<RevokedCertificate> {
    const { updates, clock, events } = this.#options;
    const entry = { ...wanted, revokedAtMs: clock.nowMs() };
    const { certificate, isNew } = await updates.update(LANE, (view) => revoke(view, entry), { signal });
    if (isNew) events.log.info(`revoked certificate ${describe(certificate)}`);
    return certificate;
  }

  /** @throws Failure CERTIFICATE_NOT_FOUND, STORE_CORRUPT */
  async restore(serialNumber: string, signal: AbortSignal): Promise<void> {
    const { updates, events } = this.#options;
    const restored = await updates.update(LANE, (view) => restore(view, serialNumber), { signal });
    events.log.info(`certificate ${describe(restored)} is not revoked any more`);
  }
}

export function certificateService(revocations: Revocations, unary: Unary): RpcService {
  return unaryService(CertificateServiceService, unary, {
    revokeCertificate: async ({ certificate }, { signal }) => {
      const wanted = readChecked('RevokeCertificate', (checks) => ({
        serialNumber: readSerial('certificate.serial_number', certificate?.serialNumber ?? '', checks),
        name: certificate?.name ?? '',
        expiresAtMs: certificate?.expireTime?.getTime(),
      }));
      return { certificate: messageOf(await revocations.revoke(wanted, signal)) };
    },
    listRevokedCertificates: async (_, { signal }) => ({
      certificates: (await revocations.list(signal)).map(messageOf),
    }),
    restoreCertificate: async (message, { signal }) => {
      const serialNumber = readChecked('RestoreCertificate', (checks) =>
        readSerial('serial_number', message.serialNumber, checks),
      );
      await revocations.restore(serialNumber, signal);
      return {};
    },
  });
}

function readSerial(field: string, text: string, checks: Checks): string {
  const serialNumber = readSerialNumber(text);
  if (serialNumber === undefined) checks.check(field, 'is not a serial number in hexadecimal digits');
  return serialNumber ?? '';
}

function messageOf(certificate: RevokedCertificate): RevokedCertificateMessage {
  const { serialNumber, name, expiresAtMs, revokedAtMs } = certificate;
  const expireTime = expiresAtMs === undefined ? undefined : new Date(expiresAtMs);
  return { serialNumber, name, expireTime, revokeTime: new Date(revokedAtMs) };
}

function describe({ serialNumber, name }: RevokedCertificate): string {
  return name === '' ? serialNumber : `${serialNumber} of "${name}"`;
}
