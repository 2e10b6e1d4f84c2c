import { metrics } from '@opentelemetry/api';
import type { Logger } from '@podwire/shared/runtime/log';

import { PARTS, type Reason } from './readiness-question.js';

/** What STATUS says now, and why an ADD would fail. */
export interface ReadinessLevel {
  readonly isReady: boolean;
  readonly reasons: readonly Reason[];
}

/** Whether the node is ready, as metrics, and each change of it as a line of log. */
export class ReadinessEvents {
  readonly #log: Logger;

  constructor(log: Logger) {
    this.#log = log;
  }

  /**
   * Publishes the gauges.
   * @param level - read at each export; undefined while no runtime asks for STATUS
   */
  observe(level: () => ReadinessLevel | undefined): void {
    const meter = metrics.getMeter('podwire-plugin');
    const ready = meter.createObservableGauge('podwire.plugin.ready', {
      unit: '1',
      description: 'Whether STATUS succeeds: 1 or 0',
    });
    const blocked = meter.createObservableGauge('podwire.plugin.add_blocked', {
      unit: '1',
      description: 'Whether an ADD would fail for the reason: 1 or 0',
    });
    meter.addBatchObservableCallback(
      (result) => {
        const known = level();
        if (!known) return;
        result.observe(ready, known.isReady ? 1 : 0);
        for (const reason of PARTS) {
          result.observe(blocked, known.reasons.some(({ part }) => part === reason) ? 1 : 0, { reason });
        }
      },
      [ready, blocked],
    );
  }

  /** An ADD of the network would fail now, or for other parts than before. */
  blocked(network: string, reasons: readonly Reason[]): void {
    const text = reasons.map((reason) => reason.text).join('; ');
    this.#log.warn(
      { network, reasons: reasons.map(({ part }) => part) },
      `network ${network}: an ADD would fail: ${text}`,
    );
  }

  /** A defect: the services could not be asked. */
  failed(network: string, error: unknown): void {
    this.#log.error({ err: error, network }, `network ${network}: cannot determine whether an ADD would succeed`);
  }

  /** An ADD of the network can succeed again. */
  unblocked(network: string): void {
    this.#log.info({ network }, `network ${network}: ADDs can succeed again`);
  }
}
