/** Packets that ask for an answer, sent from a network namespace. */
import { ArgumentError, describeErrno } from './errors.js';
import type { NativeProbe, NativeProbeAnswer } from './native.js';
import { checkAddress, checkArray, checkFlag, checkInteger, checkRecord, optional, PORT } from './scalars.js';

export interface Probe {
  readonly address: string;
  /** A TCP connection to this port; absent: an ICMP echo request. */
  readonly port?: number;
  /** A UDP datagram to the port. A host without a listener reports ECONNREFUSED. */
  readonly udp?: boolean;
  /** Data of the echo request or the datagram, 0 to 65,000 bytes. Default: 0. It is never fragmented. */
  readonly payloadBytes?: number;
}

export interface ProbeAnswer {
  /** Time until the answer, or until the error. */
  readonly ms: number;
  /** Absent: answered. ETIMEDOUT: no answer. */
  readonly error?: ProbeError;
}

export interface ProbeError {
  /** `EHOSTUNREACH`. */
  readonly code: string;
  readonly meaning: string;
  /** Host whose ICMP message refused the packet; absent if the namespace itself refused it, or no host did. */
  readonly reporter?: string;
  /** With EMSGSIZE, the largest packet that passes; absent if unknown. */
  readonly mtuBytes?: number;
}

/** Each probe has a socket. */
const PROBES_MAX = 512;
const PAYLOAD_BYTES = { min: 0, max: 65_000 };

export function checkProbes(probes: readonly Probe[]): NativeProbe[] {
  checkArray('probes', probes);
  if (probes.length > PROBES_MAX) throw new ArgumentError('probes', `must have at most ${PROBES_MAX} elements`);
  return probes.map((probe, position) => {
    const path = `probes[${position}]`;
    checkRecord(path, probe);
    return {
      address: checkAddress(`${path}.address`, probe.address),
      port: optional(probe.port, (port) => checkInteger(`${path}.port`, port, PORT)) ?? 0,
      udp: checkFlag(`${path}.udp`, probe.udp),
      payloadBytes: checkInteger(`${path}.payloadBytes`, probe.payloadBytes ?? 0, PAYLOAD_BYTES),
    };
  });
}

export function toProbeAnswer({ errno, milliseconds: ms, reporter, mtuBytes }: NativeProbeAnswer): ProbeAnswer {
  if (errno === 0) return { ms };
  const [code, meaning] = describeErrno(errno);
  const error = { code, meaning, ...(reporter !== null && { reporter }), ...(mtuBytes > 0 && { mtuBytes }) };
  return { ms, error };
}
