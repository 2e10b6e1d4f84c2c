import type { Logger } from '@podwire/shared/runtime/log';

/** Number of remembered messages. The oldest is dropped and may be logged again. */
const MAX_REMEMBERED_COUNT = 1_000;

/** Logs each warning once instead of for every pod. */
export class OnceLogger {
  readonly #log: Logger;
  readonly #logged = new Set<string>();

  constructor(log: Logger) {
    this.#log = log;
  }

  warnIgnoredKeys(network: string, keys: readonly string[]): void {
    if (keys.length === 0) return;
    const list = keys.join(', ');
    this.#once(`the configuration of network ${network} has keys of Calico that Podwire ignores: ${list}`);
  }

  /** A DEL was accepted from a shim of an incompatible release. */
  warnShimRelease(fault: string): void {
    this.#once(`DEL was accepted although ${fault}`);
  }

  #once(text: string): void {
    if (this.#logged.has(text)) return;
    const [oldest] = this.#logged;
    if (this.#logged.size >= MAX_REMEMBERED_COUNT && oldest !== undefined) this.#logged.delete(oldest);
    this.#logged.add(text);
    this.#log.warn(text);
  }
}
