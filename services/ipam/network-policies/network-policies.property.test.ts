import { expect, test } from 'vitest';

import { explain } from './explanation.js';
import { PROTOCOLS } from './pods.js';
import type { Attempt } from './testing/cluster.js';
import { address, allows, CompiledCluster } from './testing/compiled.js';
import { Oracle } from './testing/oracle.js';
import { changeAtRandom } from './testing/random-changes.js';
import { RandomCluster } from './testing/random-cluster.js';

const CASES_COUNT = 10_000;
const ATTEMPTS_COUNT = 4;

const seed = Math.floor(Math.random() * 2 ** 32);

const NO_PROGRESS = {
  ...{ isFollowing: false, isBehind: false, forMs: undefined, behindForMs: undefined },
  ...{ sentNumber: 0, acknowledgedNumber: 0 },
};

/** The verdict of an explanation; none for a pod's connection to itself, which is never judged. */
function explanations({ profiles }: CompiledCluster, attempt: Attempt): readonly boolean[] {
  const { source, destination, protocol, port } = attempt;
  if (source === destination) return [];
  const question = {
    source: { address: address(source) },
    destination: { address: address(destination) },
    protocol: protocol === 'ICMP' ? 1 : PROTOCOLS[protocol],
    port: protocol === 'ICMP' ? undefined : port,
  };
  return [explain(question, { profiles, followers: [], progressOf: () => NO_PROGRESS }, () => []).isAllowed];
}

test(
  `10,000 random clusters: the compiled profiles and explanations judge as the oracle does; seed ${seed}`,
  { timeout: 600_000 },
  () => {
    const random = new RandomCluster(seed);
    const counts = { allowed: 0, denied: 0 };
    for (let index = 0; index < CASES_COUNT; index++) {
      const cluster = random.cluster();
      const compiled = new CompiledCluster(cluster);
      const oracle = new Oracle(cluster);
      for (let attempted = 0; attempted < ATTEMPTS_COUNT; attempted++) {
        const attempt = random.attempt(cluster);
        const isAllowed = oracle.allows(attempt);
        counts[isAllowed ? 'allowed' : 'denied']++;
        const verdicts = [allows(compiled, attempt), ...explanations(compiled, attempt)];
        if (verdicts.every((verdict) => verdict === isAllowed)) continue;
        const text = JSON.stringify({ attempt, isAllowed, cluster }, undefined, 1);
        expect.fail(`seed ${seed}, case ${index}: the oracle and ${JSON.stringify(verdicts)} differ: ${text}`);
      }
    }
    // Neither verdict is rare, or the comparison would say little.
    expect(Math.min(counts.allowed, counts.denied)).toBeGreaterThan((CASES_COUNT * ATTEMPTS_COUNT) / 10);
  },
);

test(`random changes lead to the state that is compiled from scratch; seed ${seed}`, { timeout: 600_000 }, () => {
  const random = new RandomCluster(seed);
  for (let round = 0; round < 50; round++) {
    let cluster = random.cluster();
    const compiled = new CompiledCluster(cluster);
    for (let step = 0; step < 40; step++) {
      cluster = changeAtRandom(random, cluster, compiled);
      expect(compiled.describe(), `seed ${seed}, round ${round}, step ${step}`).toEqual(
        new CompiledCluster(cluster).describe(),
      );
    }
  }
});
