import type { Logger } from '@podwire/shared/runtime/log';
import { observeMetrics } from '@podwire/shared/telemetry/instruments';

import { PARTS, type Reason } from './readiness-probe.js';

/** State of the readiness, for the metrics. */
export interface ReadinessLevel {
  /** Whether STATUS succeeds. */
  readonly isReady: boolean;
  /** Why an ADD would fail. */
  readonly reasons: readonly Reason[];
}

/** Publishes the readiness as metrics, and logs each change. */
export class ReadinessEvents {
  readonly #log: Logger;

  constructor(log: Logger) {
    this.#log = log;
  }

  /**
   * Publishes the gauges.
   * @param level - called at each export; returns undefined while no runtime calls STATUS
   */
  observe(level: () => ReadinessLevel | undefined): void {
    observeMetrics(['podwire.plugin.ready', 'podwire.plugin.add_blocked'], (observe) => {
      const known = level();
      if (!known) return;
      observe('podwire.plugin.ready', known.isReady ? 1 : 0);
      for (const reason of PARTS) {
        const isBlocked = known.reasons.some(({ part }) => part === reason);
        observe('podwire.plugin.add_blocked', isBlocked ? 1 : 0, { reason });
      }
    });
  }

  /** An ADD of the network would fail now, or fails for other reasons than before. */
  blocked(network: string, reasons: readonly Reason[]): void {
    const text = reasons.map((reason) => reason.text).join('; ');
    this.#log.warn(
      { network, reasons: reasons.map(({ part }) => part) },
      `network ${network}: an ADD would fail: ${text}`,
    );
  }

  /** A defect: the probe failed. */
  failed(network: string, error: unknown): void {
    this.#log.error({ err: error, network }, `network ${network}: cannot determine whether an ADD would succeed`);
  }

  /** An ADD of the network can succeed again. */
  unblocked(network: string): void {
    this.#log.info({ network }, `network ${network}: ADDs can succeed again`);
  }
}
