import { openNamespace, type Namespace } from '@podwire/netlink';

import type { LinkListener, LinkSource, LinkWatch, NodeLink } from '../node/links.js';
import type { NodeSysctl } from '../routes/wanted.js';
import type { NodeMonitor } from './node-monitor.js';
import { callKernel, failureOfNetlink, hasErrno } from './refusal.js';

/** The real kernel's links. The node's network namespace is this process's. */
export class NetlinkLinks implements LinkSource {
  readonly #node: Namespace;
  readonly #monitor: NodeMonitor;

  private constructor(node: Namespace, monitor: NodeMonitor) {
    this.#node = node;
    this.#monitor = monitor;
  }

  /** @throws Failure KERNEL_REFUSED when no netlink socket can be opened */
  static async open(monitor: NodeMonitor): Promise<NetlinkLinks> {
    return new NetlinkLinks(await callKernel(() => openNamespace()), monitor);
  }

  links(): Promise<readonly NodeLink[]> {
    return callKernel(async () => {
      const links = await this.#node.links();
      return links.map(({ name, mtuBytes, up }) => ({ name, mtuBytes, up }));
    });
  }

  watch(listener: LinkListener): Promise<LinkWatch> {
    return callKernel(() =>
      this.#monitor.subscribe({
        onEvent: (event) => {
          if (event.object === 'link') listener.changed(event.value.name);
          if (event.object === 'overrun') listener.changed(undefined);
        },
        onFailure: () => listener.ended(),
      }),
    );
  }

  readSysctls(keys: readonly NodeSysctl['key'][]): Promise<readonly (string | null)[]> {
    return callKernel(async () => {
      const readings = await this.#node.readSysctls(keys);
      return readings.map((reading) => {
        if (reading.ok) return reading.value;
        if (hasErrno(reading.error, 'ENOENT')) return null;
        throw reading.error;
      });
    });
  }

  writeSysctls(settings: readonly NodeSysctl[]): Promise<void> {
    return callKernel(async () => {
      const outcomes = await this.#node.writeSysctls(settings);
      for (const outcome of outcomes) if (!outcome.ok) throw failureOfNetlink(outcome.error);
    });
  }

  close(): Promise<void> {
    return this.#node.close();
  }
}
