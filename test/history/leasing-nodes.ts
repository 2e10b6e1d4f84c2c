import { setTimeout as sleep } from 'node:timers/promises';

import { until } from '../support/until.js';
import { LeasingNode, type LeasingNodeOptions } from './leasing-node.js';

/** Concurrent pods of each node. */
const PODS = 4;

const HOUR_MS = 3_600_000;

interface LeasingNodesOptions extends Omit<LeasingNodeOptions, 'name'> {
  readonly count: number;
}

/** Nodes with leases, which are killed and whose clocks jump while their pods come and go. */
export class LeasingNodes {
  readonly nodes: readonly LeasingNode[];
  readonly #random: () => number;
  #isStopping = false;

  constructor({ count, ...options }: LeasingNodesOptions) {
    this.#random = options.random;
    this.nodes = Array.from({ length: count }, (_, index) => new LeasingNode({ ...options, name: `leasing-${index}` }));
  }

  /** Runs until {@link stop}; then every pod that was to be deleted is. */
  async run(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.start()));
    await Promise.all([this.#disturb(), ...this.nodes.map((node) => node.run(PODS))]);
  }

  stop(): void {
    this.#isStopping = true;
    for (const node of this.nodes) node.stop();
  }

  /** Waits until podwire-ipam and the nodes agree, after a last kill of each. @throws Error if they do not */
  async settle(): Promise<void> {
    await until(
      () => this.nodes.every((node) => node.isSettled),
      () => `the nodes do not settle their records: ${this.nodes.flatMap((node) => node.unsettled).join('; ')}`,
    );
    for (const node of this.nodes) await node.restart();
    for (const node of this.nodes)
      await until(
        async () => node.isSettled && (await node.leasesInIpam()).join() === node.leases.join(),
        () => `the leases of ${node.name} stay ${node.leases.join()}`,
      );
  }

  /** The nodes' leases, and what they have not settled, as one text. */
  get state(): string {
    return this.nodes
      .map(({ name, leases, unsettled }) => `${name} has ${[`${leases.length} leases`, ...unsettled].join('; ')}`)
      .join(', ');
  }

  /** SIGKILL of all nodes, for the end. */
  kill(): void {
    for (const node of this.nodes) node.kill();
  }

  async #disturb(): Promise<void> {
    while (!this.#isStopping) {
      await sleep(600 * this.#random());
      const node = this.nodes[Math.floor(this.#random() * this.nodes.length)];
      if (this.#random() < 0.4) await node?.restart();
      else node?.setClock([-HOUR_MS, 0, HOUR_MS][Math.floor(this.#random() * 3)] ?? 0);
    }
  }
}
