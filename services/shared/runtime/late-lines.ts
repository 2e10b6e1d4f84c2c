import { context, type Context } from '@opentelemetry/api';
import type { DestinationStream, LoggerOptions } from 'pino';

interface Line {
  readonly format: () => void;
  readonly timeMs: number;
  readonly context: Context;
}

/**
 * Defers log lines to the next turn of the event loop, after the answers of the current turn. Formatting and writing lines takes a
 * twentieth of a pod's ADD, for which callers would wait. Lines keep their order, time and context; the lines of one turn are one
 * write. A process that exits by any JavaScript path flushes its lines; a killed one loses those of its last turn.
 */
export class LateLines implements DestinationStream {
  readonly #destination: DestinationStream;
  readonly #nowMs: () => number;
  #deferred: Line[] = [];
  /** Time of the line that is being formatted. */
  #timeMs: number | undefined;
  #text = '';

  /** @param nowMs - epoch milliseconds */
  constructor(destination: DestinationStream, nowMs: () => number = Date.now) {
    this.#destination = destination;
    this.#nowMs = nowMs;
    process.on('exit', () => this.flushSync());
  }

  /** Options for a logger with this destination. */
  options(): Pick<LoggerOptions, 'timestamp' | 'hooks'> {
    const add = (format: () => void): void => this.#add(format);
    return {
      timestamp: () => `,"time":"${new Date(this.#timeMs ?? this.#nowMs()).toISOString()}"`,
      hooks: {
        logMethod(args, method) {
          add(() => method.apply(this, args));
        },
      },
    };
  }

  /** Takes a formatted line. Only called by the logger. */
  write(text: string): void {
    this.#text += text;
  }

  /** Formats and writes the deferred lines. The logger calls it after a fatal line. */
  flushSync(): void {
    for (const { format, timeMs, context: lines } of this.#deferred.splice(0)) {
      this.#timeMs = timeMs;
      context.with(lines, format);
    }
    this.#timeMs = undefined;
    const text = this.#text;
    this.#text = '';
    if (text !== '') this.#destination.write(text);
  }

  #add(format: () => void): void {
    if (this.#deferred.length === 0) setImmediate(() => this.flushSync());
    this.#deferred.push({ format, timeMs: this.#nowMs(), context: context.active() });
  }
}
