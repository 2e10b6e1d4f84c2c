import type { Limits } from '../clients/clients.js';
import type { CommandTools } from './context.js';

/**
 * Time for what a service has, that let the time of an ADD go by, or where the process is to end, in milliseconds: enough for one that is
 * there, and nobody waits longer for what the journal does as well.
 */
export const SILENT_SERVICE_MS = 500;

/**
 * Limits of a service's call that goes on when its caller is gone. The end of the process cuts it off; what is begun after that has
 * {@link SILENT_SERVICE_MS}.
 */
export function limitsWithoutCaller({ limits, ending, clock }: CommandTools, deadlineMs: number): Limits {
  if (!ending.aborted) return { ...limits, deadlineMs, signal: ending };
  const lastMs = Math.min(deadlineMs, clock.nowMs() + SILENT_SERVICE_MS);
  return { ...limits, deadlineMs: lastMs, signal: new AbortController().signal };
}
