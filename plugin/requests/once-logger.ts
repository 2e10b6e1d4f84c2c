import type { Logger } from '@podwire/shared/runtime/log';

/** Number of remembered messages; beyond it the oldest may be logged again. */
const MAX_REMEMBERED = 1_000;

/** Warnings that one sees once, and not for every pod. */
export class Notices {
  readonly #log: Logger;
  readonly #given = new Set<string>();

  constructor(log: Logger) {
    this.#log = log;
  }

  /** Says that keys of a network's configuration are let pass without an effect. */
  keysWithoutMeaning(network: string, keys: readonly string[]): void {
    if (keys.length === 0) return;
    const list = keys.join(', ');
    this.#once(
      `the configuration of network ${network} has keys of Calico's that mean nothing to Podwire, and have no effect: ${list}`,
    );
  }

  /** Says that annotations of a pod are let pass without an effect. */
  annotationsWithoutEffect(pod: string, annotations: readonly string[]): void {
    if (annotations.length === 0) return;
    this.#once(`pod ${pod} has annotations that have no effect under Podwire: ${annotations.join(', ')}`);
  }

  /** Says that a DEL by a shim of a distant release was carried out. */
  distantShim(fault: string): void {
    this.#once(`a DEL is carried out although ${fault}`);
  }

  #once(text: string): void {
    if (this.#given.has(text)) return;
    const [oldest] = this.#given;
    if (this.#given.size >= MAX_REMEMBERED && oldest !== undefined) this.#given.delete(oldest);
    this.#given.add(text);
    this.#log.warn(text);
  }
}
