import { openNamespace, type LoggedPacket as NetlinkPacket, type Monitor, type Namespace } from '@podwire/netlink';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { LoggedPacket, PacketGroup, PacketLog, PacketWatcher, TableWatch } from '../nft/nft.js';
import { callKernel } from './refusal.js';

/** A pod's interface keeps its index, and rarely gets another name. */
const NAMES_FOR_MS = 5000;

/** Packets that rules log, through netlink. The namespace is this process's. */
export class NetlinkPacketLog implements PacketLog {
  readonly #clock: Pick<Clock, 'monotonicMs'>;
  readonly #names = new Map<number, string | undefined>();
  #namesReadAtMs = 0;

  constructor(clock: Pick<Clock, 'monotonicMs'>) {
    this.#clock = clock;
  }

  async watch(options: PacketGroup, watcher: PacketWatcher): Promise<TableWatch> {
    const node = await callKernel(() => openNamespace());
    try {
      const packets = await callKernel(() => node.monitorPackets(options));
      void this.#relay(node, packets, watcher);
      return { close: () => packets.close() };
    } catch (error) {
      await node.close();
      throw error;
    }
  }

  async #relay(node: Namespace, packets: Monitor<NetlinkPacket>, watcher: PacketWatcher): Promise<void> {
    try {
      for await (const event of packets) {
        if (event.object === 'overrun') watcher.onLost();
        else watcher.onPacket(await this.#read(node, event));
      }
    } catch (error) {
      packets.close();
      watcher.onEnd(error);
    }
    await node.close();
  }

  async #read(node: Namespace, packet: NetlinkPacket): Promise<LoggedPacket> {
    const { prefix, inputIndex, outputIndex, payload: bytes } = packet;
    const [input, output] = [await this.#nameOf(node, inputIndex), await this.#nameOf(node, outputIndex)];
    return { prefix, input, output, bytes };
  }

  async #nameOf(node: Namespace, index: number | undefined): Promise<string | undefined> {
    if (index === undefined) return undefined;
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#namesReadAtMs > NAMES_FOR_MS) {
      this.#names.clear();
      this.#namesReadAtMs = nowMs;
    }
    if (!this.#names.has(index)) {
      const [outcome] = await callKernel(() => node.batch([{ type: 'link.get', link: { index } }]));
      this.#names.set(index, outcome?.ok === true ? outcome.link?.name : undefined);
    }
    return this.#names.get(index);
  }
}
