import { NetlinkError, type Monitor, type MonitorEvent } from '@podwire/netlink';

/** A subscription that tells what a test says, and ends when it says so. */
export class GivenMonitor implements Monitor {
  isClosed = false;
  readonly #waiting: (MonitorEvent | Error)[] = [];
  #wake: () => void = () => undefined;

  give(event: MonitorEvent | Error): void {
    this.#waiting.push(event);
    this.#wake();
  }

  close(): void {
    this.isClosed = true;
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<MonitorEvent, undefined> {
    while (!this.isClosed) {
      const event = this.#waiting.shift();
      if (event instanceof Error) throw event;
      if (event) yield event;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}

/** How the kernel ends a subscription. */
export const broken = () =>
  new NetlinkError({ operation: 'monitor', object: 'node', errno: 9, kernelMessage: undefined });
