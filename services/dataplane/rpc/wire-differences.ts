import type { CheckPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';

import type { Difference } from '../wiring/difference.js';

/** Of one answer: a pod that is filled from inside differs in thousands of routes, and a message has its limit. */
const LISTED_MAX = 100;

/** What an answer tells of the differences of a pod: the first ones, and how many there are beyond. */
export function differencesMessage(found: readonly Difference[]): CheckPodResponse {
  const differences = found.slice(0, LISTED_MAX);
  return { differences, moreDifferences: found.length - differences.length };
}
