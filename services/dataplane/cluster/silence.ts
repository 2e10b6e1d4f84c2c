import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

export interface SilenceOptions {
  readonly clock: Clock;
  /** How long a stream may be silent before it is taken for dead, in milliseconds. */
  readonly silenceMs: number;
  /** How long the first message may take before it is told that there is none, in milliseconds; less than the silence. */
  readonly patienceMs: number;
  /** Called once when the first message takes that long. */
  readonly onAwaited: () => void;
}

/** Breaks a stream that nothing comes from: a connection whose other side is gone without a word tells of nothing either. */
export class Silence {
  readonly #options: SilenceOptions;
  readonly #broken = new AbortController();
  readonly #ended = new AbortController();
  #heardAtMs: number | undefined;

  /** Begins with the stream. Whoever makes it ends it. */
  constructor(options: SilenceOptions) {
    this.#options = options;
    void this.#run();
  }

  /** Fires when there was silence for too long. */
  get broken(): AbortSignal {
    return this.#broken.signal;
  }

  /** A message came. */
  heard(): void {
    this.#heardAtMs = this.#options.clock.nowMs();
  }

  /** The stream is over. Idempotent. */
  end(): void {
    this.#ended.abort();
  }

  async #run(): Promise<void> {
    const { clock, silenceMs, patienceMs, onAwaited } = this.#options;
    const { signal } = this.#ended;
    const begunAtMs = clock.nowMs();
    if ((await clock.sleep(patienceMs, signal)) === 'aborted') return;
    if (this.#heardAtMs === undefined) onAwaited();
    for (;;) {
      const leftMs = (this.#heardAtMs ?? begunAtMs) + silenceMs - clock.nowMs();
      if (leftMs <= 0) break;
      if ((await clock.sleep(leftMs, signal)) === 'aborted') return;
    }
    this.#broken.abort(new Failure('UNREACHABLE', `nothing was heard for ${silenceMs} ms`));
  }
}
