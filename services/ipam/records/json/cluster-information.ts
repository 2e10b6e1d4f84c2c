import type { ClusterInformation } from '../view.js';
import { field, isAbsent, readFlag, readObject } from './fields.js';
import type { JsonObject } from './json.js';

/** Calico's ClusterInformation (projectcalico/api, pkg/apis/projectcalico/v3/clusterinfo.go). Read only. */
export function decodeClusterInformation(raw: JsonObject): ClusterInformation {
  const ready = field(readObject(field(raw, 'spec')), 'datastoreReady', 'spec');
  return { isLocked: !isAbsent(ready) && !readFlag(ready) };
}
