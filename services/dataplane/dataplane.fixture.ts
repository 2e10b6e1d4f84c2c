import type { Clock } from '@podwire/shared/runtime/clock';
import { createLogger, type Logger } from '@podwire/shared/runtime/log';
import { FakeClock } from '@podwire/shared/testing/clock';

import type { RecordStore } from './pods/record-store.js';
import { AttachmentRegistry } from './pods/registry.js';
import { MemoryRecordStore } from './testing/memory-record-store.js';

/** A logger that keeps its lines. */
export function recordingLog(): { readonly log: Logger; readonly lines: Record<string, unknown>[] } {
  const lines: Record<string, unknown>[] = [];
  const write = (line: string) => void lines.push(JSON.parse(line));
  return { log: createLogger({ service: 'test', level: 'trace', destination: { write } }), lines };
}

/** The boot in which tests run. */
export const BOOT = { id: '0f8fad5b-d9cb-469f-a165-70867728950e', startedAtMs: 500_000 };

/** A registry over a store that does not refuse, unless the test says otherwise. */
export function testRegistry(
  store: RecordStore = new MemoryRecordStore(),
  clock: Clock = new FakeClock(),
): AttachmentRegistry {
  const onRefused = (_: unknown, failure: unknown): never => {
    throw failure;
  };
  return new AttachmentRegistry({ store, bootId: BOOT.id, clock, onRefused });
}
