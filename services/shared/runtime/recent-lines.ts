import type { DestinationStream } from 'pino';

const MAX_LINES_COUNT = 2000;

/** A longer line, as of an error with many causes, is kept in part, in characters. */
const MAX_LINE_LENGTH = 4096;

/** Time of a line of pino, in RFC 3339. */
const TIME = /"time":"([^"]+)"/;

/** The last log lines of a process, for support bundles: a container's log may be gone when it is looked for. */
export class RecentLines {
  readonly #lines: string[] = [];
  /** Place of the next line, and of the oldest one once all places are taken. */
  #next = 0;

  /** A destination that writes each line here and there. */
  alongside(destination: DestinationStream): DestinationStream {
    return {
      write: (line) => {
        this.#lines[this.#next] = line.slice(0, MAX_LINE_LENGTH);
        this.#next = (this.#next + 1) % MAX_LINES_COUNT;
        destination.write(line);
      },
    };
  }

  /** @param since - only lines from then on; a line without a readable time is included @returns the lines, oldest first */
  text(since?: Date): string {
    const lines = [...this.#lines.slice(this.#next), ...this.#lines.slice(0, this.#next)];
    const recent = since ? lines.filter((line) => !isBefore(line, since)) : lines;
    return recent.map((line) => (line.endsWith('\n') ? line : `${line}\n`)).join('');
  }
}

function isBefore(line: string, since: Date): boolean {
  const [, time = ''] = TIME.exec(line) ?? [];
  return Date.parse(time) < since.getTime();
}
