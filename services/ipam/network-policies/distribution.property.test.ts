import { FollowPoliciesResponse } from '@podwire/proto/podwire/ipam/v1/network_policy';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, test } from 'vitest';

import { encodeMessage } from './network-policies-rpc.js';
import { NetworkPolicies, type PolicyMessage } from './network-policies-operations.js';
import { allows, CompiledCluster } from './testing/compiled.js';
import { NodeState } from './testing/node-state.js';
import { Oracle } from './testing/oracle.js';
import { RandomCluster } from './testing/random-cluster.js';
import { changeAtRandom } from './testing/random-changes.js';

const NODES = ['n1', 'n2', 'n3'];
const seed = Math.floor(Math.random() * 2 ** 32);

/** A node that reads its stream. */
class Reader {
  readonly state: NodeState;
  readonly #policies: NetworkPolicies;
  readonly #nodeName: string;
  #stop = new AbortController();
  #messages: AsyncIterator<PolicyMessage> | undefined;
  #next: Promise<IteratorResult<PolicyMessage>> | undefined;

  constructor(policies: NetworkPolicies, nodeName: string, addressesOf: (pod: string) => readonly string[]) {
    this.#policies = policies;
    this.#nodeName = nodeName;
    this.state = new NodeState(addressesOf);
  }

  /** Opens a new stream, as after a lost connection. */
  open(): void {
    this.#stop.abort();
    this.#stop = new AbortController();
    const sets = new Map(this.state.digests().map(({ id, digest }) => [id, digest]));
    this.state.begin();
    const messages = this.#policies.follow(
      { nodeName: this.#nodeName, sets, acknowledged: () => undefined },
      this.#stop.signal,
    );
    this.#messages = messages[Symbol.asyncIterator]();
    this.#next = undefined;
  }

  /** Reads every message that is there. */
  async read(): Promise<void> {
    for (;;) {
      this.#next ??= this.#messages?.next();
      const result = await Promise.race([
        this.#next,
        new Promise<undefined>((resolve) => setImmediate(resolve, undefined)),
      ]);
      if (!result || result.done) return;
      this.#next = undefined;
      this.state.apply(FollowPoliciesResponse.decode(encodeMessage(result.value)));
    }
  }

  close(): void {
    this.#stop.abort();
  }
}

test(`random changes reach every node, also one that reads late or connects again; seed ${seed}`, async () => {
  const random = new RandomCluster(seed);
  for (let round = 0; round < 40; round++) {
    const clock = new ManualClock();
    const policies = new NetworkPolicies({ clock, refusal: () => undefined });
    let cluster = random.cluster();
    const compiled = new CompiledCluster(cluster, policies.profiles);
    const addressesOf = (key: string): readonly string[] => {
      const pod = cluster.pods.find(({ metadata }) => `${metadata.namespace}/${metadata.name}` === key);
      return pod?.status?.podIPs?.map(({ ip }) => ip) ?? [];
    };
    const readers = NODES.map((name) => new Reader(policies, name, addressesOf));
    readers.forEach((reader) => reader.open());
    for (let step = 0; step < 25; step++) {
      for (let count = 0; count < 3; count++) cluster = changeAtRandom(random, cluster, compiled);
      clock.advance(10);
      const isLast = step === 24;
      for (const reader of readers) {
        if (random.next() < 0.1) reader.open();
        if (isLast || random.next() < 0.6) await reader.read();
      }
    }
    const label = `seed ${seed}, round ${round}`;
    readers.forEach(({ state }, index) => expect(state.describe(), label).toEqual(compiled.describe(NODES[index])));
    const oracle = new Oracle(cluster);
    const known = cluster.namespaces.map(({ metadata }) => metadata.name);
    for (let count = 0; count < 20; count++) {
      const attempt = random.attempt(cluster);
      const ends = [...oracle.podsAt(attempt.source), ...oracle.podsAt(attempt.destination)];
      if (!ends.every(({ metadata }) => known.includes(metadata.namespace))) continue;
      const isAllowed = readers.every(({ state }) => allows(state, attempt));
      expect({ ...attempt, isAllowed }, label).toEqual({ ...attempt, isAllowed: oracle.allows(attempt) });
    }
    readers.forEach((reader) => reader.close());
  }
});
