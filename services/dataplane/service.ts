import { RpcServer } from '@podwire/shared/rpc/server';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Config } from './config.js';
import { Dataplane } from './dataplane.js';
import { Events } from './events.js';
import type { Kernel } from './kernel/kernel.js';
import { NetlinkKernel } from './kernel/netlink/netlink-kernel.js';
import { dataplaneServices } from './rpc/index.js';

/** What the service takes from the process it runs in. */
export interface Surroundings {
  readonly log: Logger;
  readonly clock: Clock;
}

/** A service that answers. */
export interface RunningService extends Running {
  /** Where it listens, with the ports that were taken where port 0 was asked for. */
  readonly addresses: readonly string[];
}

/**
 * Starts podwire-dataplane on this machine's kernel.
 * @throws Failure as {@link serve}, or KERNEL_REFUSED when the kernel cannot be asked
 */
export async function startService(config: Config, surroundings: Surroundings): Promise<RunningService> {
  return serve(await NetlinkKernel.open(), { config, surroundings });
}

export interface ServeOptions {
  readonly config: Config;
  readonly surroundings: Surroundings;
}

/**
 * Serves gRPC in front of a kernel, which it closes in the end. Health checks are told that it serves once the kernel is known
 * to have what pods need.
 * @throws Failure KERNEL_UNSUPPORTED, KERNEL_REFUSED, or INVALID_SETTINGS when an address is taken
 */
export async function serve(kernel: Kernel, { config, surroundings }: ServeOptions): Promise<RunningService> {
  const { log, clock } = surroundings;
  const dataplane = new Dataplane({ kernel, events: new Events(log) });
  const server = new RpcServer({
    addresses: config.listen,
    log,
    clock,
    defaultCallTimeoutMs: config.callTimeoutMs,
    drainTimeoutMs: config.drainTimeoutMs,
    services: (unary) => dataplaneServices(dataplane, unary),
  });
  const stop = async (): Promise<void> => {
    await server.stop();
    // Calls that were cut off may still be taking back what they did.
    await dataplane.idle();
    await kernel.close();
  };
  try {
    const addresses = await server.listen();
    await kernel.probe();
    server.setServing();
    return { addresses, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}
