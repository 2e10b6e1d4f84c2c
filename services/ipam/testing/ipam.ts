import { Writable } from 'node:stream';

import { createLogger } from '@podwire/shared/runtime/log';

import { Events } from '../engine/events.js';
import type { Store } from '../engine/store.js';
import { instantClock, keys, startReplica } from '../engine/testing/stores.js';
import { HistoryLog } from '../history/history-log.js';
import { Ipam } from '../ipam.js';
import { NOW_MS } from './records.js';

export interface StartedIpam {
  readonly ipam: Ipam;
  readonly events: Events;
  /** The log, each line as JSON. */
  readonly lines: string[];
  /** Advances the monotonic clock. */
  readonly pass: (durationMs: number) => void;
  /** Ends the replica, and leaves the store open. */
  readonly close: () => Promise<void>;
}

/** All of IPAM but its borders, as one replica on a store, with a wall clock that stands still. */
export async function startIpam(store: Store): Promise<StartedIpam> {
  let monotonicMs = 0;
  const clock = { ...instantClock, monotonicMs: () => monotonicMs };
  const { updater, mirror } = await startReplica(store, { clock });
  const lines: string[] = [];
  const destination = new Writable({
    write(chunk: Buffer, _, done) {
      lines.push(chunk.toString());
      done();
    },
  });
  const log = createLogger({ service: 'test', level: 'debug', destination });
  const events = new Events(log);
  let uids = 0;
  const ipam = new Ipam({
    updates: updater,
    events,
    clock: { ...clock, nowMs: () => NOW_MS },
    newUid: () => `uid-${uids++}`,
    history: { log: new HistoryLog(store, keys), retentionHours: 168 },
    unknownNodes: 'register',
  });
  const close = async (): Promise<void> => {
    await updater.close();
    await mirror.close();
  };
  return { ipam, events, lines, pass: (durationMs) => void (monotonicMs += durationMs), close };
}
