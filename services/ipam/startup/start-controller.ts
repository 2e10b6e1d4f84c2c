import type { Clock } from '@podwire/shared/runtime/clock';

import type { Config } from '../config.js';
import type { Events } from '../engine/events.js';
import type { Ipam } from '../ipam.js';
import type { KubernetesApi } from '../api-server/api.js';
import { ControllerEvents } from '../node-controller/controller-events.js';
import { NodeController } from '../node-controller/node-controller.js';
import { Upkeep, type LockGuard, type UpkeepTask } from '../upkeep.js';

interface ControllerDeps {
  readonly config: Pick<Config, 'nodeGraceSeconds'>;
  readonly api: KubernetesApi;
  readonly events: Events;
  readonly pause: LockGuard;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
}

/** Mean time between two rounds, in milliseconds; a tenth of the grace period if that is less. */
const ROUND_MS = 30_000;

/** A round may wait for the API server's lists and for the deletion of several nodes. */
const ROUND_TIMEOUT_MS = 600_000;

/** A round begins after 1.5 times the mean at most; the rest is for the round itself. */
const LONGEST_PER_MEAN = 4;

/** Starts the node controller. The caller stops it before it closes the API server and the datastore. */
export function startNodeController(ipam: Ipam, deps: ControllerDeps): Pick<Upkeep, 'stop'> {
  const { config, api, events, pause, clock, random } = deps;
  const graceMs = config.nodeGraceSeconds * 1000;
  const intervalMs = Math.min(ROUND_MS, graceMs / 10);
  const controller = new NodeController({
    ...{ api, clock, random, graceMs },
    nodes: ipam.nodes,
    addresses: ipam.addresses,
    listEndpoints: (query, signal) => ipam.endpoints.list(query, signal),
    events: new ControllerEvents(events),
    longestRoundMs: intervalMs * LONGEST_PER_MEAN,
  });
  const tasks: UpkeepTask[] = [
    { name: 'release-deleted-nodes', run: (signal) => controller.releaseDeletedNodes(signal) },
    { name: 'release-deleted-pods', run: (signal) => controller.releaseDeletedPods(signal) },
  ];
  const upkeep = new Upkeep({
    tasks: tasks.map((task) => pause.unlessLocked(task)),
    ...{ clock, random, intervalMs },
    taskTimeoutMs: ROUND_TIMEOUT_MS,
    reportFailure: (task, error) => events.upkeepFailed(task, error),
  });
  return {
    stop: async () => {
      await Promise.all([upkeep.stop(), controller.stop()]);
    },
  };
}
