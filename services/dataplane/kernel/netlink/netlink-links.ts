import { NetlinkError, openNamespace, type Monitor, type Namespace } from '@podwire/netlink';

import type { NodeSysctl } from '../../routing/wanted.js';
import type { LinkListener, LinkSource, LinkWatch, NodeLink } from '../link-source.js';
import { asking, failureOfNetlink, hasErrno } from './refusal.js';

/** The real kernel's links. The node's network namespace is that of this process. */
export class NetlinkLinks implements LinkSource {
  readonly #node: Namespace;
  readonly #monitors = new Set<Monitor>();

  private constructor(node: Namespace) {
    this.#node = node;
  }

  /** @throws Failure KERNEL_REFUSED when no netlink socket can be opened */
  static async open(): Promise<NetlinkLinks> {
    return new NetlinkLinks(await asking(() => openNamespace()));
  }

  links(): Promise<readonly NodeLink[]> {
    return asking(async () => {
      const links = await this.#node.links();
      return links.map(({ name, mtuBytes, up }) => ({ name, mtuBytes, up }));
    });
  }

  async watch(listener: LinkListener): Promise<LinkWatch> {
    const monitor = await asking(() => this.#node.monitor({ groups: ['links'] }));
    this.#monitors.add(monitor);
    void this.#relay(monitor, listener);
    return { close: () => this.#end(monitor) };
  }

  readSysctls(keys: readonly NodeSysctl['key'][]): Promise<readonly (string | null)[]> {
    return asking(async () => {
      const readings = await this.#node.readSysctls(keys);
      return readings.map((reading) => {
        if (reading.ok) return reading.value;
        if (hasErrno(reading.error, 'ENOENT')) return null;
        throw reading.error;
      });
    });
  }

  writeSysctls(settings: readonly NodeSysctl[]): Promise<void> {
    return asking(async () => {
      const outcomes = await this.#node.writeSysctls(settings);
      for (const outcome of outcomes) if (!outcome.ok) throw failureOfNetlink(outcome.error);
    });
  }

  async close(): Promise<void> {
    for (const monitor of [...this.#monitors]) this.#end(monitor);
    await this.#node.close();
  }

  #end(monitor: Monitor): void {
    this.#monitors.delete(monitor);
    monitor.close();
  }

  async #relay(monitor: Monitor, listener: LinkListener): Promise<void> {
    try {
      for await (const event of monitor) {
        if (event.object === 'link') listener.changed(event.value.name);
        if (event.object === 'overrun') listener.changed(undefined);
      }
    } catch (error) {
      if (!(error instanceof NetlinkError)) throw error;
      this.#monitors.delete(monitor);
      listener.ended();
    }
  }
}
