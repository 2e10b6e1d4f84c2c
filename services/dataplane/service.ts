import { Peer } from '@podwire/shared/rpc/client';
import { RpcServer } from '@podwire/shared/rpc/server';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';

import { AttachmentEvents } from './attachments/events.js';
import { GarbageCollector } from './attachments/garbage.js';
import type { Boot } from './attachments/giving-back.js';
import { DirectoryRecordStore } from './attachments/directory-record-store.js';
import { ipamAddressBook } from './attachments/ipam/ipam-address-book.js';
import { AttachmentKeeper } from './attachments/keeper.js';
import { AttachmentRegistry } from './attachments/registry.js';
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
  /** From 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Of the machine. */
  readonly boot: Boot;
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
  const node = await openNode(kernel, { config, surroundings }).catch(async (error: unknown) => {
    await kernel.close();
    throw error;
  });
  const server = new RpcServer({
    addresses: config.listen,
    log,
    clock,
    defaultCallTimeoutMs: config.callTimeoutMs,
    drainTimeoutMs: config.drainTimeoutMs,
    services: (unary) => dataplaneServices(node, unary),
  });
  const stop = async (): Promise<void> => {
    await Promise.all([server.stop(), node.keeper.stop()]);
    // Calls that were cut off may still be taking back what they did.
    await node.dataplane.idle();
    node.ipam.close();
    await kernel.close();
  };
  try {
    const addresses = await server.listen();
    await kernel.probe();
    server.setServing();
    node.keeper.start();
    return { addresses, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** What serves the pods of this node, and what looks after them. */
interface Node {
  readonly dataplane: Dataplane;
  readonly garbage: GarbageCollector;
  readonly keeper: AttachmentKeeper;
  readonly ipam: Peer;
}

/** Takes in what the process before has left, so that the first call knows of it. @throws Failure STATE_IO */
async function openNode(kernel: Kernel, { config, surroundings }: ServeOptions): Promise<Node> {
  const { log, clock, random, boot } = surroundings;
  const events = new AttachmentEvents(log);
  const registry = new AttachmentRegistry({
    store: new DirectoryRecordStore(config.stateDirectory),
    bootId: boot.id,
    clock,
    onRefused: (attachment, failure) => events.recordRefused(attachment, failure),
  });
  const { unreadable, outlived } = await registry.load();
  for (const record of unreadable) events.recordUnreadable(record);
  for (const { network } of outlived) events.recordOutlived(network.attachment);

  const dataplane = new Dataplane({ kernel, registry, events: new Events(log) });
  const ipam = new Peer('podwire-ipam', config.ipamAddress);
  const addressBook = ipamAddressBook(ipam, clock);
  const { nodeName } = config;
  const parts = { kernel, dataplane, registry, events, clock };
  const keeper = new AttachmentKeeper({ ...parts, addressBook, random, nodeName, boot });
  return { dataplane, garbage: new GarbageCollector(parts), keeper, ipam };
}
