import { createLogger, type Logger } from '@podwire/shared/runtime/log';

/** A logger that keeps its lines. */
export function recordingLog(): { readonly log: Logger; readonly lines: Record<string, unknown>[] } {
  const lines: Record<string, unknown>[] = [];
  const write = (line: string) => void lines.push(JSON.parse(line));
  return { log: createLogger({ service: 'test', level: 'trace', destination: { write } }), lines };
}
