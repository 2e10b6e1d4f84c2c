import { expect, test } from 'vitest';

import type { Cluster } from './testing/cluster.js';
import { allows, CompiledCluster } from './testing/compiled.js';
import { Oracle } from './testing/oracle.js';
import { RandomCluster } from './testing/random-cluster.js';

const CASES_COUNT = 10_000;
const ATTEMPTS_COUNT = 4;

const seed = Math.floor(Math.random() * 2 ** 32);

test(`10,000 random clusters: the compiled profiles judge as the oracle does; seed ${seed}`, { timeout: 600_000 }, () => {
  const random = new RandomCluster(seed);
  const verdicts = { allowed: 0, denied: 0 };
  for (let index = 0; index < CASES_COUNT; index++) {
    const cluster = random.cluster();
    const compiled = new CompiledCluster(cluster);
    const oracle = new Oracle(cluster);
    for (let attempted = 0; attempted < ATTEMPTS_COUNT; attempted++) {
      const attempt = random.attempt(cluster);
      const isAllowed = oracle.allows(attempt);
      verdicts[isAllowed ? 'allowed' : 'denied']++;
      if (allows(compiled, attempt) === isAllowed) continue;
      const text = JSON.stringify({ attempt, isAllowed, cluster }, undefined, 1);
      expect.fail(`seed ${seed}, case ${index}: oracle and profiles differ: ${text}`);
    }
  }
  // Neither verdict is rare, or the comparison would say little.
  expect(Math.min(verdicts.allowed, verdicts.denied)).toBeGreaterThan((CASES_COUNT * ATTEMPTS_COUNT) / 10);
});

test(`random changes lead to the state that is compiled from scratch; seed ${seed}`, { timeout: 600_000 }, () => {
  const random = new RandomCluster(seed);
  for (let round = 0; round < 50; round++) {
    let cluster = random.cluster();
    const compiled = new CompiledCluster(cluster);
    for (let step = 0; step < 40; step++) {
      cluster = change(random, cluster, compiled);
      expect(compiled.describe(), `seed ${seed}, round ${round}, step ${step}`).toEqual(
        new CompiledCluster(cluster).describe(),
      );
    }
  }
});

/** Changes one object in both. */
function change(random: RandomCluster, cluster: Cluster, compiled: CompiledCluster): Cluster {
  const isRemoval = random.next() < 0.25;
  const { profiles } = compiled;
  const kind = random.pick(['namespace', 'pod', 'networkPolicy', 'clusterPolicy']);
  switch (kind) {
    case 'namespace': {
      const object = random.namespace();
      if (isRemoval) profiles.pods.removeNamespace(object.metadata.name);
      else compiled.setNamespace(object);
      return { ...cluster, namespaces: replaced(cluster.namespaces, object, isRemoval) };
    }
    case 'pod': {
      const object = random.pod();
      if (isRemoval) profiles.pods.removePod(object.metadata);
      else compiled.setPod(object);
      return { ...cluster, pods: replaced(cluster.pods, object, isRemoval) };
    }
    case 'networkPolicy': {
      const object = random.networkPolicy();
      if (isRemoval) profiles.removePolicy(`NetworkPolicy ${object.metadata.namespace}/${object.metadata.name}`);
      else compiled.setPolicy(object);
      return { ...cluster, networkPolicies: replaced(cluster.networkPolicies, object, isRemoval) };
    }
    default: {
      const object = random.clusterPolicy();
      if (isRemoval) profiles.removePolicy(`ClusterNetworkPolicy ${object.metadata.name}`);
      else compiled.setClusterPolicy(object);
      return { ...cluster, clusterPolicies: replaced(cluster.clusterPolicies, object, isRemoval) };
    }
  }
}

function replaced<Raw extends { readonly metadata: { readonly name: string } }>(
  objects: readonly Raw[],
  object: Raw,
  isRemoval: boolean,
): readonly Raw[] {
  const rest = objects.filter(({ metadata }) => metadata.name !== object.metadata.name);
  return isRemoval ? rest : [...rest, object];
}
