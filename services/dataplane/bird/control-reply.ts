/** One line of a reply on BIRD's control socket. */
export interface ReplyLine {
  /** 0xxx done, 1xxx data, 2xxx headings, 8xxx refused, 9xxx not understood. */
  readonly code: number;
  readonly text: string;
}

/** What BIRD answers to one command: the last line says how it ended. */
export interface Reply {
  readonly lines: readonly ReplyLine[];
}

/** Code of the last line. */
export function codeOf({ lines }: Reply): number {
  return lines.at(-1)?.code ?? 0;
}

export function isRefusal(reply: Reply): boolean {
  return codeOf(reply) >= 8000;
}

/** The last line, which says what came of it. */
export function outcomeOf({ lines }: Reply): string {
  return lines.at(-1)?.text ?? '';
}

/** Longest reply that is taken: with some thousand sessions, `show protocols all` writes a few megabytes. In characters. */
const MAX_REPLY_LENGTH = 64 * 1024 * 1024;

/**
 * Puts replies together from what the socket gives, however it is cut.
 *
 * A line is `CODE-text` when more follow, `CODE text` when it is the last of its reply, or ` text` for one of the same code as
 * the line before it; lines that begin with `+` were sent unasked, by commands that this side never gives.
 */
export class ReplyReader {
  #rest = '';
  #lines: ReplyLine[] = [];
  #length = 0;

  /**
   * @returns the replies that are complete with this piece
   * @throws RangeError when something sends that is not BIRD
   */
  push(piece: string): Reply[] {
    const texts = (this.#rest + piece).split('\n');
    this.#rest = texts.pop() ?? '';
    this.#length += piece.length;
    if (this.#length > MAX_REPLY_LENGTH) throw new RangeError(`a reply of more than ${MAX_REPLY_LENGTH} characters`);
    return texts.flatMap((text) => this.#line(text) ?? []);
  }

  #line(text: string): Reply | undefined {
    if (text.startsWith('+')) return undefined;
    const match = /^(\d{4})([ -])(.*)$/.exec(text);
    if (!match) {
      if (!text.startsWith(' ') && text !== '') throw new RangeError(`a line without a code: ${text.slice(0, 80)}`);
      this.#lines.push({ code: this.#lines.at(-1)?.code ?? 0, text: text.slice(1) });
      return undefined;
    }
    this.#lines.push({ code: Number(match[1]), text: match[3] ?? '' });
    if (match[2] === '-') return undefined;
    const lines = this.#lines;
    this.#lines = [];
    this.#length = 0;
    return { lines };
  }
}
