import { setTimeout as sleep } from 'node:timers/promises';

import { DeleteNodeRequest, NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import { Failure } from '@podwire/shared/failure/failure';

import type { CalicoWriter } from '../support/calico-writer.js';
import { until } from '../support/until.js';
import { LeasingNode, type LeasingNodeOptions } from './leasing-node.js';

/** Concurrent pods of each node. */
const PODS = 4;

const HOUR_MS = 3_600_000;

/** Time limit of a deletion, in milliseconds: podwire-ipam waits for the node's inventory. */
const DELETION_TIMEOUT_MS = 20_000;

interface LeasingNodesOptions extends Omit<LeasingNodeOptions, 'name' | 'prefix'> {
  readonly count: number;
  /** Frees leases behind the back of podwire-ipam; undefined: they stay. */
  readonly calico?: Pick<CalicoWriter, 'release'>;
}

/**
 * Nodes with leases, which are killed, rebooted and deleted, and whose clocks jump while their pods come and go. Another machine has
 * the name of the first one.
 */
export class LeasingNodes {
  readonly nodes: readonly LeasingNode[];
  readonly #options: LeasingNodesOptions;
  readonly #twin: LeasingNode;
  /** Containers of the other machine, by address. The machine returns nothing without a session, and the name's owner keeps its addresses. */
  readonly #leftovers = new Map<string, string>();
  #isDisturbed = true;

  constructor(options: LeasingNodesOptions) {
    const { count, ...rest } = options;
    this.#options = options;
    const name = (index: number): string => `leasing-${index}`;
    this.nodes = Array.from({ length: count }, (_, index) => new LeasingNode({ ...rest, name: name(index) }));
    this.#twin = new LeasingNode({ ...rest, name: name(0), prefix: 'twin' });
  }

  /** Runs until {@link stop}; then every pod that was to be deleted is. */
  async run(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.start()));
    await Promise.all([
      ...[this.#disturb(), this.#deleteNodes(), this.#runTwin()],
      ...(this.#options.calico ? [this.#freeLeases(this.#options.calico)] : []),
      ...this.nodes.map((node) => node.run(PODS)),
    ]);
  }

  /** Ends the disturbances; pods still come and go. */
  calm(): void {
    this.#isDisturbed = false;
  }

  stop(): void {
    this.calm();
    for (const node of [...this.nodes, this.#twin]) node.stop();
  }

  /** Waits until podwire-ipam and the nodes agree, after a last kill of each. @throws Error if they do not */
  async settle(): Promise<void> {
    await until(
      () => this.nodes.every((node) => node.isSettled),
      () => `the nodes do not settle their records: ${this.nodes.flatMap((node) => node.unsettled).join('; ')}`,
    );
    for (const node of this.nodes) await node.restart();
    for (const node of this.nodes) {
      let leftovers: readonly string[] = [];
      await until(
        async () => (leftovers = await node.leftovers()).length === 0,
        () => `the inventory of ${node.name} leaves ${leftovers.join(', ')}`,
      );
      await until(
        async () => node.isSettled && keysOf(await node.leasesInIpam()).join() === keysOf(node.leases).join(),
        () => `the leases of ${node.name} stay ${keysOf(node.leases).join()}`,
      );
    }
  }

  /** The nodes' leases, and their unsettled changes, as one text. */
  get state(): string {
    return this.nodes
      .map(({ name, leases, unsettled }) => `${name} has ${[`${leases.length} leases`, ...unsettled].join('; ')}`)
      .join(', ');
  }

  /** The unbound leases that the nodes would give to pods, each with its sequence number, sorted. */
  get leases(): string[] {
    return keysOf(this.nodes.flatMap(({ leases }) => leases));
  }

  /** Addresses that the other machine was not able to return: the container that podwire-ipam knows as its holder. */
  get leftovers(): ReadonlyMap<string, string> {
    return this.#leftovers;
  }

  /** SIGKILL of all nodes, for the end. */
  kill(): void {
    for (const node of this.nodes) node.kill();
  }

  async #disturb(): Promise<void> {
    const { random } = this.#options;
    while (this.#isDisturbed) {
      await sleep(600 * random());
      const node = this.#anyNode();
      const fault = random();
      if (fault < 0.35) await node?.restart();
      else if (fault < 0.45) await node?.reboot();
      else node?.setClock([-HOUR_MS, 0, HOUR_MS][Math.floor(random() * 3)] ?? 0);
    }
  }

  /** Starts once the first node has an address, so that the name is taken. */
  async #runTwin(): Promise<void> {
    const [first] = this.nodes;
    while (first?.podCount === 0 && this.#isDisturbed) await sleep(10);
    if (!this.#isDisturbed) return;
    await this.#twin.start();
    await this.#twin.run(1);
    this.#twin.kill();
    for (const [id, addresses] of this.#twin.unreturned) for (const each of addresses) this.#leftovers.set(each, id);
  }

  /** Operators delete nodes that run. */
  async #deleteNodes(): Promise<void> {
    const { random, history, replicas } = this.#options;
    while (this.#isDisturbed) {
      await sleep(3000 * random());
      const node = this.#anyNode();
      const replica = replicas[Math.floor(random() * replicas.length)];
      // The other machine would get the name of the first node.
      if (!node || !replica || node === this.nodes[0]) continue;
      const force = random() < 0.5;
      const request = { ...DeleteNodeRequest.fromPartial({ name: node.name }), force };
      const outcome = await codeOf(
        replica.peer.call(NodeServiceService.deleteNode, request, { deadlineMs: Date.now() + DELETION_TIMEOUT_MS }),
      );
      history.count(`node deleted${force ? ' with force' : ''}: ${outcome}`);
      if (outcome !== 'NODE_IN_USE') await node.register();
    }
  }

  async #freeLeases(calico: Pick<CalicoWriter, 'release'>): Promise<void> {
    const { random, history } = this.#options;
    while (this.#isDisturbed) {
      await sleep(1000 * random());
      const node = this.#anyNode();
      const lease = node?.leases[Math.floor(random() * node.leases.length)];
      if (!node || !lease) continue;
      try {
        const isReleased = await calico.release(lease.address, `podwire-lease.${node.name}`);
        if (isReleased) history.count('lease freed by Calico’s tools');
      } catch {
        // The datastore is unreachable, and whether it was freed is unknown.
        history.count('lease not freed by Calico’s tools');
      }
    }
  }

  #anyNode(): LeasingNode | undefined {
    return this.nodes[Math.floor(this.#options.random() * this.nodes.length)];
  }
}

function keysOf(addresses: readonly AllocatedAddress[]): string[] {
  return addresses.map(({ address, sequenceNumber }) => `${address}#${sequenceNumber}`).sort();
}

/** @returns the code of the failure; `done` without one */
async function codeOf(calling: Promise<unknown>): Promise<string> {
  try {
    await calling;
    return 'done';
  } catch (error) {
    if (error instanceof Failure) return error.code;
    throw error;
  }
}
