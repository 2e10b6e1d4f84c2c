/** Packets that rules of nf_tables log (`log group NUMBER`). */
import type { NativeFailure, NativePacket } from './native.js';
import type { Overrun } from './objects.js';
import { checkInteger } from './scalars.js';

export interface PacketLogOptions {
  /** Group of the rules, 1 to 65535. One socket of a namespace can have it, and the next one gets EPERM. */
  readonly group: number;
  /** Bytes that are copied of each packet at most, 1 to 65531; `snaplen` of the rule may be less. */
  readonly copyBytes: number;
}

export interface LoggedPacket {
  readonly object: 'packet';
  /** Prefix of the rule; empty for none. */
  readonly prefix: string;
  /** Index of the interface that the packet came in by; absent for packets of the node itself. */
  readonly inputIndex?: number;
  /** Index of the interface that it leaves by; absent where it is not known yet. */
  readonly outputIndex?: number;
  /** The packet from its IP header on, cut. */
  readonly payload: Buffer;
}

const GROUP = { min: 1, max: 65_535 };
const COPY_BYTES = { min: 1, max: 65_531 };

export function checkPacketLog({ group, copyBytes }: PacketLogOptions) {
  return {
    group: checkInteger('options.group', group, GROUP),
    copyBytes: checkInteger('options.copyBytes', copyBytes, COPY_BYTES),
  };
}

export function toPackets(
  events: readonly (NativePacket | Overrun | NativeFailure)[],
): (LoggedPacket | Overrun | NativeFailure)[] {
  return events.map((event) => {
    if (event.object !== 'packet') return event;
    const { object, prefix, inputIndex, outputIndex, payload } = event;
    const input = inputIndex === null ? {} : { inputIndex };
    return { object, prefix, ...input, ...(outputIndex === null ? {} : { outputIndex }), payload };
  });
}
