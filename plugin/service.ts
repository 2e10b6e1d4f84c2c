import { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';

import { dataplaneClient } from './clients/dataplane.js';
import { ipamClient } from './clients/ipam.js';
import { nodeNetnsReader } from './netns.js';
import { run, type RunOptions } from './run.js';
import { CniServer } from './server.js';
import type { PluginSettings } from './settings.js';
import { Turns } from './turns.js';
import { wallTimeNs, type Stopwatch } from './wall-time.js';

/** The shim has read all of its input before it sends, so that only what is broken takes as long. */
const REQUEST_TIMEOUT_MS = 10_000;

/** What the plugin takes from the process that it runs in. */
export interface Surroundings {
  readonly log: Logger;
  readonly clock: Clock;
  readonly stopwatch: Stopwatch;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
}

/** Starts the resident plugin: the ways to the services, and the server for the shim. The services may come later. */
export async function startPlugin(
  settings: PluginSettings,
  { log, clock, stopwatch, random }: Surroundings,
): Promise<Running> {
  const ipam = new Peer('podwire-ipam', settings.ipamAddress);
  const dataplane = new Peer('podwire-dataplane', settings.dataplaneAddress);
  const options: RunOptions = {
    tools: {
      ipam: ipamClient({ peer: ipam, clock, random }),
      dataplane: dataplaneClient({ peer: dataplane, clock, random }),
      netns: nodeNetnsReader(),
      nodeName: settings.nodeName,
      clock,
      log,
      cleanUpTimeoutMs: settings.cleanUpTimeoutMs,
    },
    turns: new Turns(clock),
    timeoutMs: { ADD: settings.addTimeoutMs, CHECK: settings.addTimeoutMs, DEL: settings.delTimeoutMs },
  };
  const server = new CniServer({
    path: settings.socket,
    log,
    run: (request) => run(request, options),
    nowNs: wallTimeNs(clock, stopwatch),
    requestTimeoutMs: REQUEST_TIMEOUT_MS,
  });
  await server.listen();
  return {
    async stop() {
      await server.stop();
      ipam.close();
      dataplane.close();
    },
  };
}
