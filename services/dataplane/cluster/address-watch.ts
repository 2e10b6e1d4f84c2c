import type { Address } from '@podwire/shared/net/address';
import { backoffMs, type BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { NodeNetwork } from '../kernel/node-network-interface.js';

export interface AddressWatchOptions {
  readonly network: Pick<NodeNetwork, 'watch'>;
  /** Where routes may lead whose changes matter. */
  readonly targets: readonly Address[];
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly changed: () => void;
  /** Changes are told from here on; what changed before is not. */
  readonly opened: () => void;
  /** Changes are not told until it is opened again. None of the functions may throw. */
  readonly lost: (error: unknown, retryInMs: number) => void;
}

const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 30_000 };

/** Has the kernel tell changes of the node's addresses until the signal fires; one that it ends, or refuses, is opened anew. Never rejects. */
export async function watchAddresses(options: AddressWatchOptions, signal: AbortSignal): Promise<void> {
  const { clock, random, lost } = options;
  for (let attempt = 0; ; attempt++) {
    const sinceMs = clock.nowMs();
    const failure = await watchOnce(options, signal);
    if (signal.aborted) return;
    // One that ends again and again as soon as it is open is no better than one that is refused.
    if (clock.nowMs() - sinceMs >= BACKOFF.maxMs) attempt = 0;
    const retryInMs = backoffMs(attempt, BACKOFF, random());
    lost(failure, retryInMs);
    await clock.sleep(retryInMs, signal);
  }
}

/** @returns why it is over, once it is */
async function watchOnce(
  { network, targets, changed, opened }: AddressWatchOptions,
  signal: AbortSignal,
): Promise<unknown> {
  let end: (failure: unknown) => void = () => undefined;
  const over = new Promise<unknown>((resolve) => (end = resolve));
  const stop = (): void => end(undefined);
  signal.addEventListener('abort', stop, { once: true });
  try {
    const unwatch = await network.watch({ changed, ended: end }, targets);
    if (signal.aborted) stop();
    else opened();
    const failure = await over;
    unwatch();
    return failure;
  } catch (error) {
    return error;
  } finally {
    signal.removeEventListener('abort', stop);
  }
}
