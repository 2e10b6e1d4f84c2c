import type { Cluster } from './cluster.js';
import type { CompiledCluster } from './compiled.js';
import type { RandomCluster } from './random-cluster.js';

/** Changes one object of a cluster, and of its compiled form. @returns the changed cluster */
export function changeAtRandom(random: RandomCluster, cluster: Cluster, compiled: CompiledCluster): Cluster {
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
