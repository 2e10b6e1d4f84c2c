import { systemClock } from '../runtime/clock.js';
import { histogram, onFirstUse } from './instruments.js';

const duration = onFirstUse(() => histogram('podwire.operation.duration'));

const MS_PER_SECOND = 1000;

/** Values of the label `operation` (metric `podwire.operation.duration`). */
type Operation = 'kernel.open' | 'kernel.observe' | 'kernel.batch' | 'dataplane.lock_wait' | 'ipam.lane_wait';

/** Measures a part of a call, sampled or not. @returns a function that ends it, to be called once */
export function startOperation(operation: Operation): () => void {
  const startedMs = systemClock.monotonicMs();
  return () => duration().record((systemClock.monotonicMs() - startedMs) / MS_PER_SECOND, { operation });
}
