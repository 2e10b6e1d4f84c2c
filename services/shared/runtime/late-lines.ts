import { context, type Context } from '@opentelemetry/api';
import type { DestinationStream, LoggerOptions } from 'pino';

interface Line {
  readonly make: () => void;
  readonly timeMs: number;
  readonly context: Context;
}

/**
 * Defers log lines until the event loop's turn has sent its answers: formatting and writing them takes a twentieth of a
 * pod's ADD, which callers would wait for. Lines keep their order, time and context; the lines of one turn are one
 * write. A process that exits by any JavaScript path flushes its lines; a killed one loses those of its last turn.
 */
export class LateLines implements DestinationStream {
  readonly #destination: DestinationStream;
  readonly #nowMs: () => number;
  #waiting: Line[] = [];
  /** Of the line that is being made. */
  #timeMs: number | undefined;
  #text = '';

  /** @param nowMs - epoch milliseconds */
  constructor(destination: DestinationStream, nowMs: () => number = Date.now) {
    this.#destination = destination;
    this.#nowMs = nowMs;
    process.on('exit', () => this.flushSync());
  }

  /** What a logger needs whose destination this is. */
  options(): Pick<LoggerOptions, 'timestamp' | 'hooks'> {
    const add = (make: () => void): void => this.#add(make);
    return {
      timestamp: () => `,"time":"${new Date(this.#timeMs ?? this.#nowMs()).toISOString()}"`,
      hooks: {
        logMethod(args, method) {
          add(() => method.apply(this, args));
        },
      },
    };
  }

  /** For the logger alone: takes a line that is made. */
  write(text: string): void {
    this.#text += text;
  }

  /** Makes and writes what waits; the logger itself asks for it after a fatal line. */
  flushSync(): void {
    for (const { make, timeMs, context: lines } of this.#waiting.splice(0)) {
      this.#timeMs = timeMs;
      context.with(lines, make);
    }
    this.#timeMs = undefined;
    const text = this.#text;
    this.#text = '';
    if (text !== '') this.#destination.write(text);
  }

  #add(make: () => void): void {
    if (this.#waiting.length === 0) setImmediate(() => this.flushSync());
    this.#waiting.push({ make, timeMs: this.#nowMs(), context: context.active() });
  }
}
