import type { ManualClock } from '@podwire/shared/testing/manual-clock';

import { KubernetesApi, type ApiRequest } from '../api-server/api.js';

/** The API server for code in the background that a clock drives. */
export class CountingApi extends KubernetesApi {
  #inFlightCount = 0;

  override send(request: ApiRequest) {
    this.#inFlightCount++;
    return super.send(request).finally(() => this.#inFlightCount--);
  }

  /** Advances the clock, and waits for the answers to the requests of that time. */
  async pass(clock: ManualClock, ms: number): Promise<void> {
    for (let left = ms; left >= 0; left -= 200) {
      clock.advance(Math.min(left, 200));
      for (let turn = 0; turn < 10 || this.#inFlightCount > 0; turn++)
        await new Promise((resolve) => setImmediate(resolve));
    }
  }
}
