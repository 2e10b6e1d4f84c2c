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
  /** Operations for one dry run. */
  readonly dryRun: () => Ipam;
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
  const options = {
    updates: updater,
    events,
    clock: { ...clock, nowMs: () => NOW_MS },
    newUid: () => `uid-${uids++}`,
    history: { log: new HistoryLog(store, keys), retentionHours: 168 },
    unknownNodes: 'register',
  } as const;
  const ipam = new Ipam(options);
  const dryRun = () =>
    new Ipam({ ...options, updates: updater.preview(), events: new Events(log, true), isDryRun: true });
  const close = async (): Promise<void> => {
    await updater.close();
    await mirror.close();
  };
  return { ipam, dryRun, events, lines, pass: (durationMs) => void (monotonicMs += durationMs), close };
}
